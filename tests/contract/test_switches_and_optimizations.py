"""Goes over every switch and every optimization: declared once, and then present wherever it must be."""

import ast
import dataclasses
import itertools
from pathlib import Path
from types import FunctionType

import pytest

import perfkit
from perfkit.additions.simulate import article
from perfkit.ladder import catalogue
from perfkit.ladder.catalogue import OPTIMIZATIONS
from perfkit.recipe import Recipe, switches
from perfkit.rules import Target
from perfkit.worker.checks import View
from tests.unit.ladder.test_ladder import SIZES

SWITCHES = [*switches()]
PACKAGE = Path(perfkit.__file__).parent
NOTEBOOKS = PACKAGE.parent / "notebooks" / "src"
OFFERS = frozenset(name for name in SWITCHES if switches()[name].needs == "workload")
EVERYWHERE = Target("cuda", OFFERS)
NAMES = sorted(set(OPTIMIZATIONS) - {"baseline"})


def test_the_tests_below_go_over_all_of_them():
    assert [field.name for field in dataclasses.fields(Recipe)] == SWITCHES
    assert len(SWITCHES) == 21 and len(NAMES) > 15
    assert {card.switch for card in OPTIMIZATIONS.values()} <= {*SWITCHES}
    assert {path.stem for path in (PACKAGE / "ladder" / "cards").glob("*")} == set(OPTIMIZATIONS)


def _read_switches(path):
    """Switches that a source file reads as `recipe.NAME` or `self.recipe.NAME`."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    return {node.attr for node in attributes if ast.unparse(node.value) in ("recipe", "self.recipe")}


READ = set().union(
    *map(_read_switches, [PACKAGE / "train.py", *(PACKAGE / "workloads").glob("[!_]*.py")])
) | {"wait_policy", "allocator"}  # in the environment: Recipe.environment()
READERS = {name for name, value in vars(View).items() if isinstance(value, FunctionType) and name[0] != "_"}
TEXTS = [path.read_text(encoding="utf-8") for path in NOTEBOOKS.glob("*.py")]


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_in_every_place(name):
    assert name in READ, "no branch in train.py or a workload"
    assert name in READERS, "no check in worker/checks.py"
    assert any(name in card.settings for card in OPTIMIZATIONS.values()), "no card sets it"
    assert any(name in text for text in TEXTS), "no notebook mentions it"


def test_there_is_no_branch_and_no_check_of_what_is_no_switch():
    assert set(READERS) == set(SWITCHES)
    assert READ - set(SWITCHES) <= {"replace", "to_dict"}


@pytest.mark.parametrize("name", NAMES)
def test_an_optimization_changes_its_own_switch_and_acts_completely_or_says_why_not(name):
    target = Target("cpu") if name in ("wait_policy", "allocator") else EVERYWHERE
    base = Recipe(batch_size=SIZES["batch_size"])
    stage = catalogue.stage(OPTIMIZATIONS[name], base, SIZES, target)
    assert not stage.reason
    assert not stage.not_applied
    assert OPTIMIZATIONS[name].switch in stage.recipe.diff(base)
    plain = catalogue.stage(OPTIMIZATIONS[name], base, SIZES, Target("cpu", frozenset(), compiler=False))
    assert (plain.recipe != base) != bool(plain.reason)


def test_the_gain_that_a_card_quotes_follows_from_the_article_s_rates():
    for before, stage in itertools.pairwise(article.ARTICLE.stages):
        times = stage.samples_per_s / before.samples_per_s
        assert OPTIMIZATIONS[stage.stage].times == pytest.approx(times, abs=0.006)
