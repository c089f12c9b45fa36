"""Goes over every switch and every optimization: declared once, and then present wherever it must be."""

import ast
import dataclasses
import itertools
from pathlib import Path

import pytest

import perfkit
from perfkit.ladder import catalogue
from perfkit.ladder.catalogue import OPTIMIZATIONS
from perfkit.recipe import Recipe, switches
from perfkit.rules import Target
from perfkit.simulate import article
from perfkit.worker.checks import READERS
from tests.unit.ladder.test_ladder import SIZES

# Every member, so that the tests below cannot pass over fewer. An optimization that is called what its own
# switch is called is not listed again.
SWITCHES = """
    batch_size workers prefetch_factor scaled_decode pin_memory
    non_blocking device_prefetch uint8_copy device_resize zero_grad_set_to_none channels_last
    amp fp32_precision cudnn_benchmark optimizer_impl compile compile_mode cpu_threads accumulation
    wait_policy allocator ranks
""".split()
OTHER_NAMES = {
    "data_loading": "workers", "pinning": "pin_memory", "zero_grad": "zero_grad_set_to_none",
    "amp_fp16": "amp", "max_autotune": "compile", "fused_optimizer": "optimizer_impl",
    "baseline": "batch_size",
    "tf32": "fp32_precision",
}  # fmt: skip
"""Optimizations that are not called what their own switch is."""

PACKAGE = Path(perfkit.__file__).parent
NOTEBOOKS = PACKAGE.parent / "notebooks" / "src"
EVERYWHERE = Target(
    "cuda", frozenset(name for name in SWITCHES if switches()[name].needs == "workload"), count=2
)
RUNGS = sorted(set(OPTIMIZATIONS) - {"baseline"})


def test_the_tests_below_go_over_all_of_them():
    assert list(switches()) == [field.name for field in dataclasses.fields(Recipe)] == SWITCHES
    own = {name: card.switch for name, card in OPTIMIZATIONS.items()}
    assert {name: switch for name, switch in own.items() if name != switch} == OTHER_NAMES
    assert set(OTHER_NAMES) | set(SWITCHES) >= set(own)
    assert {path.stem for path in (PACKAGE / "ladder" / "cards").glob("*")} == set(OPTIMIZATIONS)


def _read_switches(path):
    """Switches that a source file reads as `recipe.NAME` or `self.recipe.NAME`."""
    attributes = [
        n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.Attribute)
    ]
    return {node.attr for node in attributes if ast.unparse(node.value) in ("recipe", "self.recipe")}


READ = set().union(
    *map(_read_switches, [PACKAGE / "train.py", *(PACKAGE / "workloads").glob("[!_]*.py")])
) | {"wait_policy", "allocator"}  # in the environment: Recipe.environment()
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


@pytest.mark.parametrize("name", RUNGS)
def test_an_optimization_changes_its_own_switch_and_all_of_it_can_act(name):
    target = Target("cpu") if name in ("wait_policy", "allocator") else EVERYWHERE
    base = Recipe(batch_size=SIZES["batch_size"])
    stage = catalogue.stage(OPTIMIZATIONS[name], base, SIZES, target)
    assert not stage.reason
    assert not stage.not_applied
    assert OPTIMIZATIONS[name].switch in stage.recipe.diff(base)


def test_the_gain_that_a_card_quotes_follows_from_the_article_s_rates():
    for before, stage in itertools.pairwise(article.ARTICLE.stages):
        assert OPTIMIZATIONS[stage.stage].times == pytest.approx(
            stage.samples_per_s / before.samples_per_s, abs=0.006
        )
