"""When a measurement ends and when its processes are renewed: by what is known, and by the time left."""

from collections.abc import Callable

from perfkit.ladder.catalogue import StopRule
from perfkit.results import AGAIN, stats
from perfkit.studies.sides import Measured, Side

PART_OF_START = 0.25
"""An incarnation is measured for this part of its start or longer: processes differ as much as rounds do."""
FEWEST = 2  # rounds without which there is no interval: they are taken, however long the budget is over
CHECK_EVERY = 5  # rounds between two checks: a check after each of them would stop at lucky ones


class Enough:
    """The stop rule, applied to what is measured so far; its time begins when it is made."""

    def __init__(self, measured: Measured, rule: StopRule, clock: Callable[[], float]) -> None:
        self._measured = measured
        self._rule = rule
        self._clock = clock
        self._began = clock()
        compared = max(1, len(measured.open()) - 1)
        self.budget_s = rule.budget.seconds(compared) if rule.budget else None
        """Seconds that it may take; None where the number of rounds is given instead."""

    @property
    def left_s(self) -> float | None:
        """Seconds of the budget that are left; negative if it is exceeded."""
        return None if self.budget_s is None else self.budget_s - (self._clock() - self._began)

    def is_over(self) -> bool:
        """Whether measuring ends: every side has taken part, and enough is known or the time is up."""
        measured = self._measured
        if not all(measured.rounds_of(side) for side in measured.open()):
            return False
        if measured.most == 1 and not measured.in_turns:  # turns would spoil the rounds of those that fitted
            return True
        return self.is_satisfied() or not self.can_renew()

    def is_satisfied(self) -> bool:
        measured = self._measured
        if self.budget_s is None:
            return measured.round_count >= self._rule.rounds
        first = measured.sides[0]
        compared = [side for side in measured.open() if side is not first and side.stage.name != AGAIN]
        if not (compared and first.is_open):  # each by itself: its own rate
            return measured.round_count >= stats.ENDING_ROUNDS
        return all(map(self._is_known, compared))

    def next_sides(self) -> list[Side]:
        """Who takes part in the next incarnation: the others only as long as their ratio is not known.

        Where memory does not hold all of them, those with the fewest rounds are next.
        """
        measured = self._measured
        first, *others = measured.open()
        unknown = sorted((side for side in others if not self._is_known(side)), key=measured.rounds_of)
        if measured.most is None:
            return [first, *unknown]
        return [first, *unknown][: max(2, measured.most)]

    def _is_known(self, own: Side) -> bool:
        measured = self._measured
        pair = measured.with_first(own)
        goal = self._rule.goal
        if len(pair.own_samples_per_s) < stats.ENDING_ROUNDS or goal is None:
            return False
        ratio = pair.nested()
        return goal.is_met(ratio.centre, ratio.half)

    def can_renew(self) -> bool:
        now = self._measured.now
        needed_s = now.start_s - now.compile_s + stats.MIN_ROUNDS * now.round_s
        return self.left_s is not None and self.left_s >= needed_s

    def has_had_its_share(self, rounds: int) -> bool:
        """Whether so many rounds are enough for this incarnation."""
        left_s = self.left_s
        budget = self._rule.budget
        if budget is None or left_s is None:
            return rounds >= self._rule.rounds
        now = self._measured.now
        # Late because of its rounds, not its start: after a long start a few more rounds are a small cost.
        is_late = left_s + now.start_s < -budget.stage_s
        if rounds < (FEWEST if is_late else self._rule.rounds):
            return False
        if left_s <= 0:
            return True
        is_worth_it = rounds * now.round_s >= PART_OF_START * now.start_s
        if self.can_renew() and is_worth_it:  # new processes tell more than further rounds of these
            return True
        return rounds % CHECK_EVERY == 0 and self.is_satisfied()
