"""The end of a measurement: enough rounds, a narrow interval, or no time left for another incarnation."""

from dataclasses import replace

import pytest

from perfkit.ladder.catalogue import Budget, Goal, Slice, Stage, StopRule
from perfkit.recipe import Recipe
from perfkit.results import stats
from perfkit.studies.enough import FEWEST, Enough
from perfkit.studies.sides import Incarnation, MeasuredSides, Round, Side
from perfkit.worker.messages import TimedSteps

BUDGET = Budget(60.0)
COUNTED = StopRule(Slice(samples=1), rounds=3, loss_steps=1, warmup_s=0.0)
TIMED = replace(COUNTED, budget=BUDGET, goal=Goal(0.05))
STEADY = {"baseline": 10.0, "amp": 12.0}


def found(rounds, names=("baseline", "amp")):
    """What was measured so far: samples/s of each side that took part, round by round."""
    sides = {name: Side(Stage(name, name, Recipe())) for name in names}
    taken = [Round() for _ in rounds]
    for one, rates in zip(taken, rounds, strict=True):
        for name, rate in rates.items():
            one.add(sides[name], TimedSteps(samples=100, seconds=100 / rate), 0.0, [])
    incarnations = [Incarnation(start_s=2.0, rounds=taken)]
    spreads = dict.fromkeys(sides.values(), stats.ONE_PROCESS)
    return MeasuredSides(list(sides.values()), spreads, incarnations)


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize(("count", "enough"), [(2, False), (3, True)])
def test_without_a_budget_the_rounds_of_one_incarnation_are_counted(count, enough):
    rule = Enough(found([STEADY] * count), COUNTED, Clock())
    assert (rule.is_satisfied(), rule.has_had_its_share(count)) == (enough, enough)
    assert rule.is_over(), "no other incarnation begins"


def test_it_is_not_over_before_every_side_has_taken_part():
    assert not Enough(found([{"baseline": 10.0}] * 9), COUNTED, Clock()).is_over()


@pytest.mark.parametrize(("count", "known"), [(9, False), (10, True)])
def test_rounds_that_agree_end_it_after_ten_and_no_sooner(count, known):
    assert Enough(found([STEADY] * count), TIMED, Clock()).is_satisfied() == known


def test_rounds_that_scatter_go_on_while_another_incarnation_has_time():
    clock = Clock()
    scattered = found([{"baseline": 10.0, "amp": rate} for rate in (100.0, 1000.0) * 6])
    enough = Enough(scattered, TIMED, clock)
    assert not enough.is_satisfied() and not enough.is_over()
    needed_s = scattered.latest.start_s + stats.MIN_ROUNDS * scattered.latest.round_s
    clock.now = BUDGET.stage_s - needed_s - 0.1
    assert not enough.is_over()
    clock.now = BUDGET.stage_s - needed_s + 0.1
    assert enough.is_over()


def test_a_side_whose_ratio_is_known_rests_and_the_first_one_never_does():
    names = ("baseline", "amp", "tf32")
    measured = found([{**STEADY, "tf32": rate} for rate in (100.0, 1000.0) * 5], names)
    assert [side.stage.name for side in Enough(measured, TIMED, Clock()).next_sides()] == ["baseline", "tf32"]


def test_memory_that_holds_two_sides_has_those_with_the_fewest_rounds_next():
    measured = found([STEADY, {**STEADY, "tf32": 9.0}], ("baseline", "amp", "tf32"))
    measured.fitting = 2
    assert [side.stage.name for side in Enough(measured, TIMED, Clock()).next_sides()] == ["baseline", "tf32"]


def test_an_incarnation_that_is_far_over_its_budget_ends_with_the_fewest_rounds():
    clock = Clock()
    enough = Enough(found([STEADY] * FEWEST), TIMED, clock)
    assert not enough.has_had_its_share(FEWEST)
    clock.now = 2 * BUDGET.stage_s + 1  # of which the start took 2 s
    assert not enough.has_had_its_share(FEWEST)
    clock.now += 2  # an evaluation took it, say
    assert enough.has_had_its_share(FEWEST) and not enough.has_had_its_share(FEWEST - 1)
