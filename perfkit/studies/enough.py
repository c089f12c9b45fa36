"""When a measurement ends and when its processes are renewed: by what is known, and by the time left."""

from collections.abc import Callable, Sequence

import numpy as np

from perfkit.ladder.catalogue import StopRule
from perfkit.results import stats
from perfkit.studies.sides import Measured, Side, log_ratios

USUAL_SCATTER = 0.1
"""Of the logarithm of a ratio from round to round, until rounds have shown it."""
CHECK_EVERY = 5
"""Rounds after which it is looked whether more are needed: looking after each would stop at lucky ones."""


class Enough:
    """The rule of the end, applied to what is measured so far; the time runs from when it is made."""

    def __init__(self, measured: Measured, rule: StopRule, clock: Callable[[], float]) -> None:
        self._measured, self._rule, self._clock = measured, rule, clock
        self._began = clock()

    @property
    def budget_s(self) -> float:
        """Seconds that it may take; 0 where the number of rounds is given instead."""
        return min(self._rule.budget_s, self._rule.limit_s)

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        return self.budget_s - (self._clock() - self._began)

    def is_satisfied(self) -> bool:
        """Whether every ratio that is asked for is known."""
        rule, rounds = self._rule, self._measured.rounds
        if not rule.budget_s:
            return rounds >= rule.rounds
        found = self._measured.comparisons()
        if not found:  # one side alone: its own rate
            return rounds >= stats.ENDING_ROUNDS
        if not rule.precision:
            return False
        return all(
            stats.is_known(each.centre, each.half, rounds, rule.precision, rule.part) for each in found
        )

    def can_renew(self) -> bool:
        """Whether the time that is left allows another incarnation."""
        now = self._measured.now
        return self._rule.budget_s > 0 and self.left_s >= now.start_s + stats.MIN_ROUNDS * now.round_s

    def has_had_its_share(self, sides: Sequence[Side], rounds: int) -> bool:
        """Whether so many rounds are enough for this incarnation of these sides."""
        if rounds < self._rule.rounds:
            return False
        if not self._rule.budget_s or self.left_s <= 0:
            return True
        if self.can_renew() and rounds >= self._most_rounds(sides):
            return True
        return rounds % CHECK_EVERY == 0 and self.is_satisfied()

    def _most_rounds(self, sides: Sequence[Side]) -> int:
        """How many rounds an incarnation should have, because further ones tell less than new processes."""
        now, spread = self._measured.now, self._measured.spread
        widest = max((spread(own, sides[0]) for own in sides), key=lambda each: each.sd)
        return stats.rounds_per_incarnation(now.start_s, now.round_s, self._scatter(), widest)

    def _scatter(self) -> float:
        """How much ratios scatter from round to round."""
        first, *others = self._measured.open()
        found = [
            float(log_ratios(rounds, other, first).std(ddof=1))
            for other in others
            for rounds in self._measured.common_rounds(other, first)
            if len(rounds) >= stats.MIN_ROUNDS
        ]
        return float(np.median(found)) if found else USUAL_SCATTER
