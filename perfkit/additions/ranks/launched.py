"""A command that starts several ranks, as people launch them: started as it was written, and ended whole."""

import contextlib
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing import connection as connections
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from perfkit.additions.ranks.asked import LOST_RANK, START_S, Launched
from perfkit.additions.ranks.messages import Beat, Hello, Message, State
from perfkit.errors import RunFailed
from perfkit.machine import cores
from perfkit.process.child import POLL_S
from perfkit.process.locks import check_cancelled

WATCHER = "perfkit.additions.ranks.rank:Rank"
QUIET_S = 30.0  # seconds without a step of any rank after which they hang
ANSWER_S, RESTART_S = 5.0, 60.0  # seconds for an answer, and until ranks train again
_MAY_LAST = ("evaluation", "checkpoint", "start")  # parts of a run that are awaited as long as its start
_CLOCK_S = 2.0  # seconds between readings of CPU time
_decoder = msgspec.json.Decoder(Message)


@dataclass
class Seen:
    """A rank, as far as it was heard of."""

    hello: Hello
    line: Connection
    steps: int = 0
    part: str = ""
    heard_at: float = field(default_factory=time.monotonic)
    state: State | None = None

    def hear(self, beat: Beat) -> None:
        """A step shows that it trains; so does the end of an evaluation, before the step after it."""
        has_come_back = self.part in _MAY_LAST and beat.part not in _MAY_LAST
        if beat.steps > self.steps or has_come_back:
            self.heard_at = time.monotonic()
        self.steps = beat.steps
        self.part = beat.part


class LaunchedRanks(Launched):
    """Ranks that go on by themselves; each says what it has seen when it is asked."""

    def _begin(self, settings: dict[str, Any]) -> subprocess.Popen[bytes]:
        self.ranks: dict[int, Seen] = {}
        self.restarts = 0
        self._read_at = 0.0
        self._began = time.monotonic()
        self.cpu_times = cores.cpu_times()
        self._far: dict[int, State] = {}  # of ranks on other nodes
        return self._open(settings, WATCHER)

    @property
    def world(self) -> int:
        """How many ranks there are to be; 0 while none is known."""
        return max((seen.hello.world for seen in self.ranks.values()), default=0)

    @property
    def missing(self) -> list[int]:
        """The ranks that were not heard of, on whatever node."""
        return [rank for rank in range(self.world) if rank not in self.ranks and rank not in self._far]

    def watch(self, budget_s: float, whole: bool = False) -> str:
        """Lets the ranks train for so long; how it ended: `watched`, `ended`, `failed`, `hangs` or `silent`.

        The budget begins when all ranks have taken two steps.
        """
        until = float("inf")
        while True:
            check_cancelled(self.cancelled)
            self._listen()
            self._read_clock()
            now = time.monotonic()
            if self._process.poll() is not None:
                self._listen()
                return "failed" if self._process.returncode else "ended"
            if self._has_failed():  # the others will fail, too, and the launch will end, or start them again
                self._wait_for(lambda: self._process.poll() is not None or not self._has_failed(), RESTART_S)
                if self._has_failed():
                    return "failed"
            if not self._all_train():
                until = float("inf")
            elif until == float("inf"):
                until = now + budget_s
                self.on_progress("watching")
            quiet_s = now - self._active_at()
            if now > until and not whole and 0 in self.ranks:  # the report is written where rank 0 is
                return "watched" if self._ask() or quiet_s < QUIET_S else "hangs"
            if quiet_s > QUIET_S and quiet_s > self._patience_s(quiet_s):
                self._ask()
                return "hangs" if self.ranks else "silent"

    def _has_failed(self) -> bool:
        return any(seen.state and seen.state.failure for seen in self.ranks.values())

    def _active_at(self) -> float:
        """When a rank was last seen to take a step, or to end: then the others may be about to end, too."""
        if self.ranks and all(seen.state and seen.state.ended for seen in self.ranks.values()):
            return time.monotonic()
        return max((seen.heard_at for seen in self.ranks.values()), default=self._began)

    def _patience_s(self, quiet_s: float) -> float:
        """How long a step is waited for: longer at the start, and while a rank does what may last."""
        running = [seen for seen in self.ranks.values() if not seen.line.closed]
        busy = [f"rank {s.hello.rank} is in its {s.part}" for s in running if s.part in _MAY_LAST]
        if busy:
            self.on_progress(f"no step for {quiet_s:.0f} s: {', '.join(busy)}")
        return START_S if busy or not self._all_train() else QUIET_S

    def _read_clock(self) -> None:
        """The CPU time of the tree, and of all else, while it runs."""
        if time.monotonic() > self._read_at:
            self._read_at = time.monotonic() + _CLOCK_S
            self.pids()
            self.cpu_times = cores.cpu_times(self.tree.cpu_s())

    def _all_train(self) -> bool:
        local = max((seen.hello.local for seen in self.ranks.values()), default=0)
        are_here = 0 < local <= len(self.ranks)
        return are_here and all(seen.steps >= 2 for seen in self.ranks.values())

    def _ask(self) -> bool:
        """Asks all ranks for what they have seen; whether they still take steps."""
        running = [seen for seen in self.ranks.values() if seen.state is None]
        for seen in running:
            with contextlib.suppress(OSError):
                seen.line.send_bytes(b"state")
        self._wait_for(lambda: all(seen.state for seen in running) and not self.missing, ANSWER_S)
        states = [seen.state for seen in running if seen.state]
        return not states or any(s.last_step_s < QUIET_S or s.part in _MAY_LAST for s in states)

    def _wait_for(self, is_there: Any, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not is_there() and time.monotonic() < until:
            check_cancelled(self.cancelled)
            self._listen()

    def _listen(self) -> None:
        lines = [seen.line for seen in self.ranks.values() if not seen.line.closed]
        for ready in connections.wait([self._socket, *lines], POLL_S):
            if ready is self._socket:
                self._let_in()
            elif isinstance(ready, Connection):
                self._hear(ready)

    def _meet(self, hello: Hello, line: Connection) -> None:
        if hello.world == 1 and self.launch.as_one_process:
            what = f"{self.launch.describe()} trains in one process, and has no ranks"
            raise RunFailed(what, f"Watch it as one: {self.launch.as_one_process}")
        if hello.restart > self.restarts:  # what came before is another run
            self.restarts = hello.restart
            self.ranks.clear()
        self.ranks[hello.rank] = Seen(hello, line)

    def _hear(self, line: Connection) -> None:
        try:
            message = _decoder.decode(line.recv_bytes())
        except (EOFError, OSError, msgspec.DecodeError):  # it has ended, or was not started by us
            line.close()
            return
        for seen in self.ranks.values():
            if seen.line is line and isinstance(message, Beat):
                seen.hear(message)
            elif seen.line is line and isinstance(message, State):
                if message.rank == seen.hello.rank:
                    seen.state = message
                    seen.heard_at = time.monotonic()
                elif message.rank not in self.ranks:
                    self._far[message.rank] = message

    @property
    def states(self) -> list[State]:
        """What the ranks told, by rank."""
        told = [seen.state for seen in self.ranks.values() if seen.state] + [*self._far.values()]
        return sorted(told, key=lambda state: state.rank)

    def failure(self) -> RunFailed:
        """Which rank failed first, with its last words; the others fail because they lose it."""
        failed = [state for state in self.states if state.failure]
        first = min(failed, key=lambda state: bool(LOST_RANK.search(state.failure)), default=None)
        mute = [seen for seen in self.ranks.values() if seen.line.closed and seen.state is None]
        if mute and (first is None or LOST_RANK.search(first.failure)):
            dead = mute[0]
            what = f"rank {dead.hello.rank} of {self.world} ended without a word after {dead.steps} steps "
            what += "or more (killed, most likely because memory ran out)"
        elif first:
            what = f"rank {first.rank} of {self.world} failed after {first.count} steps: {first.failure}"
        else:
            what = f"{self.launch.describe()} ended with exit code {self._process.poll()}"
        return self.problem(what, "Its own words are below; run the command without perfkit to compare")

    def problem(self, what: str, remedy: str, stacks: Iterable[str] = ()) -> RunFailed:
        """What went wrong, with the last words of the launch."""
        found = RunFailed(what, remedy)
        found.output = "\n".join([*stacks, *self.written("err")[-60:]])
        return found
