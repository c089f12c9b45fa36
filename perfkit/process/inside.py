"""How a process of perfkit's begins: in a session of its own, with a log, and to end with its parent."""

import contextlib
import ctypes
import importlib
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any

from perfkit import machine
from perfkit.worker import failures, messages

_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of Linux's prctl."""


def run(
    task: Callable[[Connection], None],
    connection: Connection,
    environment: Mapping[str, str],
    log: str,
    name: str,
) -> None:
    """Prepares this process, then carries out its task; a failure of the task goes to the parent.

    Args:
        task: what the process is for.
        connection: to the parent.
        environment: all variables.
        log: the file that takes what is printed.
        name: what `top` shows.
    """
    multiprocessing.current_process().daemon = False  # data loaders need processes of their own …
    multiprocessing.set_start_method(None, force=True)  # … started as in any script
    if os.name == "posix":
        os.setsid()  # Ctrl-C must not reach it, and all of it can be ended at once
    if sys.platform == "linux":
        # The server ends when nobody holds this any more; processes that it forked must not keep it.
        os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
        _die_with_parent()
        os.register_at_fork(after_in_child=_die_with_parent)
        with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
            file.write(name)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if not os.path.isdir(os.path.dirname(log)):
        end_group()  # it was cancelled before it started
    with open(log, "ab") as output:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # TMPDIR has changed
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())
    warnings.simplefilter("ignore")
    try:
        task(connection)
    except BaseException as problem:  # whatever it is, the parent must hear of it
        traceback.print_exception(problem, file=sys.stderr)
        sys.stderr.flush()
        connection.send_bytes(messages.encode(failures.explain(problem)))
    finally:
        end_group()


def serve(connection: Connection) -> None:
    """The task of a measuring process."""
    from perfkit.worker.session import serve

    serve(connection)


def answer_call(
    function: Callable[..., Any] | str, arguments: tuple[Any, ...], connection: Connection
) -> None:
    """The task of a process that calls one function, given by name or by `module:name`."""
    if isinstance(function, str):
        module, _, name = function.partition(":")
        function = getattr(importlib.import_module(module), name)
    assert callable(function)
    result = function(*arguments)
    connection.send_bytes(messages.encode(messages.Answer(pickle.dumps(result))))


def end_group() -> None:
    """Ends this process and every process that it started, at once."""
    if os.name == "posix" and os.getpgid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    for process in machine.process_tree()[1:]:
        process.kill()
    os._exit(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent:
        parent.join()
        end_group()


def _die_with_parent() -> None:
    """Has the kernel end this process with the one that forked it, also inside a call that never returns.

    The fork server, which forked the first one, ends with the process that it belongs to.
    """
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
