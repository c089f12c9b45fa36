"""The processes that a launch has started: compared as one side, or watched; ended whole in either case."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from multiprocessing import connection as connections
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import msgspec
from msgspec import structs

from perfkit.additions.ranks import guardian
from perfkit.additions.ranks.launch import RanksLaunch
from perfkit.additions.ranks.messages import LIMIT, Beat, Hello, Message, State
from perfkit.additions.ranks.patience import AwakeClock, Patience, RankPeer
from perfkit.additions.ranks.switches import THREADS, of_script
from perfkit.additions.referee.behaviour import BEHAVIOUR, Behaviour
from perfkit.additions.scripts import entry
from perfkit.additions.scripts.watched import TrainsAlone, WatchedScript
from perfkit.additions.shared.settings import Settings
from perfkit.errors import InvalidValue, RunFailed, TrainingEnded
from perfkit.machine import cores
from perfkit.process import Question
from perfkit.process.child import POLL_S
from perfkit.process.locks import check_cancelled
from perfkit.results.schema import Mechanism
from perfkit.worker.messages import TimedSteps, TrainingReport

RESULTS = "perfkit.additions.ranks.questions:results"  # a question to each rank
LOST_RANK = re.compile(r"(?i)gloo|NCCL|c10d|Connection (closed|reset)|DistBackend|ProcessGroup|TCPStore")
"""Words in the failure of a rank that has lost another one."""
_decoder = msgspec.json.Decoder(Message)
Ending = Literal["watched", "ended", "failed", "hangs", "silent"]
"""How watching has ended; `silent`: no rank has joined."""


class Meeting:
    """A socket in a private folder; each rank connects to it and introduces itself."""

    def __init__(self) -> None:
        default = tempfile.gettempdir()
        folder = default if len(os.fsencode(default)) <= LIMIT.longest_path else "/tmp"
        try:
            self.private = tempfile.TemporaryDirectory(
                prefix="perfkit-", dir=folder, ignore_cleanup_errors=True
            )
        except OSError as problem:
            what = f"ranks cannot meet: {default} is too long for the path of a socket"
            remedy = "Set TMPDIR to a folder with a shorter path"
            raise InvalidValue(f"{what}, and {folder} cannot be used", remedy) from problem
        self.address = str(Path(self.private.name) / "ranks")
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(self.address)
        self.socket.listen()
        self._connections = list[Connection]()

    def next(self) -> tuple[Hello, Connection] | None:
        """The next rank, and the connection to it; None if another program has connected."""
        connection = Connection(self.socket.accept()[0].detach())
        self._connections.append(connection)
        with contextlib.suppress(EOFError, OSError, msgspec.DecodeError):
            if connection.poll(LIMIT.word_s):
                return msgspec.json.decode(connection.recv_bytes(), type=Hello), connection
        return None

    def end(self) -> None:
        """Closes all connections, which tells the ranks that nobody listens any more."""
        for connection in self._connections:
            connection.close()
        self.socket.close()


class StartedRanks(WatchedScript):
    """The processes that a launch has started; the ranks among them come to its meeting."""

    launch: RanksLaunch

    def __post_init__(self) -> None:
        values = dict(self.launch.settings)
        self.toggles = {**self.toggles, **of_script(values)}
        super().__post_init__()
        if THREADS in values:
            self.variables["OMP_NUM_THREADS"] = str(values[THREADS])
        self._meeting = Meeting()

    def _begin(self, settings: Settings) -> subprocess.Popen[bytes]:
        private = [settings.scratch, self._meeting.private.name]
        command = [sys.executable, "-P", guardian.__file__, entry.VARIABLE, *private]
        self._guardian = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        ranked = dict(self.launch.settings)
        return self._spawn(replace(settings, address=self._meeting.address, ranked=ranked))

    def stop(self) -> None:
        """Ends the whole tree of processes; ranks end by themselves once nobody listens to them."""
        self._meeting.end()
        self.resume()
        self.tree.await_end(LIMIT.own_end_s)
        self.tree.end()
        self._process.wait()
        self._guardian.communicate()  # closes its input: it ends the processes that are not in the tree
        self._files.cleanup()
        self._meeting.private.cleanup()


class ComparedRanks(StartedRanks):
    """Rank 0 answers as a script in one process does; the others wait for it, and add their answers."""

    watcher = "perfkit.additions.ranks.questions:listen"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._others: dict[int, Connection] = {}  # by rank; that of rank 0 is `line`
        self._joined = self._world = 0
        self._times_as_many = 1.0  # samples of all ranks / samples of rank 0

    def _begin(self, settings: Settings) -> subprocess.Popen[bytes]:
        with socket.create_server(("127.0.0.1", 0)) as free:  # two launches at a time need different ports
            self.variables["PET_MASTER_PORT"] = str(free.getsockname()[1])
        return super()._begin(settings)

    def ask(self, question: str, **arguments: Any) -> Any:
        """The answer of rank 0; of behaviour, the answers of all ranks."""
        self._await_ranks()
        answer = super().ask(question, **arguments)
        return merge_behaviours([answer, *self._ask_others(BEHAVIOUR)]) if question == BEHAVIOUR else answer

    def slice(self, samples: int, seconds: float) -> TimedSteps:
        timed = super().slice(samples, seconds)
        return structs.replace(timed, samples=round(timed.samples * self._times_as_many))

    def train(self, **how: Any) -> TrainingReport:
        first = super().train(**how)
        results: list[tuple[Any, ...]] = [self.ask(RESULTS), *self._ask_others(RESULTS)]
        samples, losses, proofs = zip(*results, strict=True)
        self._times_as_many = sum(samples) / max(1, first.samples_per_step)
        means = [fmean(values) for values in zip(*losses, strict=False)][: len(first.losses)]
        return structs.replace(first, losses=means, mechanisms=merge_proofs(proofs))

    def _ask_others(self, question: str) -> list[Any]:
        for connection in self._others.values():
            with contextlib.suppress(OSError):  # the rank has ended, so its answer will be missing
                connection.send(Question(0, question, {}))
        answers = []
        for rank, connection in sorted(self._others.items()):
            answer = _received(connection, LIMIT.answer_s)
            if answer is None:
                what = f"rank {rank} does not answer"
                answer = RunFailed(what, "Run the command without perfkit to compare")
            if isinstance(answer, RunFailed):
                raise self._on_rank(rank, answer)
            answers.append(answer)
        return answers

    def _await_ranks(self) -> None:
        deadline = time.monotonic() + LIMIT.start_s
        while not self._joined or self._joined < self._world:
            check_cancelled(self.cancelled)
            if self._process.poll() is not None:
                code = self._process.returncode
                raise self.explained(RunFailed(f"it ended with exit code {code} before all ranks had joined"))
            if time.monotonic() > deadline:
                what = f"{self.launch.describe()}: its ranks have not joined in {LIMIT.start_s:.0f} s"
                raise RunFailed(what, "Does each call torch.distributed.init_process_group?")
            if connections.wait([self._meeting.socket], POLL_S) and (newcomer := self._meeting.next()):
                self._meet(*newcomer)

    def _meet(self, hello: Hello, connection: Connection) -> None:
        if hello.local < hello.world:
            what = f"{hello.local} of {hello.world} ranks run on this machine"
            raise RunFailed(what, "Compare on one machine: no node can suspend the ranks of another")
        self._world = hello.world
        self._joined += 1
        if hello.rank:
            self._others[hello.rank] = connection
        else:
            self.line = connection

    def death(self) -> RunFailed | None:
        if connections.wait([self._meeting.socket], 0):  # all ranks have joined, so this one is new
            what = "it lost a rank, and its agent starts all ranks again"
            return RunFailed(what, "Compare launches without --max-restarts")
        return super().death()

    def _trains_elsewhere(self) -> None:
        """Always None: ranks are processes that the launch has started, so training there is no failure."""

    def explained(self, failure: RunFailed) -> RunFailed:
        """Names the rank that failed first: a rank that has lost another one fails, too."""
        if isinstance(failure, TrainingEnded):
            return super().explained(failure)
        failed = 0
        is_lost = bool(LOST_RANK.search(failure.what))
        for rank, connection in self._others.items():
            answer = _received(connection, LIMIT.collect_s if is_lost else 0.0)
            if isinstance(answer, RunFailed):
                failed = rank
                failure = answer
                is_lost = False
        return self._on_rank(failed, failure)

    def _on_rank(self, rank: int, failure: RunFailed) -> RunFailed:
        failure.what = f"{self.launch.program} failed on rank {rank} of {self._world}: {failure.what}"
        return super().explained(failure)


def _received(connection: Connection, timeout_s: float) -> Any:
    """The next answer of a rank; None if none comes in time, or the rank has ended."""
    with contextlib.suppress(EOFError, OSError):
        if connection.poll(timeout_s):
            return connection.recv()
    return None


def merge_proofs(proofs_by_rank: Sequence[Sequence[Mechanism]]) -> list[Mechanism]:
    """Proofs for all ranks: a switch must be in effect on each, else the first rank without it is named."""
    if len(proofs_by_rank) == 1:
        return [*proofs_by_rank[0]]
    merged = []
    for proofs in zip(*proofs_by_rank, strict=True):
        wrong = [rank for rank, proof in enumerate(proofs) if not proof.ok]
        where = f"rank {wrong[0]}" if wrong else f"on all {len(proofs)} ranks"
        text = f"{where}: {proofs[wrong[0] if wrong else 0].evidence}"
        merged.append(structs.replace(proofs[0], ok=not wrong, evidence=text))
    return merged


def merge_behaviours(behaviours: Sequence[Behaviour]) -> Behaviour:
    """What the steps of all ranks did together; the time between steps is that of the rank with most."""
    busiest = max(behaviours, key=lambda behaviour: behaviour.marked)
    count = min(len(behaviour.loaded) for behaviour in behaviours)

    def column(name: str) -> list[tuple[float, ...]]:
        """The values of all ranks in each step that all of them have taken."""
        return list(zip(*(getattr(behaviour, name) for behaviour in behaviours), strict=False))

    changes: dict[str, Any] = {name: list(map(sum, column(name))) for name in ("loaded", "trained", "values")}
    for name in ("backwards", "weight", "reached"):
        changes[name] = getattr(busiest, name)[:count]
    changes["samples_left_out"] = sum(behaviour.samples_left_out for behaviour in behaviours)
    for name in ("evaluations", "checkpoints", "replaced"):
        changes[name] = sorted(set().union(*(getattr(behaviour, name) for behaviour in behaviours)))
    batches = [float(hash(values)) for values in column("batches")]
    losses = list(map(fmean, column("losses")))
    return structs.replace(busiest, **changes, batches=batches, losses=losses)


class WatchedRanks(StartedRanks):
    """Ranks that train on undisturbed; each says what it has seen when it is asked."""

    watcher = "perfkit.additions.ranks.rank:listen"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ranks: dict[int, RankPeer] = {}  # on this node
        self.answers: dict[int, State] = {}  # on all nodes
        self.restarts = 0
        self._next_reading_at = 0.0
        self._clock = AwakeClock()
        self._patience = Patience(self.ranks, self._clock)
        self.cpu_times = cores.cpu_times()

    @property
    def world(self) -> int:
        """How many ranks the launch has; 0 while none has joined."""
        return max((peer.hello.world for peer in self.ranks.values()), default=0)

    @property
    def missing(self) -> list[int]:
        """The ranks on all nodes that have not answered."""
        return [rank for rank in range(self.world) if rank not in self.answers]

    def let_train(self, budget_s: float, whole: bool = False) -> Ending:
        """Lets the ranks train for `budget_s`, once all have taken two steps, or to their end."""
        until: float | None = None  # while not all ranks train
        while True:
            check_cancelled(self.cancelled)
            self._listen()
            self._read_clock()
            if self.exit_code is not None:
                self._listen()
                return "failed" if self.exit_code else "ended"
            if self._has_failed():  # the others fail, too; then the launch ends, or starts them again
                self._wait_for(lambda: not self._has_failed() or self.exit_code is not None, LIMIT.restart_s)
                if self._has_failed():
                    return "failed"
            if not self._patience.all_train():
                until = None
            elif until is None:
                until = self._clock() + budget_s
                self.on_progress("watching")
            is_quiet = self._is_quiet()
            is_over = until is not None and self._clock() > until and not whole
            if is_over and 0 in self.ranks:  # the node of rank 0 reports
                return "watched" if self._ask() or not is_quiet else "hangs"
            if is_quiet:
                self._ask()
                return "hangs" if self.ranks else "silent"

    def _has_failed(self) -> bool:
        return any(state.failure for state in self.answers.values())

    def _is_quiet(self) -> bool:
        quiet_s = self._patience.quiet_s()
        if quiet_s > LIMIT.quiet_s and (busy := self._patience.busy()):
            ranks = ", ".join(f"rank {rank} is in its {part}" for rank, part in busy.items())
            self.on_progress(f"no step for {quiet_s:.0f} s: {ranks}")
        return quiet_s > self._patience.limit_s()

    def _read_clock(self) -> None:
        if self._clock() > self._next_reading_at:
            self._next_reading_at = self._clock() + LIMIT.clock_s
            self.pids()
            self.cpu_times = cores.cpu_times(self.tree.cpu_s())

    def _ask(self) -> bool:
        """Asks all running ranks for their states; returns whether any of them still takes steps."""
        running = [peer for rank, peer in self.ranks.items() if rank not in self.answers]
        for peer in running:
            with contextlib.suppress(OSError):
                peer.connection.send_bytes(b"state")
        self._wait_for(lambda: not self.missing, LIMIT.answer_s)
        ranks = {peer.hello.rank for peer in running}
        states = [self.answers[rank] for rank in ranks & self.answers.keys()]
        return not states or any(s.last_step_s < LIMIT.quiet_s or s.part in LIMIT.may_last for s in states)

    def _wait_for(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline = self._clock() + timeout_s
        while not condition() and self._clock() < deadline:
            check_cancelled(self.cancelled)
            self._listen()

    def _listen(self) -> None:
        by_connection = {peer.connection: peer for peer in self.ranks.values() if not peer.connection.closed}
        ready = connections.wait([*by_connection, self._meeting.socket], POLL_S)
        for connection, peer in by_connection.items():
            if connection in ready:
                self._hear(peer)
        # Newcomers are last: the first rank of a restart clears what the others have said.
        if self._meeting.socket in ready and (newcomer := self._meeting.next()):
            self._meet(*newcomer)

    def _meet(self, hello: Hello, connection: Connection) -> None:
        if hello.world == 1 and (single := self.launch.single):
            what = f"{self.launch.describe()} trains in one process, and has no ranks"
            raise TrainsAlone(what, f"Watch it as one: perfkit watch {single.name}", single)
        if hello.restart > self.restarts:  # the agent has begun another run
            self.restarts = hello.restart
            self.ranks.clear()
            self.answers.clear()
        self.ranks[hello.rank] = RankPeer(hello, connection, self._clock())

    def _hear(self, peer: RankPeer) -> None:
        try:
            message = _decoder.decode(peer.connection.recv_bytes())
        except (EOFError, OSError, msgspec.DecodeError):  # the rank has ended, or is another program
            peer.connection.close()
            peer.closed_at = self._clock()
            return
        if isinstance(message, Beat):
            peer.hear(message, self._clock())
        elif message.rank == peer.hello.rank or message.rank not in self.ranks:  # it is on another node
            self.answers[message.rank] = message
            peer.went_on_at = self._clock()  # if it has ended, the others may be about to end, too
            peer.has_ended = message.ended and message.rank == peer.hello.rank

    @property
    def states(self) -> list[State]:
        return [state for _, state in sorted(self.answers.items())]

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def problem(self, what: str, remedy: str, more: Iterable[str] = (), rank: int | None = None) -> RunFailed:
        """A failure with the launch's last words, or those of `rank` where torch marks its lines."""
        lines = self.written("err")
        of_rank = [line for line in lines if rank is not None and line.startswith(f"[rank{rank}]:")]
        failure = RunFailed(what, remedy)
        failure.output = "\n".join([*more, *(of_rank or lines)[-60:]])
        return failure
