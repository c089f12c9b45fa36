"""Measuring processes: start, ask, suspend, cancel, time out, end with all that they started."""

import contextlib
import itertools
import math
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import Pipe
from multiprocessing import connection as connections
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from perfkit import machine
from perfkit.errors import RunFailed
from perfkit.process import Answer, Question, failures, zygote
from perfkit.process.locks import check_cancelled
from perfkit.process.tree import Tree

OnProgress = Callable[[str], None]
"""Called with the phase."""

POLL_S = 0.1
COLLECT_S = 1.5
"""How long the failures of other ranks are waited for, to find the one that caused them."""
LOG_BYTES = 20_000
"""How much of the end of a log is read."""


class Conversation(contextlib.AbstractContextManager["Conversation"]):
    """Asks a process, or all ranks of a training: each gets the question, all must answer, rank 0 counts.

    `on_progress` is called from the thread that asks; `cancelled` is set from any thread to end what is under
    way; `timeout_s` is how long each answer may take.
    """

    def __init__(
        self, on_progress: OnProgress, cancelled: threading.Event | None, timeout_s: float | None = None
    ) -> None:
        self.on_progress, self.cancelled, self.timeout_s = on_progress, cancelled, timeout_s
        self.trees: list[Tree] = []
        """Each rank with all that it has started."""
        self.lines: list[Connection] = []
        """To each rank."""
        self._numbers = itertools.count(1)

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

        Raises `RunFailed` where a process failed, died or took too long (or what its `given` is),
        `Cancelled` where that was set.
        """
        asked = Question(next(self._numbers), question, arguments)
        for line in self.lines:
            with contextlib.suppress(OSError):  # it has ended: `events` says so
                line.send(asked)
        self.resume()
        answers: dict[int, object] = {}
        until = time.monotonic() + (self.timeout_s or math.inf)
        while len(answers) < len(self.lines):
            check_cancelled(self.cancelled)
            if time.monotonic() > until:
                what = f"it took longer than its time limit of {self.timeout_s:.0f} s"
                raise RunFailed(what, "Allow it more time, or let it do less: a smaller preset or model")
            for rank, event in self.events():
                if isinstance(event, Answer):
                    if event.number == asked.number:  # else it answers one that was given up
                        answers[rank] = event.value
                elif isinstance(event, RunFailed):
                    failure = self.cause(rank, event)
                    raise failure.given or failure
                elif rank == 0:
                    self.on_progress(event)
        return answers[0]

    # ------------------------------------------------------------ turns

    def suspend(self) -> None:
        """Stops everything that belongs to it, until it is asked again."""
        for tree in self.trees:
            tree.suspend()

    def resume(self) -> None:
        """Lets it go on; the first process of each rank first, which finds what it was asked."""
        for tree in self.trees:
            tree.resume()

    def cpu_s(self) -> float:
        """CPU seconds that it has used."""
        return sum(tree.cpu_s() for tree in self.trees)

    def resident_bytes(self) -> int:
        """Memory of all its processes; pages that they share count for each."""
        return sum(tree.resident_bytes() for tree in self.trees)

    def pids(self) -> set[int]:
        """The numbers of all its processes."""
        return {process.pid for tree in self.trees for process in tree.processes()}

    def __exit__(self, *_: object) -> None:
        self.stop()


class Child(Conversation):
    """A measuring process for each rank, each with its loader workers in a separate session.

    `environment` holds variables besides those of this process, such as `Recipe.environment()`, `generation`
    is that of its zygote; the others are those of a `Conversation`, and what `ask` raises is raised here too.
    """

    def __init__(
        self,
        on_progress: OnProgress = lambda phase: None,
        cancelled: threading.Event | None = None,
        timeout_s: float | None = None,
        environment: Mapping[str, str] | None = None,
        ranks: int = 1,
        generation: int = 0,
    ) -> None:
        super().__init__(on_progress, cancelled, timeout_s)
        self._generation = generation
        self.folder = Path(tempfile.mkdtemp(prefix="perfkit-"))
        """Its temporary files; removed with whatever a killed process leaves there."""
        self._processes: list[zygote.Forked] = []
        on_progress("importing torch")
        try:
            for variables in _rank_variables(ranks):
                check_cancelled(cancelled)
                self._launch({**(environment or {}), **variables})
        except BaseException:
            self.stop()
            raise

    def _launch(self, variables: dict[str, str]) -> None:
        variables = {**environment_of(variables), "TMPDIR": str(self.folder)}
        paths = sys.path if sys.flags.safe_path else [os.getcwd(), *sys.path]
        about = zygote.About(variables, list(paths), os.getcwd(), str(self._log(len(self.lines))))
        ours, theirs = Pipe()
        self.lines.append(ours)
        ours.send(about)
        with theirs:
            try:
                process = zygote.start(theirs, variables, self._generation)
            except OSError as problem:
                self.lines.pop().close()
                what = f"no measuring process could be started: {problem}"
                raise RunFailed(
                    what, "Run `perfkit doctor`: it says whether torch can be imported"
                ) from problem
        self._processes.append(process)
        self.trees.append(Tree(process.pid or 0))

    def _log(self, rank: int) -> Path:
        return self.folder / f"rank{rank}.log"

    def death(self, rank: int) -> RunFailed | None:
        code = self._processes[rank].exit_code()
        if code is None:
            return None
        return failures.explain_exit(code, self.log(rank).rpartition("\n")[2])

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
        return last_lines(self._log(rank))

    def stop(self) -> None:
        for line in self.lines:
            line.close()
        for tree in self.trees:
            tree.end()
        shutil.rmtree(self.folder, ignore_errors=True)


def environment_of(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of a measuring process, with its own in the last place."""
    defaults = {
        "TORCHINDUCTOR_CACHE_DIR": str(machine.data_folder() / "cache" / "inductor"),
        # Else gloo resolves the host's name, which may be unknown.
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
    }
    return {**defaults, **os.environ, **variables}


def last_lines(path: Path) -> str:
    """The end of a log that may be long; empty if there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_BYTES))
        return file.read().decode(errors="replace").strip()


def call(
    place: str, *arguments: Any, timeout_s: float | None = None, cancelled: threading.Event | None = None
) -> Any:
    """Calls the function at `module:name` in a fresh process, which ends with the call; raises as `ask` does.

    The module is not imported here; arguments and result are pickled.
    """
    with Child(cancelled=cancelled, timeout_s=timeout_s) as child:
        return child.ask("call", place=place, arguments=arguments)


def _rank_variables(ranks: int) -> list[dict[str, str]]:
    """Torchrun's variables for each rank."""
    if ranks == 1:
        return [{}]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{**world, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
