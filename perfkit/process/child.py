"""Measuring processes: start, ask, cancel, time out, end with all they started; one at a time on a device."""

import contextlib
import math
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing import connection as connections
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import filelock
import psutil

from perfkit import machine
from perfkit.errors import Cancelled, RunFailed
from perfkit.machine import cores, gpus
from perfkit.process import Answer, failures, server

OnProgress = Callable[[str], None]
"""Called with the phase."""

POLL_S = 0.1
COLLECT_S = 1.5
"""How long the failures of other ranks are waited for, to find the one that caused them."""
GRACE_S = 3.0
LOG_BYTES = 20_000
"""How much of the end of a log is read."""
EVERYTHING = "the cores and all GPUs"
"""What a script locks, whose device shows only when it runs."""


class Conversation(contextlib.AbstractContextManager["Conversation"]):
    """Asks a process, or all ranks of a training: each gets the question, all must answer, rank 0 counts.

    `on_progress` is called from the thread that asks; `cancelled` is set from any thread to end what is under
    way; `timeout_s` is how long each answer may take.
    """

    def __init__(
        self, on_progress: OnProgress, cancelled: threading.Event | None, timeout_s: float | None = None
    ) -> None:
        self.on_progress, self.cancelled, self.timeout_s = on_progress, cancelled, timeout_s
        self.pids: list[int] = []
        """The leaders of its process groups."""
        self.lines: list[Connection] = []
        """To each rank."""

    def events(self) -> Iterator[tuple[int, str | Answer | RunFailed]]:
        """What ranks have sent, waiting for at most some time; why one has ended."""
        # Before it is waited for what they have sent; their loader workers keep the lines open.
        deaths = [self.death(rank) for rank in range(len(self.lines))]
        ready = connections.wait([line for line in self.lines if not line.closed], POLL_S)
        for rank, (line, death) in enumerate(zip(self.lines, deaths, strict=True)):
            try:
                if line in ready:
                    yield rank, line.recv()
                    continue
            except (EOFError, OSError):
                time.sleep(POLL_S)  # its process is about to end
            if death:
                yield rank, death

    def death(self, rank: int) -> RunFailed | None:
        """Why a rank has ended; None while its process runs."""
        raise NotImplementedError

    def cause(self, rank: int, failure: RunFailed) -> RunFailed:
        """What is to be raised for the failure of a rank."""
        return failure

    def stop(self) -> None:
        """Ends all processes and everything they started; returns when nothing of it is left."""
        raise NotImplementedError

    def ask(self, question: str, **arguments: Any) -> Any:
        """The answer to a question (`Procedures.answer`); progress goes to `on_progress`.

        Raises `RunFailed` where a process failed, died or took too long (see `RunFailed.original`),
        `Cancelled` where that was set.
        """
        for line in self.lines:
            with contextlib.suppress(OSError):  # it has ended: `events` says so
                line.send((question, arguments))
        answers: dict[int, object] = {}
        until = time.monotonic() + (self.timeout_s or math.inf)
        while len(answers) < len(self.lines):
            _check(self.cancelled)
            if time.monotonic() > until:
                what = f"it took longer than its time limit of {self.timeout_s:.0f} s"
                raise RunFailed(what, "Allow it more time, or let it do less: a smaller preset or model")
            for rank, event in self.events():
                if isinstance(event, Answer):
                    answers[rank] = event.value
                elif isinstance(event, RunFailed):
                    raise self.cause(rank, event).original()
                elif rank == 0:
                    self.on_progress(event)
        return answers[0]

    def __exit__(self, *_: object) -> None:
        self.stop()


class Child(Conversation):
    """A measuring process for each rank, each with its loader workers in a process group of its own.

    `environment` holds variables besides those of this process, such as `Recipe.environment()`; the others
    are those of a `Conversation`, and what `ask` raises is raised here too.
    """

    def __init__(
        self,
        on_progress: OnProgress = lambda phase: None,
        cancelled: threading.Event | None = None,
        timeout_s: float | None = None,
        environment: Mapping[str, str] | None = None,
        ranks: int = 1,
    ) -> None:
        super().__init__(on_progress, cancelled, timeout_s)
        self.folder = Path(tempfile.mkdtemp(prefix="perfkit-"))
        """Its temporary files; removed with whatever a killed process leaves there."""
        self._processes: list[BaseProcess] = []
        on_progress("importing torch")
        try:
            for variables in _rank_variables(ranks):
                _check(cancelled)
                self._launch({**(environment or {}), **variables})
        except BaseException:
            self.stop()
            raise

    def _launch(self, variables: dict[str, str]) -> None:
        ours, theirs = Pipe()
        defaults = {
            "TORCHINDUCTOR_CACHE_DIR": str(machine.data_folder() / "cache" / "inductor"),
            # Else gloo resolves the host's name, which may be unknown.
            "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
        }
        variables = {**defaults, **os.environ, **variables, "TMPDIR": str(self.folder)}
        try:
            process = server.start(theirs, str(self._log(len(self.lines))), variables)
        except Exception as problem:
            what = f"no measuring process could be started: {problem!r}"
            raise RunFailed(what, "Run `perfkit doctor`: it says whether torch can be imported") from problem
        finally:
            theirs.close()
        self.lines.append(ours)
        self._processes.append(process)
        self.pids.append(process.pid or 0)

    def _log(self, rank: int) -> Path:
        return self.folder / f"rank{rank}.log"

    def death(self, rank: int) -> RunFailed | None:
        process = self._processes[rank]
        if process.is_alive():
            return None
        return failures.explain_exit(process.exitcode, self.log(rank).rpartition("\n")[2])

    def cause(self, rank: int, failure: RunFailed) -> RunFailed:
        """The failure that caused the others: when a rank ends, those that lose it fail too."""
        failed, until = {rank: failure}, time.monotonic() + COLLECT_S
        while time.monotonic() < until and len(failed) < len(self.lines):
            for other, more in self.events():
                if isinstance(more, RunFailed):
                    failed.setdefault(other, more)
        rank = min(failed, key=lambda each: bool(failures.LOST_RANK.search(failed[each].what)))
        if len(self.lines) > 1:
            failed[rank].what = f"rank {rank} of {len(self.lines)}: {failed[rank].what}"
        return failed[rank]

    def log(self, rank: int = 0) -> str:
        """The last lines that a rank printed."""
        path = self._log(rank)
        written = path.read_bytes()[-LOG_BYTES:] if path.is_file() else b""
        return written.decode(errors="replace").strip()

    def stop(self) -> None:
        for line, pid, process in zip(self.lines, self.pids, self._processes, strict=True):
            line.close()
            end_tree(pid)
            process.join(GRACE_S)
        shutil.rmtree(self.folder, ignore_errors=True)


def call(
    place: str,
    *arguments: Any,
    timeout_s: float | None = None,
    cancelled: threading.Event | None = None,
) -> Any:
    """Calls the function at `module:name` in a fresh process, which ends with the call; raises as `ask` does.

    The module is not imported here; arguments and result are pickled.
    """
    with Child(cancelled=cancelled, timeout_s=timeout_s) as child:
        return child.ask("call", place=place, arguments=arguments)


def _check(cancelled: threading.Event | None) -> None:
    if cancelled and cancelled.is_set():
        raise Cancelled("stopped on request")


# ---------------------------------------------------------------- the end


def end_tree(pid: int) -> None:
    """Terminates a process group, then kills what is left of it and of what it started.

    Resource trackers of multiprocessing come last: they end by themselves, and remove shared semaphores.
    """
    tree = gpus.process_tree(pid)
    _signal_group(pid, signal.SIGTERM)
    _await(tree[:1])
    members = [*tree, *cores.members([pid])]  # also those whose parents have ended
    for member in members:
        with contextlib.suppress(psutil.Error):
            if not any("resource_tracker" in word for word in member.cmdline()):
                member.kill()
    _await(members)
    _signal_group(pid, signal.SIGKILL)
    _await(members)


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _await(processes: Sequence[psutil.Process]) -> None:
    until = time.monotonic() + GRACE_S
    while any(_runs(process) for process in processes) and time.monotonic() < until:
        time.sleep(0.002)


def _runs(process: psutil.Process) -> bool:
    """Whether it has not ended. One whose parent died first may stay a zombie for seconds."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _rank_variables(ranks: int) -> list[dict[str, str]]:
    """Torchrun's variables for each rank."""
    if ranks == 1:
        return [{}]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{**world, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


# ---------------------------------------------------------------- one measurement at a time


@contextlib.contextmanager
def device_lock(
    device: str, cancelled: threading.Event | None = None, on_wait: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Waits until no other measurement uses a device, as torch names it, or `EVERYTHING`, and holds it.

    `on_wait` is called repeatedly meanwhile; raises `Cancelled` once that is set, from any thread. The
    variable PERFKIT_LOCKS names another folder for the locks.
    """
    # One folder for all notebooks, checkouts and shells of a user.
    plain = Path(tempfile.gettempdir(), f"perfkit-locks-{os.getuid()}")
    folder = Path(os.environ.get("PERFKIT_LOCKS") or plain)
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        for name in lock_names(device):
            lock = filelock.FileLock(folder / f"{name}.lock")
            while not lock.is_locked:
                try:
                    lock.acquire(timeout=POLL_S)
                except filelock.Timeout:
                    _check(cancelled)
                    on_wait()
            stack.callback(lock.release)
        yield


def lock_names(device: str) -> list[str]:
    """What a measurement on a device must hold, in the order in which everybody takes it."""
    gpus = [gpu["uuid"] for gpu in machine.facts()["gpus"] if gpu.get("uuid")]
    if device == EVERYTHING:
        return ["cores", *sorted(gpus)]
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return ["cores"]
    # CUDA_VISIBLE_DEVICES renumbers the GPUs, by index or UUID.
    visible = filter(None, map(str.strip, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))
    chosen = dict(enumerate(visible)).get(int(index or 0), index or "0")
    found = [uuid for at, uuid in enumerate(gpus) if chosen == str(at) or uuid.startswith(chosen)]
    return found[:1] or [f"gpu-{chosen}"]
