"""Measuring processes forked from one that has imported torch: they start at once, not after seconds.

`python -m perfkit.process.fork` is the server: it imports torch and torchvision, builds nothing and starts no
thread of its own, then forks a `perfkit.worker` for each request. Python's own fork server belongs to the
user's code and would import their script again, so this is a second one. Only on Linux: elsewhere a fork
without exec is not safe, and each child is a new process.

A request is the environment and four descriptors: the child's standard streams, and a pipe on which the
server reports its process id and then its exit status. When that pipe breaks, the server has died.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection, wait
from typing import IO, Any

from perfkit.errors import Cancelled

_IMPORTED = (
    "torch", "torch.utils.data", "torchvision.io", "torchvision.models", "torchvision.transforms.v2", "psutil"
)  # fmt: skip
# Read when they are needed; every other variable may have been read at the start, or by an import.
_READ_LATE = ("PERFKIT_", "PYTEST_", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR")
_START_S = 120.0
_POLL_S = 0.1


class ForkUnavailable(Exception):
    """No process can be forked here: start a new one."""


class Forked:
    """A forked process, used as a `subprocess.Popen` is."""

    def __init__(
        self, pid: int, imports_s: float, status: Connection, stdin: IO[str], stdout: IO[str], stderr: IO[str]
    ) -> None:
        self.pid = pid
        self.imports_s = imports_s
        """Seconds that a new process would have needed for what this one finds imported."""
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self.returncode: int | None = None
        """The exit status, negative for a signal; None while it runs."""
        self._ended = threading.Event()
        threading.Thread(target=self._follow, args=(status,), daemon=True).start()

    def _follow(self, status: Connection) -> None:
        try:
            self.returncode = json.loads(status.recv_bytes())
        except (EOFError, OSError):  # the server is gone, and nobody else would notice this process's end
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
            self.returncode = -signal.SIGKILL
        status.close()
        self._ended.set()

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("perfkit.worker", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode


class _Server:
    """The parent's side of one server."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._owner, self._environment = os.getpid(), _read_early(environment)
        self.link, theirs = Pipe()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-u", "-m", "perfkit.process.fork"],
                stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env=dict(environment), start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=process.wait, daemon=True).start()
        self._sending = threading.Lock()

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Whether it can fork a process with this environment, and belongs to this process."""
        return self._owner == os.getpid() and self._environment == _read_early(environment)

    def fork(self, environment: Mapping[str, str], cancelled: threading.Event) -> Forked:
        """Starts one process with this environment, in this process's folder."""
        request = json.dumps({"environment": dict(environment), "folder": os.getcwd()}).encode()
        status, their_status = Pipe(duplex=False)
        (their_in, stdin), (stdout, their_out), (stderr, their_err) = (os.pipe() for _ in range(3))
        streams = [
            os.fdopen(end, mode, encoding="utf-8", errors="replace")
            for end, mode in ((stdin, "w"), (stdout, "r"), (stderr, "r"))
        ]
        try:
            with self._sending, their_status:
                self.link.send_bytes(request)
                for end in (their_in, their_out, their_err, their_status.fileno()):
                    reduction.send_handle(self.link, end, 0)
            pid, imports_s = _started(status, cancelled)
        except BaseException as problem:
            status.close()
            for stream in streams:  # a process that starts after all finds its parent gone
                stream.close()
            if isinstance(problem, EOFError | OSError):
                raise ForkUnavailable from problem
            raise
        finally:
            for end in (their_in, their_out, their_err):
                os.close(end)
        return Forked(pid, imports_s, status, *streams)


def _started(status: Connection, cancelled: threading.Event) -> tuple[int, float]:
    until = time.monotonic() + _START_S
    while not status.poll(_POLL_S):
        if cancelled.is_set():
            raise Cancelled("stopped on request")
        if time.monotonic() > until:
            raise ForkUnavailable
    pid, imports_s = json.loads(status.recv_bytes())
    return pid, imports_s


_servers: list[_Server] = []  # one, or none
_lock = threading.RLock()


def start(environment: Mapping[str, str], cancelled: threading.Event) -> Forked:
    """Forks a measuring process.

    Args:
        environment: all of its variables.
        cancelled: set from any thread to stop waiting.

    Raises:
        Cancelled: `cancelled` was set while the server was starting.
        ForkUnavailable: this is not Linux, or the server could not start or has died.
    """
    if sys.platform != "linux":
        raise ForkUnavailable
    with _lock:
        if not (_servers and _servers[0].suits(environment)):
            restart()
            _servers.append(_Server(environment))
        server = _servers[0]
    try:
        return server.fork(environment, cancelled)
    except ForkUnavailable:
        restart()
        raise


def restart() -> None:
    """The next process comes from a new server: with its memory and code elsewhere.

    The former server ends with the last of the processes that it has started.
    """
    with _lock:
        while _servers:
            _servers.pop().link.close()


atexit.register(restart)


def _read_early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(_READ_LATE)}


# ---------------------------------------------------------------- the server's side


def main() -> None:
    """Forks a process for each request, and reports when one ends, until the parent has gone."""
    link, parent = Connection(os.dup(0)), os.pidfd_open(os.getppid())  # readable when the parent has ended
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    gone = select.poll()
    gone.register(link, 0)  # a hang-up is always reported
    gone.register(parent, select.POLLIN)
    # An import of torch takes seconds, on a busy machine many: it ends with the parent. By a timer, not in a
    # thread, because a process with threads must not fork.
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0) if gone.poll(0) else None)
    signal.setitimer(signal.ITIMER_REAL, _POLL_S, _POLL_S)
    for name in _IMPORTED:
        importlib.import_module(name)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    import psutil

    imports_s = time.time() - psutil.Process().create_time()
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page of what is shared
    running: dict[int, tuple[int, Connection]] = {}  # by a descriptor that is readable when the process ends
    while running or not link.closed:
        for ready in wait([parent, *running, *([] if link.closed else [link])]):
            if ready == parent:  # a process that still imports, or is in a long call, would not notice
                _kill(pid for pid, _ in running.values())
                os._exit(0)
            elif ready is link:
                _serve(link, parent, running, imports_s)
            else:
                _report(*running.pop(ready))  # type: ignore[arg-type]
                os.close(ready)  # type: ignore[arg-type]
    os._exit(0)  # nothing is left to do, and taking all of torch apart takes a second or more


def _kill(pids: Iterable[int]) -> None:
    """Kills processes with all that they have started; one that was just forked has no group yet."""
    for pid in pids:
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)


def _serve(
    link: Connection, parent: int, running: dict[int, tuple[int, Connection]], imports_s: float
) -> None:
    try:
        request = json.loads(link.recv_bytes())
        *streams, status = (reduction.recv_handle(link) for _ in range(4))
    except (EOFError, OSError):
        link.close()
        return
    pid = os.fork()
    if pid == 0:
        try:
            for connection in (link, *(other for _, other in running.values())):
                connection.close()
            for end in (status, parent, *running):
                os.close(end)
            _become_worker(request, streams)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    for end in streams:
        os.close(end)
    connection = Connection(status, readable=False)
    running[os.pidfd_open(pid)] = pid, connection
    _send(connection, [pid, imports_s])


def _report(pid: int, status: Connection) -> None:
    _, code = os.waitpid(pid, 0)
    with status:
        _send(status, os.waitstatus_to_exitcode(code))


def _send(status: Connection, message: Any) -> None:
    with contextlib.suppress(OSError):  # the parent is gone
        status.send_bytes(json.dumps(message).encode())


def _become_worker(request: Mapping[str, Any], streams: list[int]) -> None:
    os.setsid()
    for target, end in enumerate(streams):
        os.dup2(end, target)
        os.close(end)
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as name:
        name.write("perfkit.worker")  # what `top` shows
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if not sys.flags.safe_path:
        sys.path[0] = request["folder"]  # as `python -m` does
    import tempfile

    import torch

    if torch.cuda._is_in_bad_fork():  # an import has asked for the GPU: no forked process can use it then
        new = [sys.executable, "-u", "-m", "perfkit.worker"]
        os.execve(sys.executable, new, request["environment"])
    tempfile.tempdir = None  # TMPDIR has changed
    from perfkit.worker import serve

    serve.main()


if __name__ == "__main__":
    main()
