"""When a measurement ends and when its processes are renewed: by what is known, and by the time left."""

from collections.abc import Callable

from perfkit.ladder.catalogue import StopRule
from perfkit.results import AGAIN, stats
from perfkit.studies.sides import MeasuredSides, Side

PART_OF_START = 0.25
"""An incarnation is measured for this part of its start or longer: processes differ as much as rounds do."""
FEWEST = 2  # rounds that an interval needs: they are taken even if the budget is spent
CHECK_EVERY = 5  # rounds between two checks: a check after each of them would stop at lucky ones


class Enough:
    """The stop rule, applied to what is measured so far; its time begins when it is made."""

    def __init__(self, measured: MeasuredSides, rule: StopRule, clock: Callable[[], float]) -> None:
        self._measured = measured
        self._rule = rule
        self._clock = clock
        self._began = clock()
        compared = max(1, len(measured.open_sides()) - 1)
        self.budget_s = rule.budget.seconds(compared) if rule.budget else None
        """Seconds that it may take; None where the number of rounds is given instead."""

    @property
    def left_s(self) -> float | None:
        """Seconds of the budget that are left; negative if it is exceeded."""
        return None if self.budget_s is None else self.budget_s - (self._clock() - self._began)

    def is_over(self) -> bool:
        """Whether measuring ends: every side has taken part, and enough is known or the time is up."""
        measured = self._measured
        if not all(measured.round_count_of(side) for side in measured.open_sides()):
            return False
        if measured.fitting == 1 and not measured.in_turns:  # turns would spoil the rounds so far
            return True
        return self.is_satisfied() or not self.can_renew()

    def is_satisfied(self) -> bool:
        measured = self._measured
        if self.budget_s is None:
            return measured.round_count >= self._rule.rounds
        first = measured.sides[0]
        compared = [side for side in measured.open_sides() if side is not first and side.stage.name != AGAIN]
        if not (compared and first.is_open):  # each side is measured for its own rate
            return measured.round_count >= stats.ENDING_ROUNDS
        return all(map(self._is_known, compared))

    def next_sides(self) -> list[Side]:
        """Who takes part in the next incarnation: the others only as long as their ratio is not known.

        Where memory does not hold all of them, those with the fewest rounds are next.
        """
        measured = self._measured
        first, *others = measured.open_sides()
        unknown = sorted((side for side in others if not self._is_known(side)), key=measured.round_count_of)
        if measured.fitting is None:
            return [first, *unknown]
        return [first, *unknown][: max(2, measured.fitting)]

    def _is_known(self, own: Side) -> bool:
        measured = self._measured
        pair = measured.with_first(own)
        goal = self._rule.goal
        if len(pair.own_samples_per_s) < stats.ENDING_ROUNDS or goal is None:
            return False
        ratio = pair.nested()
        return goal.is_met(ratio.centre, ratio.half)

    def can_renew(self) -> bool:
        latest = self._measured.latest
        needed_s = latest.start_s - latest.compile_s + stats.MIN_ROUNDS * latest.round_s
        return self.left_s is not None and self.left_s >= needed_s

    def has_had_its_share(self, round_count: int) -> bool:
        """Whether this many rounds are enough for this incarnation."""
        left_s = self.left_s
        budget = self._rule.budget
        if budget is None or left_s is None:
            return round_count >= self._rule.rounds
        latest = self._measured.latest
        # Late because of its rounds, not its start: after a long start a few more rounds are a small cost.
        is_late = left_s + latest.start_s < -budget.stage_s
        if round_count < (FEWEST if is_late else self._rule.rounds):
            return False
        if left_s <= 0:
            return True
        is_worth_it = round_count * latest.round_s >= PART_OF_START * latest.start_s
        if self.can_renew() and is_worth_it:  # new processes tell more than further rounds of these
            return True
        return round_count % CHECK_EVERY == 0 and self.is_satisfied()
