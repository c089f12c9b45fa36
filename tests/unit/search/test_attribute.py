"""What each optimization is worth: Shapley values of measured sets."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.search.attribute import Attribution, Effect, Names, Value, attribute, conclude
from perfkit.show import document, terminal
from perfkit.studies.sources import Plan
from tests.unit.studies.conftest import machine, where
from tests.unit.studies.fakes import FakeMachine

LOG2 = math.log(2)


def every_set(players):
    return [frozenset(c) for n in range(1, len(players) + 1) for c in itertools.combinations(players, n)]


@given(st.lists(st.floats(-1, 1), min_size=15, max_size=15))
def test_the_values_add_up_to_the_whole(numbers):
    values = {one: (number, 0.0) for one, number in zip(every_set("abcd"), numbers, strict=True)}
    found = conclude("abcd", values)
    total = sum(math.log(e.shapley) for e in found.effects if e.shapley)
    assert total == pytest.approx(values[frozenset("abcd")][0], abs=1e-9)


def test_the_error_of_measurements_is_in_the_interval():
    found = conclude("a", {frozenset("a"): (LOG2, 0.1)})
    effect = found.effects[0]
    assert effect.low == pytest.approx(2 * math.exp(-0.196))
    assert effect.high == pytest.approx(2 * math.exp(0.196))


@pytest.fixture
def plan(where):
    return replace(where, preset=replace(where.preset, rounds=5))


def rate(recipe):
    """Each is worth what it is, but channels_last is worth nothing without compile."""
    both = 1.2 if recipe.channels_last and recipe.compile else 1.0
    return 100.0 * 1.5 ** (recipe.workers > 0) * 1.25**recipe.compile * both


def test_every_set_of_a_few_optimizations_is_measured_beside_the_baseline(machine, plan):
    machine.rate = rate
    result = attribute(plan, ["data_loading", "channels_last", "compile"])
    assert (result.sets, result.complete) == (7, True)
    assert result.together == pytest.approx(1.5 * 1.25 * 1.2)
    worth = {effect.name: (effect.alone, effect.last, effect.shapley) for effect in result.effects}
    assert worth["data_loading"] == pytest.approx((1.5, 1.5, 1.5))
    assert worth["channels_last"] == pytest.approx((1.0, 1.2, 1.2**0.5))
    assert worth["compile"] == pytest.approx((1.25, 1.5, 1.25 * 1.2**0.5))
    assert len(machine.children) == 1 + 7, "the baseline stays alive"
    assert machine.alive() == []


def test_when_the_time_is_over_the_most_informative_sets_are_known(machine, plan):
    machine.rate = rate
    short = attribute(plan, budget_s=-1)
    assert not short.complete
    assert short.sets == 4
    assert short.together and all(effect.shapley is None for effect in short.effects)


def test_one_optimization_is_no_attribution(machine, plan):
    with pytest.raises(InvalidValue, match="1 of these optimizations can act here"):
        attribute(plan, ["compile"])


def effect(name, mean):
    low, high = (None, None) if mean is None else (mean - 0.1, mean + 0.1)
    return Effect(name=name, title=name, alone=1.2, last=None, shapley=mean, low=low, high=high)


def test_worth_has_cells_and_says_what_is_missing():
    worth = Attribution(
        effects=[effect("amp", 1.5), effect("compile", None)], together=1.8, sets=2,
        complete=False, left_out={"pinning": "needs a CUDA device"},
    )  # fmt: skip
    rows = [[*map(str, row)] for row in document.find(worth.sections(), document.Table, "what each").rows]
    assert rows == [["amp", "1.20×", "n/a", "1.50× (1.40–1.60)"], ["compile", "1.20×", "n/a", "n/a"]]
    text = terminal.text(worth.sections())
    assert "pinning is left out: needs a CUDA device" in text
    assert "raise the budget for the rest" in text
