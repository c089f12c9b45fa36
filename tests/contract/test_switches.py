"""Goes over every switch and optimization: declared once, and then everywhere it must be."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import perfkit
from perfkit.ladder import stages
from perfkit.program.recipe import Recipe, switches
from perfkit.program.rules import Target

PACKAGE = Path(perfkit.__file__).parent
NOTEBOOKS = PACKAGE.parent / "notebooks" / "src"
SIZES = stages.Sizing(
    workers=2, batch_size=8, large_batch=16, largest_batch=32, amp="bf16", threads=1, share_cores=True
)
OFFERS = frozenset({"uint8_copy", "device_resize", "batched_fetch", "device_dataset", "embedding_device"})
EVERYWHERE = Target("cuda", OFFERS, count=2)

SWITCHES = sorted(switches())
OPTIMIZATIONS = sorted(stages.OPTIMIZATIONS)


def test_the_tests_below_go_over_all_of_them() -> None:
    assert len(SWITCHES) == 32
    assert len(OPTIMIZATIONS) == 31
    assert set(stages.LADDER) < set(OPTIMIZATIONS)
    assert len(stages.LADDER) == 10


def _read_switches(path: Path) -> set[str]:
    """Switches that a source file reads as `recipe.NAME`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            owner = node.value
            name = (
                owner.id
                if isinstance(owner, ast.Name)
                else owner.attr
                if isinstance(owner, ast.Attribute)
                else ""
            )
            found |= {node.attr} if name == "recipe" else set()
    return found


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_has_a_branch_in_the_training_program(name: str) -> None:
    places = [PACKAGE / "program" / "train.py", *(PACKAGE / "workloads").glob("[!_]*.py")]
    assert any(name in _read_switches(path) for path in places)


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_has_a_mechanism_check(name: str) -> None:
    from perfkit.worker.checks import checks

    assert name in checks()
    assert len(checks()) == len(SWITCHES)


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_changed_by_an_optimization(name: str) -> None:
    assert any(name in optimization.changes(SIZES) for optimization in stages.OPTIMIZATIONS.values())


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_explained_by_a_notebook(name: str) -> None:
    texts = [path.read_text(encoding="utf-8") for path in NOTEBOOKS.glob("*.py")]
    assert any(name in text for text in texts)


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_declares_what_its_control_needs(name: str) -> None:
    switch = switches()[name]
    assert switch.label and switch.help
    assert switch.parse(switch.default) == switch.default
    assert all(switch.parse(level) == level for level in switch.levels)
    assert switch.kind is not str or switch.default in switch.choices
    assert switch.kind is not int or switch.low < switch.high


@pytest.mark.parametrize("name", OPTIMIZATIONS)
def test_an_optimization_has_a_card_that_says_when_it_does_not_help(name: str) -> None:
    card = stages.OPTIMIZATIONS[name].card()
    assert len(card.splitlines()) > 12
    assert "does not help" in card.lower() or name == "baseline"
    assert stages.OPTIMIZATIONS[name].question.endswith("?")


@pytest.mark.parametrize("name", [name for name in OPTIMIZATIONS if name != "baseline"])
def test_an_optimization_changes_only_switches_that_can_act(name: str) -> None:
    base = stages.build((), SIZES, EVERYWHERE)[0].recipe
    stage = stages.stage(stages.OPTIMIZATIONS[name], base, SIZES, EVERYWHERE)
    assert not stage.reason
    assert not stage.not_applied
    assert stage.recipe != base


@pytest.mark.parametrize("name", [name for name in OPTIMIZATIONS if name != "baseline"])
def test_on_a_plain_cpu_a_stage_acts_or_says_why_not(name: str) -> None:
    plain = Target("cpu", frozenset(), compiler=False)
    base = stages.build((), SIZES, plain)[0].recipe
    stage = stages.stage(stages.OPTIMIZATIONS[name], base, SIZES, plain)
    assert (stage.recipe != base) != bool(stage.reason)


def test_there_is_no_card_without_an_optimization() -> None:
    assert {path.stem for path in (PACKAGE / "ladder" / "cards").glob("*.md")} == set(OPTIMIZATIONS)


def test_the_baseline_of_every_preset_changes_nothing_but_the_batch_size() -> None:
    for preset in stages.PRESETS.values():
        sizes = stages.sizing(preset, EVERYWHERE, cores=8)
        assert set(Recipe().diff(stages.build((), sizes, EVERYWHERE)[0].recipe)) <= {"batch_size"}
