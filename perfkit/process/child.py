"""Child processes: start, ask, cancel, time out, and end with everything they started."""

from __future__ import annotations

import collections
import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec
import psutil

from perfkit import machine
from perfkit.errors import Cancelled, RunFailed
from perfkit.process import fork
from perfkit.worker import failures, messages
from perfkit.worker.messages import Command

A = TypeVar("A")
Progress = Callable[[str, float], None]
"""Called with the phase and how much of it is done (0 to 1)."""

POLL_S = 0.1
ALLOCATOR = {
    "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=4294967296"
}
"""glibc adapts its threshold for returning memory to what happened before, so that equal processes train at
different speeds for good: by 4 to 6% (standard deviation of 6 processes, small conv net, two cores), by 0.6%
with these settings; by 4.7% and 2.1% (6 pairs of two small scripts that are watched)."""
_GRACE_S = 3.0


class Child:
    """One measuring process and its loader workers, in a process group of their own.

    Args:
        on_progress: called from the thread that asks, with the phase and its fraction.
        cancelled: set from any thread to end what is under way.
        deadline: `time.monotonic()` at which waiting ends; None for no limit.
    """

    def __init__(
        self,
        on_progress: Progress = lambda phase, fraction: None,
        cancelled: threading.Event | None = None,
        deadline: float | None = None,
    ) -> None:
        self._on_progress = on_progress
        self.on_steps: Callable[[float, int], None] = lambda step_s, samples_per_step: None
        """Called before `on_progress` where steps ended since: their mean, and the samples of each."""
        self._cancelled = cancelled or threading.Event()
        self.deadline = deadline
        self.started = time.time()
        """When the process started. A forked one counts as started earlier, by the imports it skips."""
        self.log: collections.deque[str] = collections.deque(maxlen=200)
        self._events: queue.Queue[messages.AnyEvent | None] = queue.Queue()
        # Removed with whatever a killed child leaves there.
        self._folder = tempfile.mkdtemp(prefix="perfkit-")
        on_progress("importing torch", 0.0)
        try:
            self._process = self._start()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        if isinstance(self._process, fork.Forked):
            self.started = time.time() - self._process.imports_s
        threading.Thread(target=self._read_events, daemon=True).start()
        self._log_reader = threading.Thread(target=self._read_log, daemon=True)
        self._log_reader.start()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        """The leaders of its process groups."""
        return [self.pid]

    def _start(self) -> subprocess.Popen[str] | fork.Forked:
        environ = child_environment() | {"TMPDIR": self._folder}
        with contextlib.suppress(fork.ForkUnavailable):
            return fork.start(environ, self._cancelled)
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "perfkit.worker"], text=True, encoding="utf-8", errors="replace",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ,
            # A session of its own: Ctrl-C must not reach the child, and all of it can be ended at once.
            start_new_session=True, creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )  # fmt: skip

    def sibling(self) -> Child:
        """Another child with the same deadline, cancelled together with this one."""
        return Child(cancelled=self._cancelled, deadline=self.deadline)

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):  # a line cut off by a crash
                self._events.put(messages.decode_event(line))
        self._events.put(None)

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line.rstrip("\n"))

    def ask(self, command: Command[A]) -> A:
        """Gives one command and waits for its answer; progress goes to `on_progress` meanwhile.

        Raises:
            RunFailed: the child failed, died, or took too long.
            Cancelled: `cancelled` was set.
        """
        self.send(command)
        while (answer := self.receive(command)) is None:
            pass
        return answer

    def send(self, command: Command[A]) -> None:
        """Gives one command."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it is dead: the reason is in the events, or in its exit status
            self._process.stdin.write(messages.encode(command))
            self._process.stdin.flush()

    def receive(self, command: Command[A], wait_s: float = POLL_S) -> A | None:
        """The answer to a command that was given, if it comes within some time; raises as `ask` does."""
        self._check_cancelled()
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise self._too_late()
        try:
            event = self._events.get(timeout=wait_s)
        except queue.Empty:
            return None
        match event:
            case None:
                self._events.put(None)  # for whoever asks next
                raise self._death()
            case messages.Progress(phase, done, total, step_s, samples_per_step):
                if step_s:
                    self.on_steps(step_s, samples_per_step)
                self._on_progress(phase, done / max(1, total))
            case messages.Failure():
                raise failures.as_error(event)
            case messages.Answer(value):
                try:
                    return msgspec.convert(value, command.answer)
                except msgspec.ValidationError as problem:
                    what = f"the measuring process gave an unreadable answer: {problem}"
                    raise RunFailed(what, "Report it, with the command that caused it") from None
        return None

    def _too_late(self) -> RunFailed:
        return RunFailed(
            "the run took longer than its time limit", "Raise --timeout, or use a smaller preset"
        )

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled("stopped on request")

    def _death(self) -> RunFailed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        self._log_reader.join(_GRACE_S)
        last_line = next((line.strip() for line in reversed(self.log) if line.strip()), "")
        return failures.as_error(failures.explain_exit(self._process.returncode, last_line))

    def stop(self) -> None:
        """Ends the child and everything it started; returns when nothing of it is left."""
        if self._process.stdin:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.close()  # the child ends its whole group when its input ends
        end_tree(self._process)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def end_tree(process: subprocess.Popen[str] | fork.Forked) -> None:
    """Terminates a process group, then kills what is left of it and of what it started."""
    tree = machine.process_tree(process.pid)
    _signal_group(process.pid, "SIGTERM")
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    _signal_group(process.pid, "SIGKILL")
    for member in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()
    until = time.monotonic() + _GRACE_S
    while any(_runs(member) for member in tree) and time.monotonic() < until:
        time.sleep(0.005)


def _runs(process: psutil.Process) -> bool:
    """Whether it has not ended. One whose parent died first may stay a zombie for seconds."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _signal_group(pid: int, name: str) -> None:
    if os.name == "posix":  # Windows has no such groups: the process ends when its input ends, or is killed
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.Signals[name])


def child_environment() -> dict[str, str]:
    """The child's environment: threads for the usable cores, caches kept, this perfkit importable."""
    inherited = {key: value for key, value in os.environ.items() if key != "MPLBACKEND"}
    cache = machine.cache_folder().absolute() / "inductor"
    defaults = {
        **ALLOCATOR,
        # libgomp's threads spin at barriers, which takes the core from whatever they wait for. Photos at
        # quick, two cores: 40 samples/s spinning and 87 passive beside a busy process, 94 and 134 with a
        # loader worker.
        "OMP_WAIT_POLICY": "PASSIVE",
        # Where a quota is below the visible cores, torch would start too many threads (metrics §4).
        "OMP_NUM_THREADS": str(machine.usable_cores()),
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "PERFKIT_DATA": str(machine.data_folder().absolute()),
        "PYTHONWARNINGS": "ignore",
    }
    return defaults | inherited | {"PYTHONPATH": machine.import_path(), "PYTHONUNBUFFERED": "1"}
