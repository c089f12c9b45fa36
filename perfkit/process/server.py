"""Starts processes from a server that has imported torch: they begin in 0.1 s, not after seconds.

On Linux this is the standard library's fork server, one for each environment: some variables are read when a
program or a library is loaded (OMP_*, MALLOC_*), so a process that needs others cannot come from the same
server. Elsewhere a fork without exec is not safe, and each process is spawned.
"""

import contextlib
import multiprocessing
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from typing import Any

from perfkit import machine

_READ_LATE = ("PERFKIT_", "PYTEST_", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "MPLBACKEND")
"""Variables that a running process may get: every other one may be read by an import."""

_DYING_S = 0.5

_METHOD: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
_servers: dict[frozenset[tuple[str, str]], forkserver.ForkServer] = {}
_lock = threading.Lock()
_changing = threading.Lock()
"""Held while this process has the variables of another one that starts."""
_starter = ThreadPoolExecutor(1, "perfkit-start")


def start(
    target: Callable[..., None], arguments: tuple[Any, ...], environment: Mapping[str, str]
) -> tuple[BaseProcess, Future[None]]:
    """Starts a process in a thread, as its server may have to import torch first.

    Args:
        target: what it runs; found by its name, as the arguments are pickled.
        arguments: of the target.
        environment: variables besides this process's own.

    Returns:
        The process, and when it has started; an error of the server is the future's.
    """
    # A daemon is ended with this process, rather than waited for.
    process = _METHOD.Process(target=target, args=arguments, daemon=True)
    return process, _starter.submit(_start, process, dict(environment))


def restart() -> None:
    """Ends all servers, and their processes: the next process has its memory and code elsewhere."""
    with _lock:
        for server in _servers.values():
            server._stop()  # type: ignore[attr-defined]
        _servers.clear()


def _start(process: BaseProcess, environment: dict[str, str]) -> None:
    with _lock, _unseen_main():
        if sys.platform != "linux":
            with _variables(environment):
                process.start()
            return
        try:
            _fork(process, environment)
        except (EOFError, OSError):  # somebody ended the server, which only the next call notices
            time.sleep(_DYING_S)
            _fork(process, environment)


def _fork(process: BaseProcess, environment: dict[str, str]) -> None:
    plain = forkserver.connect_to_new_process
    forkserver.connect_to_new_process = _server(environment).connect_to_new_process
    try:
        process.start()
    finally:
        forkserver.connect_to_new_process = plain


def _server(environment: dict[str, str]) -> forkserver.ForkServer:
    read_early = {name: value for name, value in os.environ.items() if not name.startswith(_READ_LATE)}
    key = frozenset((read_early | environment).items())
    if key not in _servers:
        _servers[key] = forkserver.ForkServer()
        _servers[key].set_forkserver_preload(["perfkit.worker.preload"])
    with _variables(environment | {"PYTHONPATH": machine.import_path()}):
        _servers[key].ensure_running()
    return _servers[key]


def variables() -> dict[str, str]:
    """The environment of this process, without what a thread sets for a process that starts just now."""
    with _changing:
        return dict(os.environ)


@contextlib.contextmanager
def _variables(changes: Mapping[str, str]) -> Iterator[None]:
    """Environment variables of a process that starts meanwhile."""
    with _changing:
        before = {name: os.environ.get(name) for name in changes}
        os.environ.update(changes)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


@contextlib.contextmanager
def _unseen_main() -> Iterator[None]:
    """Hides the user's script, which a new process would otherwise import, that is, run once more."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
