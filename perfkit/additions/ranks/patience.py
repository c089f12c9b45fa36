"""How long to wait for ranks that take no step, decided from their beats and a clock alone."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection

from perfkit.additions.ranks.messages import LIMIT, Beat, Hello


@dataclass
class RankPeer:
    """The connection to a rank on this node, and its last signs of progress."""

    hello: Hello
    connection: Connection
    went_on_at: float  # when it last made progress, or else joined
    steps: int = 0
    part: str = ""  # of its run, that it is in
    longest_s: float = 0.0  # between two steps
    has_ended: bool = False
    closed_at: float = 0.0  # when its connection was closed, by the clock of `went_on_at`

    def hear(self, beat: Beat, now: float) -> None:
        """Notes a beat. A new step is progress; so is the end of an evaluation, before the step after it."""
        takes_step = beat.steps > self.steps
        if takes_step and self.steps:
            self.longest_s = max(self.longest_s, now - self.went_on_at)
        if takes_step or (self.part in LIMIT.may_last and beat.part not in LIMIT.may_last):
            self.went_on_at = now
        self.steps = beat.steps
        self.part = beat.part


class AwakeClock:
    """A clock in seconds that stops while this process does, as where a virtual machine is paused."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_reading = clock()
        self._asleep_s = 0.0

    def __call__(self) -> float:
        """Is read many times a second, so a long time since the last reading is one of standing still."""
        now = self._clock()
        passed_s = now - self._last_reading
        if passed_s > LIMIT.asleep_s:
            self._asleep_s += passed_s
        self._last_reading = now
        return now - self._asleep_s


class Patience:
    """Measures how long no rank has made progress, and decides how long to wait. `clock` returns seconds."""

    def __init__(self, ranks: Mapping[int, RankPeer], clock: Callable[[], float]) -> None:
        self._ranks = ranks  # its owner changes them as ranks join, beat and end
        self._clock = clock
        self._began_at = clock()

    def all_train(self) -> bool:
        """Whether all ranks of this node have joined and taken two steps."""
        expected = max((peer.hello.local for peer in self._ranks.values()), default=0)
        return 0 < expected <= len(self._ranks) and all(peer.steps >= 2 for peer in self._ranks.values())

    def quiet_s(self) -> float:
        """Seconds since any rank made progress; 0 once all have ended, as the launch is about to end."""
        ranks = self._ranks.values()
        if ranks and all(peer.has_ended for peer in ranks):
            return 0.0
        return self._clock() - max((peer.went_on_at for peer in ranks), default=self._began_at)

    def busy(self) -> dict[int, str]:
        """Ranks in a part of their run that may last, and that part."""
        return {peer.hello.rank: peer.part for peer in self._running() if peer.part in LIMIT.may_last}

    def limit_s(self) -> float:
        """How long to wait for a step: longer at the start, for long steps, and for parts that may last."""
        are_slow = any(peer.longest_s > LIMIT.quiet_s / LIMIT.times_as_long for peer in self._running())
        return float(LIMIT.start_s if are_slow or self.busy() or not self.all_train() else LIMIT.quiet_s)

    def _running(self) -> list[RankPeer]:
        return [peer for peer in self._ranks.values() if not peer.connection.closed]
