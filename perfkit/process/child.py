"""Measuring processes: start, ask, cancel, time out, and end with everything they started."""

import contextlib
import functools
import os
import pickle
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing import connection as connections
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil

from perfkit import machine
from perfkit.errors import RunFailed
from perfkit.process import inside, server
from perfkit.process.conversation import POLL_S, Conversation, OnProgress
from perfkit.worker import failures, messages
from perfkit.worker.messages import AnyEvent, Question

_GRACE_S = 3.0
_LOG_BYTES = 20_000
"""How much of the end of a log is read."""


@dataclass
class _Process:
    process: BaseProcess
    connection: Connection
    started: Future[None]

    @property
    def pid(self) -> int:
        return self.process.pid or 0


class Child(Conversation):
    """A measuring process for each rank, each with its loader workers in a process group of its own.

    Args:
        on_progress: called from the thread that asks, with the phase and its fraction.
        cancelled: set from any thread to end what is under way.
        deadline: `time.monotonic()` at which waiting ends; None for no limit.
        environment: variables besides those of this process, such as `Recipe.environment()`.
        ranks: how many train together.
        task: what it does; by default it answers questions about a training.

    Raises:
        RunFailed: no process can be started.
        Cancelled: `cancelled` was set meanwhile.
    """

    def __init__(
        self,
        on_progress: OnProgress = lambda phase, fraction: None,
        cancelled: threading.Event | None = None,
        deadline: float | None = None,
        environment: Mapping[str, str] | None = None,
        ranks: int = 1,
        task: Callable[[Connection], None] = inside.serve,
    ) -> None:
        super().__init__(on_progress, cancelled, deadline)
        self.world = ranks
        self.folder = Path(tempfile.mkdtemp(prefix="perfkit-"))
        """Its temporary files; removed with whatever a killed process leaves there."""
        self._processes: list[_Process] = []
        on_progress("importing torch", 0.0)
        variables = _rank_variables(ranks) if ranks > 1 else [{}]
        try:
            for rank, more in enumerate(variables):
                self._processes.append(self._launch(task, rank, dict(environment or {}), more))
            self._wait_until_started()
        except BaseException:
            self.stop()
            raise

    def _launch(
        self, task: Callable[[Connection], None], rank: int, early: dict[str, str], late: dict[str, str]
    ) -> _Process:
        ours, theirs = Pipe()
        cache = machine.cache_folder().absolute() / "inductor"
        environment = {
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            **server.variables(),
            **early,
            **late,
            "TMPDIR": str(self.folder),
        }
        environment.pop("MPLBACKEND", None)  # a notebook's own
        arguments = (task, theirs, environment, str(self._log(rank)), "perfkit.worker")
        process, started = server.start(inside.run, arguments, early)
        started.add_done_callback(lambda _: theirs.close())
        return _Process(process, ours, started)

    def _wait_until_started(self) -> None:
        starting = [process.started for process in self._processes]
        while starting:
            self.check()
            done, _ = wait(starting, POLL_S)
            for future in done:
                starting.remove(future)
                if problem := future.exception():
                    what = f"no measuring process could be started: {problem!r}"
                    raise RunFailed(what, "Run `perfkit doctor`: it says whether torch can be imported")

    def _log(self, rank: int) -> Path:
        return self.folder / f"rank{rank}.log"

    @property
    def pids(self) -> list[int]:
        """The leaders of its process groups."""
        return [process.pid for process in self._processes]

    def send(self, question: Question) -> None:
        """Gives a question to every rank."""
        for process in self._processes:
            with contextlib.suppress(OSError):  # it has ended: `events` says so
                process.connection.send_bytes(messages.encode(question))

    def events(self, wait_s: float) -> Iterator[tuple[int, AnyEvent | None]]:
        """What ranks have sent, waiting for at most some time; None for one that has ended."""
        lines = {process.connection: rank for rank, process in enumerate(self._processes)}
        ends = {process.process.sentinel: rank for rank, process in enumerate(self._processes)}
        ready = connections.wait([*lines, *ends], wait_s)
        heard = set()
        for line, rank in lines.items():
            if line in ready:
                heard.add(rank)
                try:
                    yield rank, messages.decode_event(line.recv_bytes())
                except (EOFError, OSError):
                    yield rank, None
        # Loader workers hold the connection too: that the process has ended shows earlier.
        yield from ((rank, None) for end, rank in ends.items() if end in ready and rank not in heard)

    def death(self, rank: int) -> RunFailed:
        """Why a rank has ended."""
        process = self._processes[rank].process
        process.join(_GRACE_S)
        last = next((line.strip() for line in reversed(self.log(rank)) if line.strip()), "")
        return failures.as_error(failures.explain_exit(process.exitcode, last))

    def log(self, rank: int = 0) -> list[str]:
        """The last lines that a rank printed."""
        try:
            with open(self._log(rank), "rb") as file:
                file.seek(max(0, os.path.getsize(self._log(rank)) - _LOG_BYTES))
                return file.read().decode(errors="replace").splitlines()
        except OSError:
            return []

    def stop(self) -> None:
        """Ends all processes and everything they started; returns when nothing of it is left."""
        for process in self._processes:
            process.connection.close()
            if not process.started.cancel():
                process.started.add_done_callback(functools.partial(_end, process))
        shutil.rmtree(self.folder, ignore_errors=True)


def call(
    function: Callable[..., Any] | str,
    *arguments: Any,
    timeout_s: float | None = None,
    cancelled: threading.Event | None = None,
) -> Any:
    """Calls a function in a fresh process, which ends with the call.

    Args:
        function: importable by its name; or `module:name`, which is then not imported here.
        arguments: of the function; they are pickled, as is the result.
        timeout_s: how long it may take.
        cancelled: set from any thread to end it.

    Raises:
        RunFailed: it raised, ended its process, or took too long.
        Cancelled: `cancelled` was set.
    """
    deadline = time.monotonic() + timeout_s if timeout_s else None
    task = functools.partial(inside.answer_call, function, arguments)
    with Child(cancelled=cancelled, deadline=deadline, task=task) as child:
        return pickle.loads(child.answer(bytes))


def end_tree(pid: int) -> None:
    """Terminates a process group, then kills what is left of it and of what it started."""
    tree = machine.process_tree(pid)
    _signal_group(pid, "SIGTERM")
    _wait_for(tree[:1])
    _signal_group(pid, "SIGKILL")
    for member in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    _wait_for(tree)


def _end(process: _Process, _: object) -> None:
    if process.pid:
        end_tree(process.pid)
        process.process.join(_GRACE_S)


def _wait_for(processes: list[psutil.Process]) -> None:
    until = time.monotonic() + _GRACE_S
    while any(_runs(process) for process in processes) and time.monotonic() < until:
        time.sleep(0.002)


def _runs(process: psutil.Process) -> bool:
    """Whether it has not ended. One whose parent died first may stay a zombie for seconds."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _signal_group(pid: int, name: str) -> None:
    if os.name == "posix":  # Windows has no such groups: the process ends with its parent, or is killed
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.Signals[name])


def _rank_variables(ranks: int) -> list[dict[str, str]]:
    """Torchrun's variables for each rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    local = "lo0" if sys.platform == "darwin" else "lo"
    shared = {
        "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        # Else gloo resolves the host's name, which may be unknown.
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", local),
    }  # fmt: skip
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
