"""Child processes: start, ask, cancel, time out, and say in words how one ended."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from perfkit import machine
from perfkit.errors import Cancelled, RunFailed
from perfkit.process import fork

Progress = Callable[[str, float], None]
"""Told the phase and how much of it is done (0 to 1)."""

_GRACE_S = 3.0
_POLL_S = 0.1


@contextlib.contextmanager
def turn(
    device: str, cancelled: threading.Event | None = None, on_wait: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Waits for its turn on a device: two runs never share one, whatever notebook or shell they are from.

    Args:
        device: the device's name.
        cancelled: set from any thread to give up.
        on_wait: called again and again while another run holds the device.

    Raises:
        Cancelled: `cancelled` was set.
    """
    lock = filelock.FileLock(machine.runs_folder() / f"{device.replace(':', '-')}.lock")
    held = contextlib.ExitStack()
    while True:
        if cancelled and cancelled.is_set():
            raise Cancelled("stopped on request")
        try:
            held.enter_context(lock.acquire(timeout=_POLL_S))
        except filelock.Timeout:
            on_wait()
            continue
        except OSError:
            pass  # a folder that can't be written to: then nothing is stored there either, and none queues
        break
    with held:
        yield


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
        self._cancelled = cancelled or threading.Event()
        self.deadline = deadline
        self.started = time.time()
        """When the process started; had to start, if it is a forked one, for what it found imported."""
        self.log: collections.deque[str] = collections.deque(maxlen=200)
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._folder = tempfile.mkdtemp(prefix="perfkit-")  # what it leaves there when it is killed goes too
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
        """Of the child itself."""
        return self._process.pid

    def _start(self) -> subprocess.Popen[str] | fork.Forked:
        environ = child_environment() | {"TMPDIR": self._folder}
        with contextlib.suppress(fork.NotThere):
            return fork.start(environ, self._cancelled)
        # A session of its own: Ctrl-C must not reach the child, and all of it can be ended at once.
        own_group: dict[str, Any] = (
            {"start_new_session": True}
            if os.name == "posix"
            else {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}  # type: ignore[attr-defined,unused-ignore]
        )
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "perfkit.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=environ,
            **own_group,
        )

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):  # a line cut off by a crash
                self._events.put(json.loads(line))
        self._events.put(None)

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line.rstrip("\n"))

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Gives one command and waits for its answer; progress goes to `on_progress` meanwhile.

        Raises:
            RunFailed: the child failed, died, or took too long.
            Cancelled: `cancelled` was set.
        """
        self.tell(do, arguments)
        while (answer := self.answer(do)) is None:
            pass
        return answer

    def tell(self, do: str, arguments: Mapping[str, Any]) -> None:
        """Gives one command."""
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"do": do, "with": arguments}) + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, OSError):
            pass  # it is dead: what it said last, or how it ended, comes out of the queue

    def answer(self, do: str, wait_s: float = _POLL_S) -> dict[str, Any] | None:
        """The answer to a command that was given, if it comes within some time; raises as `ask` does."""
        if self._cancelled.is_set():
            raise Cancelled("stopped on request")
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise RunFailed(
                "the run took longer than its time limit", "Raise --timeout, or use a smaller preset"
            )
        try:
            event = self._events.get(timeout=wait_s)
        except queue.Empty:
            return None
        if event is None:
            self._events.put(None)  # dead it stays, for whoever asks next
            raise self._death()
        if event["event"] == "progress":
            self._on_progress(event["phase"], event["done"] / max(1, event["total"]))
        elif event["event"] == "error":
            raise failure(event)
        return event if event["event"] == do else None

    def _death(self) -> RunFailed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        self._log_reader.join(_GRACE_S)
        code = self._process.returncode
        last = next((line.strip() for line in reversed(self.log) if line.strip()), "")
        return ended(code, last)

    def stop(self) -> None:
        """Ends the child and everything it started; returns when nothing of it is left."""
        with contextlib.suppress(OSError, ValueError):
            assert self._process.stdin is not None
            self._process.stdin.close()  # the child ends its whole group when its input ends
        end_tree(self._process)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Team:
    """The ranks of one training on this machine, asked as one child: all get the command, the first answers.

    Args:
        children: one process a rank, the first of them that which is measured.
    """

    def __init__(self, children: Sequence[Child]) -> None:
        self.children = list(children)
        self.started = children[0].started

    @property
    def deadline(self) -> float | None:
        """As a child's."""
        return self.children[0].deadline

    @deadline.setter
    def deadline(self, until: float | None) -> None:
        for child in self.children:
            child.deadline = until

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """As a child's; the other ranks' answers are at `others`.

        Raises:
            RunFailed: a rank failed, died, or took too long; then all have ended.
            Cancelled: the run was cancelled.
        """
        return self.ask_each(do, [arguments] * len(self.children))

    def ask_each(self, do: str, arguments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """As `ask`, with arguments of its own for each rank."""
        for child, given in zip(self.children, arguments, strict=True):
            child.tell(do, given)
        answers: dict[int, dict[str, Any]] = {}
        while len(answers) < len(self.children):
            for at, child in enumerate(self.children):
                try:
                    found = None if at in answers else child.answer(do, _POLL_S / len(self.children))
                except RunFailed as problem:
                    raise self._blame(do, at, problem) from None
                if found is not None:
                    answers[at] = found
        first, *others = (answers[at] for at in sorted(answers))
        return {**first, "others": others}

    def _blame(self, do: str, at: int, problem: RunFailed) -> RunFailed:
        """The failure that was first: when a rank ends, the others fail too, as they lose it."""
        found, until = {at: problem}, time.monotonic() + _ECHO_S
        while time.monotonic() < until and len(found) < len(self.children):
            for other, child in enumerate(self.children):
                if other not in found:
                    try:
                        child.answer(do, _POLL_S)
                    except RunFailed as more:
                        found[other] = more
        self.stop()
        own = {rank: one for rank, one in found.items() if not _ECHO.search(one.what)} or found
        rank, first = min(own.items())
        told = RunFailed(f"rank {rank} of {len(self.children)}: {first.what}", first.remedy)
        told.kind = first.kind
        return told

    def stop(self) -> None:
        """Ends every rank."""
        for child in self.children:
            child.stop()


_ECHO_S = 1.5
_ECHO = re.compile(
    r"gloo|NCCL|c10d|Connection (closed|reset)|DistBackend|ProcessGroup|TCPStore", re.IGNORECASE
)


def team(first: Child, described: Mapping[str, Any], ranks: int, nodes: Nodes | None = None) -> Team:
    """Starts the other ranks of this machine beside a child that has loaded the workload, and joins them.

    Args:
        first: the child.
        described: the arguments of its command `describe`.
        ranks: of all machines together.
        nodes: the machines; this one alone if None.
    """
    nodes = nodes or Nodes()
    here = ranks // nodes.count
    made = Team([first])
    try:
        for _ in range(here - 1):
            made.children.append(Child(lambda *_: None, first._cancelled, first.deadline))
        if more := made.children[1:]:
            Team(more).ask("describe", **described)
        host, port = nodes.address()
        joined = [
            {"rank": nodes.index * here + at, "local": at, "here": here, "ranks": ranks, "host": host,
             "port": port} for at in range(here)
        ]  # fmt: skip
        made.ask_each("join", joined)
    except BaseException:
        made.stop()
        raise
    return made


@dataclass
class Nodes:
    """The machines that train together: how many, which one this is, where they meet."""

    count: int = 1
    index: int = 0
    rendezvous: str = ""
    _meetings: int = 0

    def address(self) -> tuple[str, int]:
        """Host and port of the next meeting: a free port on this machine alone; else one after the other."""
        if self.count == 1:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                return "127.0.0.1", free.getsockname()[1]
        host, _, port = self.rendezvous.rpartition(":")
        self._meetings += 1
        return host, int(port) + self._meetings - 1


def failure(event: dict[str, Any]) -> RunFailed:
    """The error that a child reported."""
    problem = RunFailed(event["what"], event["remedy"])
    problem.kind = event["kind"]
    return problem


def ended(code: int | None, last_line: str = "") -> RunFailed:
    """How a process ended that gave no reason itself."""
    name = signal.Signals(-code).name if code is not None and code < 0 else ""
    said = f" (it last said: {last_line})" if last_line else ""
    if name == "SIGKILL":
        problem = RunFailed(
            "the measuring process was killed, most likely because memory ran out",
            "Lower batch_size or workers, or give the machine (or container) more memory",
        )
        problem.kind = "out of memory"
        return problem
    if name == "SIGBUS":
        return RunFailed(
            "the measuring process died of a bus error: shared memory is full",
            "Enlarge /dev/shm (docker run --shm-size=8g), or lower workers or prefetch_factor",
        )
    how = f"was ended by {name}" if name else f"ended with exit status {code}"
    return RunFailed(
        f"the measuring process {how}{said}", "Run `perfkit doctor`; try workers=0 to see the cause"
    )


def end_tree(process: subprocess.Popen[str] | fork.Forked) -> None:
    """Terminates a process group, then kills what is left of it."""
    import psutil

    try:
        tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        tree = []
    _signal_group(process, terminate=True)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    _signal_group(process, terminate=False)
    for member in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()
    psutil.wait_procs(tree, timeout=_GRACE_S)


def _signal_group(process: subprocess.Popen[str] | fork.Forked, terminate: bool) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGTERM if terminate else signal.SIGKILL)
        elif process.poll() is None:
            process.terminate() if terminate else process.kill()


def child_environment() -> dict[str, str]:
    """The child's environment: threads for the usable cores, caches kept, this perfkit importable."""
    here = str(Path(__file__).parents[2])
    inherited = {key: value for key, value in os.environ.items() if key != "MPLBACKEND"}
    # What a notebook has put on its path, the child finds too; its own library comes first as usual.
    own = {*sysconfig.get_paths().values(), here}
    added = [path for path in sys.path if path and path not in own and "lib-dynload" not in path]
    paths = [here, *filter(None, [inherited.get("PYTHONPATH")]), *added]
    cache = machine.cache_folder().absolute() / "inductor"
    # A quota below the visible cores makes torch start too many threads (metrics §4).
    # glibc moves its threshold for giving memory back by what happened before, so that equal processes train
    # at speeds that differ for good: by 4 to 6% (standard deviation of 6 processes, small conv net, two
    # cores), by 0.6% with these.
    kept = "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=4294967296"
    defaults = {
        "GLIBC_TUNABLES": kept,
        "OMP_NUM_THREADS": str(machine.usable_cores()),
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "PERFKIT_DATA": str(machine.data_folder().absolute()),
        "PYTHONWARNINGS": "ignore",
    }
    return defaults | inherited | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
