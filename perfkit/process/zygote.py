"""Processes that start fast: a zygote has imported torch, and forks the measuring processes.

There is one zygote for each environment, because some variables are read when a program or a library is
loaded (OMP_*, MALLOC_*). Starting a process changes nothing in the one that asks for it.

Forks of one zygote are alike, because their code and memory are at the same addresses. With a loader worker,
five forks trained within 0.5% of each other, whereas five zygotes differed by 2 to 7% (standard deviation;
two cores, torch 2.15). So a measurement that renews its processes uses a new generation of zygotes.
"""

import contextlib
import ctypes
import errno
import importlib
import itertools
import multiprocessing
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from perfkit import lookup
from perfkit.process import failures

SERVE = "perfkit.worker.session:serve"  # what a measuring process runs; the parent does not import it
PRELOAD = "perfkit.worker.preload"  # what a zygote imports: torch, and the code that measures
ON_LINUX = sys.platform == "linux"
READ_LATE = ("PERFKIT_", "PYTEST_", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "MPLBACKEND")
"""Variables that may be set after the imports. Any other variable may be read by an import."""
POLL_S = 0.1
_NUMBER = struct.Struct("i")


@dataclass(frozen=True)
class Setup:
    """What a measuring process takes over: variables, module paths, current folder, and its log file."""

    environment: Mapping[str, str]
    paths: list[str]
    folder: str
    log: str


class ForkedChild:
    """A child of a zygote. A pipe tells its process id, and later its exit code.

    `check` is called while the id is awaited; it raises if the child is no longer wanted. An OSError is
    raised if the zygote could not fork.
    """

    def __init__(self, status: int, check: Callable[[], None]) -> None:
        self._status = status
        self._code: int | None = None
        self.is_closed = False  # no one will ask for its exit code
        try:
            while not wait([status], POLL_S):
                check()
            self.pid = self._number()  # None if the zygote has ended
            if self.pid is not None and self.pid < 0:  # it is an error's number instead
                raise OSError(-self.pid, os.strerror(-self.pid))
        except BaseException:
            self.close()
            raise

    def _number(self) -> int | None:
        data = os.read(self._status, _NUMBER.size)
        return _NUMBER.unpack(data)[0] if len(data) == _NUMBER.size else None

    def exit_code(self) -> int | None:
        """The exit code: None while it runs, negative for a signal, as in `subprocess`."""
        if self._code is None and not self.is_closed and wait([self._status], 0):
            code = self._number()
            # A zygote that is killed reports nothing. On Linux its children have ended with it.
            self._code = -signal.SIGKILL if code is None else code
        return self._code

    def close(self) -> None:
        if not self.is_closed:
            os.close(self._status)
        self.is_closed = True


class Zygote:
    """A process with the variables of an environment. It forks measuring processes."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair()
        paths = [str(Path(__file__).parents[2])]
        if variables.get("PYTHONPATH"):
            paths.append(variables["PYTHONPATH"])
        program = f"from perfkit.process import zygote; zygote.serve({theirs.fileno()})"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                env={**variables, "PYTHONPATH": os.pathsep.join(paths)},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C does not reach it
            )
        self._lock = threading.Lock()
        self._children: list[ForkedChild] = []
        self.pid = self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def is_busy(self) -> bool:
        return any(not child.is_closed for child in self._children)

    def fork(self, line: Connection, check: Callable[[], None]) -> ForkedChild:
        """Forks a child, which reads its `Setup` from its line. The first waits until torch is imported."""
        ours, theirs = os.pipe()
        try:
            with self._lock, contextlib.suppress(ConnectionError):  # the zygote has ended, and sends no id
                socket.send_fds(self._socket, [b"f"], [line.fileno(), theirs])
        finally:
            os.close(theirs)
        child = ForkedChild(ours, check)
        with self._lock:  # of two threads that fork at once, neither drops the other's child
            self._children = [other for other in self._children if not other.is_closed] + [child]
        return child

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._socket.close()  # it is closed last, when the process has ended


_zygotes: dict[tuple[int, frozenset[tuple[str, str]]], Zygote] = {}
"""The zygotes by generation and variables. Those of generation 0 are shared."""
_generations = itertools.count(1)
_lock = threading.Lock()


def new_generation() -> int:
    """A new generation number, for zygotes that only one measurement uses."""
    return next(_generations)


def pids() -> set[int]:
    """The process ids of all zygotes."""
    with _lock:
        return {zygote.pid for zygote in _zygotes.values()}


def end_generation(generation: int) -> None:
    """Ends the zygotes of a generation, which no other measurement uses; those of generation 0 stay."""
    if not generation:
        return
    with _lock:
        for key in [key for key in _zygotes if key[0] == generation]:
            _zygotes.pop(key).close()


def end_unneeded(environment: Mapping[str, str]) -> None:
    """Ends the shared zygotes of other environments than this one, unless their children are in use.

    Otherwise a notebook's kernel would keep one for every combination of variables that was ever measured.
    """
    needed = (0, frozenset(_early(environment).items()))
    with _lock:
        for key, zygote in list(_zygotes.items()):
            if key[0] == 0 and key != needed and not zygote.is_busy:
                _zygotes.pop(key).close()


def start(
    line: Connection, environment: Mapping[str, str], generation: int, check: Callable[[], None]
) -> ForkedChild:
    """Starts a measuring process, which reads its `Setup` from `line`; raises an OSError if that fails.

    `check` is called while torch is imported, and may raise.
    """
    early = _early(environment)
    for _ in range(2):  # a zygote may have been killed, which shows only when it is asked to fork
        zygote = _zygote(early, generation)
        try:
            process = zygote.fork(line, check)
            if process.pid:
                return process
            process.close()
        except OSError:
            if zygote.is_alive:  # others use it: this process is out of files or memory
                raise
        zygote.close()
    raise OSError("the process that imports torch ends at once")


def prepare(environment: Mapping[str, str], generation: int) -> None:
    """Starts the zygote of an environment in advance, so that it imports torch in the background."""
    with contextlib.suppress(OSError):  # `start` tries again, and reports the error
        _zygote(_early(environment), generation)


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(READ_LATE)}


def _zygote(early: Mapping[str, str], generation: int) -> Zygote:
    with _lock:
        key = (generation, frozenset(early.items()))
        zygote = _zygotes.get(key)
        if zygote is None or not zygote.is_alive:
            zygote = Zygote(early)
            _zygotes[key] = zygote
        return zygote


# ---------------------------------------------------------------- in the zygote


def serve(descriptor: int) -> None:
    """Forks a child for each request and reports its exit. Ends with all children when the parent is gone."""
    if ON_LINUX:  # elsewhere a process that has imported torch must not fork
        importlib.import_module(PRELOAD)
    _Server(socket.socket(fileno=descriptor)).run()


class _Server:
    """The loop of a zygote: it waits for requests, and for its children to end."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._ended, self._wake = os.pipe()
        os.set_blocking(self._ended, False)
        os.set_blocking(self._wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake)
        self._children: dict[int, int] = {}  # the status pipe of each, by process id
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)
        self._selector.register(self._ended, selectors.EVENT_READ)

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._requests:
                    self._fork()
                else:
                    self._tell_ends()

    def _fork(self) -> None:
        request, descriptors, *_ = socket.recv_fds(self._requests, 1, 2)
        if not request:
            self._end_all()
        line, status = descriptors
        try:
            pid = os.fork()
        except OSError as problem:  # there are too many processes: the existing ones go on
            pid = -(problem.errno or errno.EAGAIN)
        if pid == 0:
            self._leave(status)
            _become(Connection(line))
        os.close(line)
        with contextlib.suppress(BrokenPipeError):  # the parent no longer waits for this child
            os.write(status, _NUMBER.pack(pid))
        if pid > 0:
            self._children[pid] = status
        else:
            os.close(status)

    def _leave(self, status: int) -> None:
        """Closes the zygote's files and resets its signal handlers in a new child."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for file in (self._requests.detach(), self._ended, self._wake, status, *self._children.values()):
            os.close(file)

    def _tell_ends(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._ended, 1 << 12)
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            pipe = self._children.pop(pid, None)
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # the parent has closed its end
                    os.write(pipe, _NUMBER.pack(os.waitstatus_to_exitcode(status)))
                os.close(pipe)

    def _end_all(self) -> None:
        """Kills every child with its process group, even if it is suspended: the parent is gone."""
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        os._exit(0)


# ---------------------------------------------------------------- in a measuring process


def _become(line: Connection) -> None:
    """Prepares this process, then answers questions. Sends a failure to the parent. Never returns."""
    os.setsid()  # first of all: the group that is killed at the end must not be the zygote's
    try:
        setup = line.recv()
        if os.path.isdir(os.path.dirname(setup.log)):  # a parent that has given up has removed it
            _prepare(setup)
            lookup.load(SERVE)(line)
    except BaseException as problem:  # whatever it is, the parent must learn of it
        traceback.print_exception(problem, file=sys.stderr)
        sys.stderr.flush()
        with contextlib.suppress(OSError):
            line.send(failures.explain(problem))
    finally:
        os.killpg(0, signal.SIGKILL)  # this process and everything it started, at once


def _prepare(setup: Setup) -> None:
    if ON_LINUX:
        die_with_parent()
        os.register_at_fork(after_in_child=die_with_parent)
        with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
            file.write("perfkit.worker")
    with open(setup.log, "ab") as output:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(setup.environment)
    os.environ.pop("MPLBACKEND", None)  # a notebook sets it for itself
    tempfile.tempdir = None  # TMPDIR has changed
    os.chdir(setup.folder)
    sys.path[:] = setup.paths
    sys.modules["__main__"] = types.ModuleType("__main__")  # workers must not import the zygote's
    # Loader workers start as in any script, but not by the server of Python 3.14: it outlives what is killed.
    default = multiprocessing.get_all_start_methods()[0]
    multiprocessing.set_start_method("fork" if default == "forkserver" else None, force=True)
    warnings.simplefilter("ignore")


def die_with_parent() -> None:
    """Has the kernel kill this process when its parent ends, even while it is suspended."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
