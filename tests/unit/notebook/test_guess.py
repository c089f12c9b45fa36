"""Guesses of shares, counts and names: laid beside what came out, and kept if they were made before it."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfkit import notebook as pk
from perfkit.errors import InvalidValue
from perfkit.results import guesses
from tests.unit.show.fake_runs import session

pytestmark = pytest.mark.usefixtures("data_dir")
SOURCES = Path(__file__).parents[3] / "notebooks" / "src"


def panel(created: str, recorded: str = "") -> Any:
    run = SimpleNamespace(id=session()[0].id, created=created)
    return SimpleNamespace(runs=[run], plan=SimpleNamespace(recorded=recorded))


def test_a_guess_is_laid_beside_what_came_out() -> None:
    made = pk.guess("copies", 4, sure=70)
    assert made.outcome(4.5) == "Copies: 4.5; you guessed 4, 70% sure: within a fifth."
    assert pk.guess("stage", "amp").outcome("compile") == "Stage: compile; you guessed amp: wrong."
    assert pk.guess("stage", None).outcome("amp") == "Stage: amp (no guess)."
    assert [one.question for one in guesses.answers()] == ["copies", "stage"]


@pytest.mark.parametrize(
    ("created", "recorded", "kept"), [("2000", "", False), ("2999", "", True), ("2000", "cpu", True)]
)
def test_a_guess_made_after_the_result_is_not_kept(created: str, recorded: str, kept: bool) -> None:
    sentence = pk.guess("share", 0.5).outcome(0.5, panel(created, recorded))
    assert ("not kept" in sentence) is not kept
    assert len(guesses.answers()) == kept


@pytest.mark.parametrize("value", ["", True, float("nan"), [1], "x" * 201])
def test_what_is_no_guess_is_refused(value: Any) -> None:
    with pytest.raises(InvalidValue, match="is no guess"):
        pk.guess("share", value)


def test_nobodys_guess_is_filled_in() -> None:
    calls = [
        node
        for source in SOURCES.glob("*.py")
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "guess"
    ]
    assert len(calls) == 6
    assert all(isinstance(call.args[1], ast.Constant) and call.args[1].value is None for call in calls)
