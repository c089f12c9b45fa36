"""Starts processes from a server that has imported torch: they begin in 0.1 s, not after seconds.

On Linux this is the standard library's fork server, one for each environment: some variables are read when a
program or a library is loaded (OMP_*, MALLOC_*), so a process that needs others cannot come from the same
server. Elsewhere a fork without exec is not safe, and each process is spawned.
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from perfkit import registry
from perfkit.process import failures

SERVE = "perfkit.worker.session:serve"
"""What runs in a process, by its place: the parent imports none of it."""
ON_LINUX = sys.platform == "linux"
READ_LATE = (
    "PERFKIT_", "PYTEST_", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "MPLBACKEND",
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_", "GLOO_",
)  # fmt: skip
"""Variables that a running process may get: every other one may be read by an import."""

_method: Any = multiprocessing.get_context("forkserver" if ON_LINUX else "spawn")
_servers: dict[frozenset[tuple[str, str]], forkserver.ForkServer] = {}
_lock = threading.Lock()
"""Held while this process has the variables of another one that starts."""


def start(connection: Connection, log: str, environment: Mapping[str, str]) -> BaseProcess:
    """Starts a process that answers questions, in an environment; it prints to the file `log`.

    The first one waits until its server has imported torch.
    """
    early = {name: value for name, value in environment.items() if not name.startswith(READ_LATE)}
    # The server imports perfkit before `multiprocessing` gives a process the path of this one.
    paths = [str(Path(__file__).parents[2]), *filter(None, [early.get("PYTHONPATH")])]
    variables = {**early, "PYTHONPATH": os.pathsep.join(paths)}
    # A new process would import the user's script, that is, run it once more.
    modules = {"__main__": types.ModuleType("__main__")}
    with _lock, _replaced(sys.modules, modules), _replaced(os.environ, variables):
        # A daemon is ended with this process, rather than waited for.
        process: BaseProcess = _method.Process(target=run, args=(connection, environment, log), daemon=True)
        if not ON_LINUX:
            process.start()
            return process
        try:
            _fork(process, early)
        except (EOFError, OSError):  # somebody ended the server, which only the next call notices
            time.sleep(0.5)
            _fork(process, early)
        return process


def restart() -> None:
    """Ends all servers, and their processes: the next process has its memory and code elsewhere."""
    with _lock:
        for server in _servers.values():
            server._stop()  # type: ignore[attr-defined]
        _servers.clear()


def _fork(process: BaseProcess, early: Mapping[str, str]) -> None:
    """Starts a process from the server of those with these variables."""
    server = _servers.setdefault(frozenset(early.items()), forkserver.ForkServer())
    server.set_forkserver_preload(["perfkit.worker.preload"])
    resource_tracker.ensure_running()  # else the server starts it, which unblocks Ctrl-C
    # A server inherits what is blocked: Ctrl-C must not end it.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        server.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    with _replaced(vars(forkserver), {"connect_to_new_process": server.connect_to_new_process}):
        process.start()


@contextlib.contextmanager
def _replaced(names: MutableMapping[str, Any], changes: Mapping[str, Any]) -> Iterator[None]:
    """Variables, modules or functions have other values for a process that starts meanwhile."""
    before = {name: names[name] for name in changes if name in names}
    names.update(changes)
    try:
        yield
    finally:
        names.update(before)
        for name in changes.keys() - before.keys():
            del names[name]


# ---------------------------------------------------------------- in the process


def run(connection: Connection, environment: Mapping[str, str], log: str) -> None:
    """Prepares this process, then answers questions; a failure goes to the parent.

    It has a session and variables of its own, prints to the file `log`, and ends with its parent.
    """
    multiprocessing.current_process().daemon = False  # data loaders need processes of their own …
    multiprocessing.set_start_method(None, force=True)  # … started as in any script
    os.setsid()  # Ctrl-C must not reach it, and all of it can be ended at once
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if ON_LINUX:
        # The server ends when nobody holds this any more; processes that it forked must not keep it.
        os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
        _die_with_parent()
        os.register_at_fork(after_in_child=_die_with_parent)
        with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
            file.write("perfkit.worker")
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with open(log, "ab") as output:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(environment)
    os.environ.pop("MPLBACKEND", None)  # a notebook's own
    tempfile.tempdir = None  # TMPDIR has changed
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())
    warnings.simplefilter("ignore")
    try:
        registry.load(SERVE)(connection)  # only here is torch imported
    except BaseException as problem:  # whatever it is, the parent must hear of it
        traceback.print_exception(problem, file=sys.stderr)
        sys.stderr.flush()
        connection.send(failures.explain(problem))
    finally:
        os.killpg(0, signal.SIGKILL)  # this process and all that it started, at once


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os.killpg(0, signal.SIGKILL)


def _die_with_parent() -> None:
    """Has the kernel end this process with the one that forked it, also inside a call that never returns.

    The fork server, which forked the first one, ends with the process that it belongs to.
    """
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
