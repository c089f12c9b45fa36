"""The processes that a launch has started: compared as one side, or watched; ended whole in either case."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum
from multiprocessing import connection as connections
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
from msgspec import structs

from perfkit.additions.ranks import guardian
from perfkit.additions.ranks.launch import RanksLaunch
from perfkit.additions.ranks.messages import LIMIT, Beat, Hello, Message, State
from perfkit.additions.ranks.patience import HeardRank, Patience
from perfkit.additions.ranks.switches import THREADS, of_script
from perfkit.additions.referee.behaviour import BEHAVIOUR, Behaviour
from perfkit.additions.scripts.watched import TrainsAlone, WatchedScript
from perfkit.additions.shared.settings import Settings
from perfkit.errors import InvalidValue, RunFailed, TrainingEnded
from perfkit.machine import cores
from perfkit.process import Question
from perfkit.process.child import POLL_S
from perfkit.process.locks import check_cancelled
from perfkit.recipe import Recipe
from perfkit.results.schema import Mechanism
from perfkit.worker.messages import TrainingReport

TOLD = "perfkit.additions.ranks.questions:told"  # a question to each rank
LOST_RANK = re.compile(r"(?i)gloo|NCCL|c10d|Connection (closed|reset)|DistBackend|ProcessGroup|TCPStore")
"""How a rank fails because it lost another one."""
_decoder = msgspec.json.Decoder(Message)


class Ending(Enum):
    """How the time of watching has ended."""

    WATCHED = "watched"
    ENDED = "ended"
    FAILED = "failed"
    HANGS = "hangs"
    SILENT = "silent"  # nobody has come


class Meeting:
    """A socket in a private folder, to which each rank comes and says who it is."""

    def __init__(self) -> None:
        usual = tempfile.gettempdir()
        folder = usual if len(os.fsencode(usual)) <= LIMIT.longest_path else "/tmp"
        try:
            self.private = tempfile.TemporaryDirectory(
                prefix="perfkit-", dir=folder, ignore_cleanup_errors=True
            )
        except OSError as problem:
            what = f"ranks cannot meet: {usual} is too long for the path of a socket"
            remedy = "Set TMPDIR to a folder with a shorter path"
            raise InvalidValue(f"{what}, and {folder} cannot be used", remedy) from problem
        self.address = str(Path(self.private.name) / "ranks")
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(self.address)
        self.socket.listen()
        self._lines = list[Connection]()

    def next(self) -> tuple[Hello, Connection] | None:
        """The rank that comes next, and the line to it; None if it is not a rank of this launch."""
        line = Connection(self.socket.accept()[0].detach())
        self._lines.append(line)
        with contextlib.suppress(EOFError, OSError, msgspec.DecodeError):
            if line.poll(LIMIT.word_s):
                return msgspec.json.decode(line.recv_bytes(), type=Hello), line
        return None

    def end(self) -> None:
        """Listens to nobody any more, which ranks notice."""
        for line in self._lines:
            line.close()
        self.socket.close()


class StartedRanks(WatchedScript):
    """The processes that a launch has started; the ranks among them come to its meeting."""

    launch: RanksLaunch

    def _begin(self, settings: Settings) -> subprocess.Popen[bytes]:
        self._meeting = Meeting()
        own = dict(self.launch.settings)
        self.variables |= Recipe().replace(**of_script(own)).environment()
        if THREADS in own:
            self.variables["OMP_NUM_THREADS"] = str(own[THREADS])
        toggles = settings.toggles | of_script(own)
        command = [sys.executable, "-P", guardian.__file__, str(self.folder), self._meeting.private.name]
        self._guardian = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        return self._spawn(replace(settings, toggles=toggles, address=self._meeting.address, ranked=own))

    def stop(self) -> None:
        """Ends the whole tree, whoever started what in it; ranks end as soon as nobody listens to them."""
        self._meeting.end()
        self.resume()
        self.tree.await_end(LIMIT.own_end_s)
        self.tree.end()
        self._process.wait()
        self._guardian.communicate()  # whose input ends, so that it ends whatever was not found
        self._files.cleanup()
        self._meeting.private.cleanup()


class ComparedRanks(StartedRanks):
    """Rank 0 is asked as a script in one process is; the others wait for it, and tell what they know."""

    watcher = "perfkit.additions.ranks.questions:listen"

    def _begin(self, settings: Settings) -> subprocess.Popen[bytes]:
        self._others: dict[int, Connection] = {}  # by rank; that of rank 0 is `line`
        self._come = self._world = 0
        self._times_as_many = 1.0  # samples of all ranks, by those of rank 0
        with socket.create_server(("127.0.0.1", 0)) as free:  # both sides of a comparison are there at a time
            self.variables["PET_MASTER_PORT"] = str(free.getsockname()[1])
        return super()._begin(settings)

    def ask(self, question: str, **arguments: Any) -> Any:
        """What rank 0 answers, with what the others have to add."""
        self._await_ranks()
        answer = super().ask(question, **arguments)
        if question == "train":
            return self._trained(answer)
        if question == "slice":
            return structs.replace(answer, samples=round(answer.samples * self._times_as_many))
        return of_all([answer, *self._others_say(BEHAVIOUR)]) if question == BEHAVIOUR else answer

    def _trained(self, first: TrainingReport) -> TrainingReport:
        told: list[tuple[Any, ...]] = [super().ask(TOLD), *self._others_say(TOLD)]
        samples, losses, proofs = zip(*told, strict=True)
        self._times_as_many = sum(samples) / max(1, first.samples_per_step)
        means = [fmean(each) for each in zip(*losses, strict=False)][: len(first.losses)]
        return structs.replace(first, losses=means, mechanisms=proofs_of_all(proofs))

    def _others_say(self, question: str) -> list[Any]:
        for line in self._others.values():
            with contextlib.suppress(OSError):  # it has ended: its answer is missing
                line.send(Question(0, question, {}))
        told = []
        for rank, line in sorted(self._others.items()):
            said = _said(line, LIMIT.answer_s)
            if said is None:
                said = RunFailed(f"rank {rank} does not answer", "Run the command without perfkit to compare")
            if isinstance(said, RunFailed):
                raise self._of_rank(rank, said)
            told.append(said)
        return told

    def _await_ranks(self) -> None:
        until = time.monotonic() + LIMIT.start_s
        while not self._come or self._come < self._world:
            check_cancelled(self.cancelled)
            if self._process.poll() is not None:
                code = self._process.returncode
                raise self.explained(RunFailed(f"it ended with exit code {code} before all ranks had joined"))
            if time.monotonic() > until:
                what = f"{self.launch.describe()}: its ranks have not joined in {LIMIT.start_s:.0f} s"
                raise RunFailed(what, "Does each call torch.distributed.init_process_group?")
            if connections.wait([self._meeting.socket], POLL_S) and (come := self._meeting.next()):
                self._meet(*come)

    def _meet(self, hello: Hello, line: Connection) -> None:
        if hello.local < hello.world:
            what = f"{hello.local} of {hello.world} ranks run on this machine"
            raise RunFailed(what, "Compare on one machine: no node can suspend the ranks of another")
        self._world = hello.world
        self._come += 1
        if hello.rank:
            self._others[hello.rank] = line
        else:
            self.line = line

    def death(self) -> RunFailed | None:
        if connections.wait([self._meeting.socket], 0):  # all ranks have joined: these are new ones
            what = "it lost a rank, and its agent starts all ranks again"
            return RunFailed(what, "Compare launches without --max-restarts")
        return super().death()

    def _trains_elsewhere(self) -> None:
        """Always None: ranks are processes that the launch has started, so training there is no failure."""

    def explained(self, failure: RunFailed) -> RunFailed:
        """A rank that loses another one fails too: the first failure is that of the other."""
        if isinstance(failure, TrainingEnded):
            return super().explained(failure)
        rank = 0
        is_lost = bool(LOST_RANK.search(failure.what))
        for other, line in self._others.items():
            said = _said(line, LIMIT.collect_s if is_lost else 0.0)
            if isinstance(said, RunFailed):
                rank = other
                failure = said
                is_lost = False
        return self._of_rank(rank, failure)

    def _of_rank(self, rank: int, failure: RunFailed) -> RunFailed:
        failure.what = f"{self.launch.program} failed on rank {rank} of {self._world}: {failure.what}"
        return super().explained(failure)


def _said(line: Connection, seconds: float) -> Any:
    """What a rank has sent; None if it is silent for so long, or has ended."""
    with contextlib.suppress(EOFError, OSError):
        if line.poll(seconds):
            return line.recv()
    return None


def proofs_of_all(told: Sequence[Sequence[Mechanism]]) -> list[Mechanism]:
    """A switch must be in effect on every rank; else the evidence is that of one where it is not."""
    if len(told) == 1:
        return [*told[0]]
    proofs = []
    for of_ranks in zip(*told, strict=True):
        wrong = [rank for rank, proof in enumerate(of_ranks) if not proof.ok]
        where = f"rank {wrong[0]}" if wrong else f"on all {len(told)} ranks"
        text = f"{where}: {of_ranks[wrong[0] if wrong else 0].evidence}"
        proofs.append(structs.replace(of_ranks[0], ok=not wrong, evidence=text))
    return proofs


def of_all(told: Sequence[Behaviour]) -> Behaviour:
    """What the steps of all ranks did together; the time between steps is that of the rank with most."""
    busiest = max(told, key=lambda each: each.marked)
    count = min(len(each.loaded) for each in told)

    def steps(name: str) -> list[tuple[float, ...]]:  # of all ranks, as far as all of them have come
        return list(zip(*(getattr(each, name) for each in told), strict=False))

    changes: dict[str, Any] = {name: list(map(sum, steps(name))) for name in ("loaded", "trained", "values")}
    for name in ("backwards", "weight", "reached"):
        changes[name] = getattr(busiest, name)[:count]
    changes["samples_left_out"] = sum(each.samples_left_out for each in told)
    for name in ("evaluations", "checkpoints", "replaced"):
        changes[name] = sorted(set().union(*(getattr(each, name) for each in told)))
    order = [float(hash(values)) for values in steps("batches")]
    return structs.replace(busiest, **changes, batches=order, losses=list(map(fmean, steps("losses"))))


class WatchedRanks(StartedRanks):
    """Ranks that go on by themselves; each says what it has seen when it is asked."""

    watcher = "perfkit.additions.ranks.rank:listen"

    def _begin(self, settings: Settings) -> subprocess.Popen[bytes]:
        self.ranks: dict[int, HeardRank] = {}  # on this node
        self.told: dict[int, State] = {}  # on all nodes
        self.restarts = 0
        self._read_at = 0.0
        self._patience = Patience(self.ranks)
        self.cpu_times = cores.cpu_times()
        return super()._begin(settings)

    @property
    def world(self) -> int:
        """How many ranks there are to be; 0 while none is known."""
        return max((heard.hello.world for heard in self.ranks.values()), default=0)

    @property
    def missing(self) -> list[int]:
        """The ranks that were not heard of, on whatever node."""
        return [rank for rank in range(self.world) if rank not in self.told]

    def let_train(self, budget_s: float, whole: bool = False) -> Ending:
        """Lets the ranks train for so long, from when all of them have taken two steps."""
        until = float("inf")
        while True:
            check_cancelled(self.cancelled)
            self._listen()
            self._read_clock()
            if self.exit_code is not None:
                self._listen()
                return Ending.FAILED if self.exit_code else Ending.ENDED
            if self._has_failed():  # the others will fail, too, and the launch will end, or start them again
                self._wait_for(lambda: not self._has_failed() or self.exit_code is not None, LIMIT.restart_s)
                if self._has_failed():
                    return Ending.FAILED
            if not self._patience.all_train():
                until = float("inf")
            elif until == float("inf"):
                until = time.monotonic() + budget_s
                self.on_progress("watching")
            is_quiet = self._is_quiet()
            if time.monotonic() > until and not whole and 0 in self.ranks:  # the report is where rank 0 is
                return Ending.WATCHED if self._ask() or not is_quiet else Ending.HANGS
            if is_quiet:
                self._ask()
                return Ending.HANGS if self.ranks else Ending.SILENT

    def _has_failed(self) -> bool:
        return any(state.failure for state in self.told.values())

    def _is_quiet(self) -> bool:
        quiet_s = self._patience.quiet_s()
        if quiet_s > LIMIT.quiet_s and (busy := self._patience.busy()):
            ranks = ", ".join(f"rank {rank} is in its {part}" for rank, part in busy.items())
            self.on_progress(f"no step for {quiet_s:.0f} s: {ranks}")
        return quiet_s > self._patience.limit_s()

    def _read_clock(self) -> None:
        if time.monotonic() > self._read_at:
            self._read_at = time.monotonic() + LIMIT.clock_s
            self.pids()
            self.cpu_times = cores.cpu_times(self.tree.cpu_s())

    def _ask(self) -> bool:
        """Asks all ranks for what they have seen; whether they still take steps."""
        running = [heard for rank, heard in self.ranks.items() if rank not in self.told]
        for heard in running:
            with contextlib.suppress(OSError):
                heard.line.send_bytes(b"state")
        self._wait_for(lambda: not self.missing, LIMIT.answer_s)
        told = [self.told[heard.hello.rank] for heard in running if heard.hello.rank in self.told]
        return not told or any(s.last_step_s < LIMIT.quiet_s or s.part in LIMIT.may_last for s in told)

    def _wait_for(self, is_there: Any, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not is_there() and time.monotonic() < until:
            check_cancelled(self.cancelled)
            self._listen()

    def _listen(self) -> None:
        by_line = {heard.line: heard for heard in self.ranks.values() if not heard.line.closed}
        ready = connections.wait([*by_line, self._meeting.socket], POLL_S)
        for line, heard in by_line.items():
            if line in ready:
                self._hear(heard)
        # Last, as it may be the first rank of a restart.
        if self._meeting.socket in ready and (come := self._meeting.next()):
            self._meet(*come)

    def _meet(self, hello: Hello, line: Connection) -> None:
        if hello.world == 1 and (alone := self.launch.alone):
            what = f"{self.launch.describe()} trains in one process, and has no ranks"
            raise TrainsAlone(what, f"Watch it as one: perfkit watch {alone.name}", alone)
        if hello.restart > self.restarts:  # what came before is another run
            self.restarts = hello.restart
            self.ranks.clear()
            self.told.clear()
        self.ranks[hello.rank] = HeardRank(hello, line, time.monotonic())

    def _hear(self, heard: HeardRank) -> None:
        try:
            message = _decoder.decode(heard.line.recv_bytes())
        except (EOFError, OSError, msgspec.DecodeError):  # it has ended, or was not started by us
            heard.line.close()
            heard.closed_at = time.monotonic()
            return
        if isinstance(message, Beat):
            heard.hear(message, time.monotonic())
        elif message.rank == heard.hello.rank or message.rank not in self.ranks:  # a rank of another node
            self.told[message.rank] = message
            heard.went_on_at = time.monotonic()  # if it has ended, the others may be about to end, too
            heard.has_ended = message.ended and message.rank == heard.hello.rank

    @property
    def states(self) -> list[State]:
        return [state for _, state in sorted(self.told.items())]

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def problem(self, what: str, remedy: str, more: Iterable[str] = (), rank: int | None = None) -> RunFailed:
        """What went wrong, with the last words of the launch, or of one rank where torch marks them."""
        lines = self.written("err")
        of_rank = [line for line in lines if rank is not None and line.startswith(f"[rank{rank}]:")]
        found = RunFailed(what, remedy)
        found.output = "\n".join([*more, *(of_rank or lines)[-60:]])
        return found
