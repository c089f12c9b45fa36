"""How long ranks that take no step are waited for, by their beats and a clock alone."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection

from perfkit.additions.ranks.messages import LIMIT, Beat, Hello


@dataclass
class HeardRank:
    """What is known of a rank on this node."""

    hello: Hello
    line: Connection
    went_on_at: float  # when it was last seen to go on, or else to come
    steps: int = 0
    part: str = ""  # of its run, that it is in
    longest_s: float = 0.0  # between two steps
    has_ended: bool = False
    closed_at: float = 0.0  # when its line was closed, by the clock of `went_on_at`

    def hear(self, beat: Beat, now: float) -> None:
        """A step shows that it goes on; so does the end of an evaluation, before the step after it."""
        takes_step = beat.steps > self.steps
        if takes_step and self.steps:
            self.longest_s = max(self.longest_s, now - self.went_on_at)
        if takes_step or (self.part in LIMIT.may_last and beat.part not in LIMIT.may_last):
            self.went_on_at = now
        self.steps = beat.steps
        self.part = beat.part


class Patience:
    """Knows how long no rank has gone on, and how long to wait for one. `clock` returns seconds."""

    def __init__(self, ranks: Mapping[int, HeardRank], clock: Callable[[], float] = time.monotonic) -> None:
        self._ranks = ranks  # which come, are heard, and end meanwhile
        self._clock = clock
        self._began_at = clock()

    def all_train(self) -> bool:
        """Whether all ranks of this node have come and have taken two steps."""
        expected = max((heard.hello.local for heard in self._ranks.values()), default=0)
        return 0 < expected <= len(self._ranks) and all(heard.steps >= 2 for heard in self._ranks.values())

    def quiet_s(self) -> float:
        """Seconds since a rank was last seen to go on; 0 once all have ended, as the launch will, too."""
        ranks = self._ranks.values()
        if ranks and all(heard.has_ended for heard in ranks):
            return 0.0
        return self._clock() - max((heard.went_on_at for heard in ranks), default=self._began_at)

    def busy(self) -> dict[int, str]:
        """Ranks in a part of their run that may last, and that part."""
        return {heard.hello.rank: heard.part for heard in self._running() if heard.part in LIMIT.may_last}

    def limit_s(self) -> float:
        """How long a step is waited for: longer at the start, where steps are long, and for what may last."""
        are_slow = any(heard.longest_s > LIMIT.quiet_s / LIMIT.times_as_long for heard in self._running())
        return float(LIMIT.start_s if are_slow or self.busy() or not self.all_train() else LIMIT.quiet_s)

    def _running(self) -> list[HeardRank]:
        return [heard for heard in self._ranks.values() if not heard.line.closed]
