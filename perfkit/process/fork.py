"""Measuring processes forked from one that has imported torch: they start at once, not after seconds.

`python -m perfkit.process.fork` is the server: it imports torch and torchvision, builds nothing and starts no
thread of its own, then forks a `perfkit.worker` for each request. As with Python's own fork server, which
this is not because that one belongs to the user's code and imports their script again. Linux alone: elsewhere
a fork without exec is not safe, and each child is a new process.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import itertools
import json
import os
import queue
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from perfkit.errors import Cancelled

_IMPORTED = (
    "torch", "torch.utils.data", "torchvision.io", "torchvision.models", "torchvision.transforms.v2", "psutil"
)  # fmt: skip
# Read when they are needed; every other variable may have been read at the start, or by an import.
_READ_LATE = ("PERFKIT_", "PYTEST_", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR")
_HEADER = 4
_START_S = 120.0
_POLL_S = 0.1


class ForkUnavailable(Exception):
    """No process can be forked here: start a new one."""


@dataclass
class Ending:
    """How a forked process ended, once it has."""

    code: int | None = None
    came: threading.Event = field(default_factory=threading.Event)


class Forked:
    """A forked process, used as a `subprocess.Popen` is."""

    def __init__(
        self, pid: int, imports_s: float, ending: Ending, stdin: IO[str], stdout: IO[str], stderr: IO[str]
    ) -> None:
        self.pid = pid
        self.imports_s = imports_s
        """Seconds that a new process would have taken to come as far as this one is when it starts."""
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self._ending = ending

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._ending.code

    def poll(self) -> int | None:
        """As `returncode`."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        if not self._ending.came.wait(timeout):
            raise subprocess.TimeoutExpired("perfkit.worker", timeout or 0.0)
        assert self._ending.code is not None
        return self._ending.code

    def terminate(self) -> None:
        """Asks it to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class _Server:
    """The parent's side of one server."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._owner, self._made_for = os.getpid(), _read_early(environment)
        self._link, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "perfkit.process.fork"],
                stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env=dict(environment), start_new_session=True,
            )  # fmt: skip
        self._endings: dict[int, Ending] = {}
        self._asked: dict[int, queue.Queue[tuple[int, float, Ending]]] = {}
        self._numbers = itertools.count()
        self._sending = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Whether a process of this environment may come from it, and this is the process it belongs to."""
        return self._owner == os.getpid() and self._made_for == _read_early(environment)

    def fork(self, environment: Mapping[str, str], cancelled: threading.Event) -> Forked:
        """Starts one process with this environment, in this process's folder."""
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        stdin, stdout, stderr = (
            os.fdopen(end, mode, encoding="utf-8", errors="replace")
            for end, mode in ((pipes[0][1], "w"), (pipes[1][0], "r"), (pipes[2][0], "r"))
        )
        try:
            pid, imports_s, ending = self._ask(environment, theirs, cancelled)
        except BaseException:
            for stream in (stdin, stdout, stderr):  # one that starts after all finds its parent gone
                stream.close()
            raise
        finally:
            for end in theirs:
                os.close(end)
        return Forked(pid, imports_s, ending, stdin, stdout, stderr)

    def _ask(
        self, environment: Mapping[str, str], fds: list[int], cancelled: threading.Event
    ) -> tuple[int, float, Ending]:
        number = next(self._numbers)
        asked = {"number": number, "environment": dict(environment), "folder": os.getcwd()}
        body = json.dumps(asked).encode()
        answer = self._asked[number] = queue.Queue()
        try:
            with self._sending:
                socket.send_fds(self._link, [len(body).to_bytes(_HEADER, "big")], fds)
                self._link.sendall(body)
            until = time.monotonic() + _START_S
            while time.monotonic() < until and self._process.poll() is None:
                if cancelled.is_set():
                    raise Cancelled("stopped on request")
                with contextlib.suppress(queue.Empty):
                    if started := answer.get(timeout=_POLL_S):
                        return started
        except OSError as problem:
            raise ForkUnavailable from problem
        finally:
            del self._asked[number]
        raise ForkUnavailable

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._link.makefile(encoding="utf-8") as said:
            for line in said:
                event = json.loads(line)
                if "started" in event:
                    pid, ending = event["started"], Ending()
                    self._endings[pid] = ending
                    if answer := self._asked.get(event["number"]):
                        answer.put((pid, event["imports_s"], ending))
                else:
                    self._end(event["ended"], event["code"])
        for pid in list(self._endings):  # the server is gone, and with it word of their end
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
            self._end(pid, -signal.SIGKILL)
        self._process.wait()

    def _end(self, pid: int, code: int) -> None:
        ending = self._endings.pop(pid)
        ending.code = code
        ending.came.set()

    def close(self) -> None:
        """No further process from this one; it ends with the last of those it has started."""
        if self._owner == os.getpid():
            with contextlib.suppress(OSError):
                self._link.shutdown(socket.SHUT_WR)


_servers: list[_Server] = []  # one, or none
_lock = threading.Lock()


def start(environment: Mapping[str, str], cancelled: threading.Event) -> Forked:
    """Forks a measuring process.

    Args:
        environment: all of its variables.
        cancelled: set from any thread to wait no longer.

    Raises:
        Cancelled: `cancelled` was set while the server was starting.
        ForkUnavailable: this is not Linux, or the server could not start or has died.
    """
    if sys.platform != "linux":
        raise ForkUnavailable
    with _lock:
        if not (_servers and _servers[0].suits(environment)):
            _close()
            _servers.append(_Server(environment))
        server = _servers[0]
    try:
        return server.fork(environment, cancelled)
    except ForkUnavailable:
        restart()
        raise


def restart() -> None:
    """The next process comes from a new server: with its memory and code elsewhere."""
    with _lock:
        _close()


def _close() -> None:
    while _servers:
        _servers.pop().close()


atexit.register(restart)


def _read_early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(_READ_LATE)}


# ---------------------------------------------------------------- the server's side


def main() -> None:
    """Forks a process for each request, and reports when one ends, until the parent has gone."""
    link = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    gone = select.poll()
    gone.register(link, 0)  # a hang-up is always told
    for name in _IMPORTED:
        if gone.poll(0):
            return
        importlib.import_module(name)
    import psutil

    imports_s = time.time() - psutil.Process().create_time()
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page of what is shared
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    with selectors.DefaultSelector() as events:
        events.register(link, selectors.EVENT_READ)
        events.register(woken, selectors.EVENT_READ)
        running: set[int] = set()
        more = True
        while more or running:
            ready = {key.fileobj for key, _ in events.select()}
            if link in ready:
                asked = _request(link)
                if asked is None:
                    more = False
                    events.unregister(link)
                else:
                    running.add(_fork(link, imports_s, *asked))
            if woken in ready:
                woken.recv(4096)
                _reap(link, running)


def _request(link: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    header, fds, _, _ = socket.recv_fds(link, _HEADER, 3)
    if len(header) < _HEADER:
        return None
    body, size = b"", int.from_bytes(header, "big")
    while len(body) < size:
        if not (part := link.recv(size - len(body))):
            return None
        body += part
    return json.loads(body), fds


def _fork(link: socket.socket, imports_s: float, request: Mapping[str, Any], fds: list[int]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            _become_worker(link, request, fds)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    for fd in fds:
        os.close(fd)
    _tell(link, number=request["number"], started=pid, imports_s=imports_s)
    return pid


def _reap(link: socket.socket, running: set[int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            break
        if pid in running:
            running.remove(pid)
            _tell(link, ended=pid, code=os.waitstatus_to_exitcode(status))


def _tell(link: socket.socket, **event: float) -> None:
    with contextlib.suppress(OSError):  # the parent is gone
        link.sendall(json.dumps(event).encode() + b"\n")


def _become_worker(link: socket.socket, request: Mapping[str, Any], fds: list[int]) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    link.close()
    os.setsid()
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
        os.close(fd)
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
    tempfile.tempdir = None  # another TMPDIR holds now
    from perfkit.worker import serve

    serve.main()


if __name__ == "__main__":
    main()
