"""What each optimization is worth: alone, on top of the others, and what no single one gives."""

import math
from dataclasses import replace

import pytest

from perfkit.additions.search.attribute import _quotient, attribute
from perfkit.errors import RunFailed
from perfkit.results.stats import Ratio
from perfkit.show import document, terminal
from tests.unit.studies.conftest import machine, where

pytestmark = pytest.mark.usefixtures("whole_machine")
THREE = ["data_loading", "channels_last", "compile"]


@pytest.fixture
def plan(machine, where):
    """Each is worth what it is, but channels_last is worth nothing without compile."""

    def rate(recipe):
        both = 1.2 if recipe.channels_last and recipe.compile else 1.0
        return 100.0 * 1.5 ** (recipe.workers > 0) * 1.25**recipe.compile * both

    machine.rate = rate
    return replace(where, rule=replace(where.rule, rounds=5))


def test_each_is_measured_alone_and_on_top_of_the_others_in_the_same_rounds(machine, plan):
    result = attribute(plan, THREE)
    worth = [(effect.alone.value, effect.last.value) for effect in result.effects]
    assert worth == [pytest.approx(pair) for pair in ((1.5, 1.5), (1.0, 1.2), (1.25, 1.5))]
    assert result.together.value == pytest.approx(1.5 * 1.25 * 1.2)
    assert result.interaction.value == pytest.approx(1.2)
    assert len(set(machine.slices())) == len(machine.slices()) / 5 == 2 + 2 * 3 + 1, "with the A/A row"
    assert machine.alive() == []
    table = document.find(result.sections(), document.Table, "what each")
    assert [str(row[0]) for row in table.rows] == [effect.title for effect in result.effects]
    assert "/ the product of each alone): 1.20×" in " ".join(terminal.text(result.sections()).split())


def test_the_interval_counts_the_error_of_the_baseline_once():
    """By hand: rates with an error of 0.1 each, so that a ratio to the baseline has 0.1·√2."""
    half = 0.1 * math.sqrt(2)
    ratio = Ratio(2.0, 2 * math.exp(-half), 2 * math.exp(half), "faster")
    errors = [math.log(_quotient(ratio, *[ratio] * below).high / 2 ** (1 - below)) for below in range(5)]
    assert errors == pytest.approx([0.1 * math.sqrt(variance) for variance in (2, 2, 4, 8, 14)])


def test_what_fails_or_cannot_act_is_left_out_with_the_reason(machine, plan):
    whole = lambda child: all((child.recipe.workers, child.recipe.channels_last, child.recipe.compile))
    machine.fail("train", RunFailed("no memory", ""), whole)
    result = attribute(plan, ["pinning", *THREE])
    assert list(result.left_out) == ["pinning", "all together"]
    assert result.together is result.interaction is None
    assert [(effect.alone is None, effect.last is None) for effect in result.effects] == [(False, True)] * 3
    text = " ".join(terminal.text(result.sections()).split())
    assert "all together is left out: no memory" in text and "All together: n/a" in text


def test_what_others_disturbed_says_so(machine, plan):
    machine.taken = lambda: 0.4
    result = attribute(plan, THREE)
    assert result.disturbed and "Other programs disturbed it" in terminal.text(result.sections())
    assert result.together.value == pytest.approx(1.5 * 1.25 * 1.2)
