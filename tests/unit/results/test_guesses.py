"""Predictions beside results: which hold, what a few or many of them show, and a file that may be damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfkit import machine
from perfkit.errors import InvalidValue
from perfkit.results import guesses
from perfkit.results.guesses import Answer, Guess
from perfkit.results.stats import Ratio

pytestmark = pytest.mark.usefixtures("data_dir")


def guess(times: float, low: float, high: float, verdict: Any = "faster", **more: Any) -> Guess:
    about = {"stage": "amp", "workload": "photos", "preset": "quick", "device": "cpu", "run": "r1"}
    result = Ratio((low * high) ** 0.5, low, high, verdict)
    return Guess(**{"made": "2026-11-20T12:00", **about, "times": times, "result": result, **more})


@pytest.mark.parametrize(
    ("times", "low", "high", "verdict", "holds"),
    [
        (1.5, 1.45, 1.6, "faster", True),
        (1.0, 0.98, 1.02, "no measurable difference", True),
        (3.0, 1.4, 1.6, "faster", False),
        (0.5, 1.4, 1.6, "faster", False),
        (1.5, 1.2, 2.5, "faster", None),  # wider than the question
        (1.5, 1.45, 1.6, "disturbed", None),
        (1.5, 1.45, 1.6, "too few rounds", None),
    ],
)
def test_a_prediction_holds_within_a_fifth(
    times: float, low: float, high: float, verdict: str, holds: bool | None
) -> None:
    assert guess(times, low, high, verdict).holds is holds


def test_the_first_result_with_a_verdict_is_final() -> None:
    for run, verdict in (("r1", "disturbed"), ("r2", "faster"), ("r3", "slower")):
        guesses.keep(guess(1.5, 1.4, 1.6, verdict, run=run))
    guesses.keep(guess(2.0, 1.4, 1.6, made="2026-11-21T12:00", run="r4"))
    assert [one.run for one in guesses.load()] == ["r2", "r4"]
    assert guesses.of_run("r4") == guesses.load()[1]
    assert guesses.of_run("r3") is None


def test_a_damaged_or_hostile_file_is_no_prediction() -> None:
    guesses.keep(guess(1.5, 1.4, 1.6))
    file = machine.runs_folder() / "predictions.json"
    good = file.read_bytes()
    (entry,) = msgspec.json.decode(good)
    hostile: list[Any] = [
        {"confidence": 99},
        {"times": -1},
        {"times": "1"},
        {"stage": "x" * 999},
        {"made": 5},
    ]
    for change in hostile:
        file.write_bytes(msgspec.json.encode([{**entry, **change}]))
        assert guesses.load() == []
    file.write_bytes(msgspec.json.encode([{**entry, "result": {**entry["result"], "low": 0}}, entry]))
    assert len(guesses.load()) == 1
    for content in (b"", good[:-5], b"[" * 10_000, b" " * 2**20 + good):
        file.write_bytes(content)
        assert guesses.load() == []
    guesses.keep(guess(1.5, 1.4, 1.6))
    assert len(guesses.load()) == 1, "the next one begins a new file"


def test_few_predictions_show_little_and_many_show_more() -> None:
    def some(holds: int, fails: int, sure: int) -> list[Guess]:
        hits = [guess(1.5, 1.45, 1.55, confidence=sure)] * holds
        return hits + [guess(5.0, 1.45, 1.55, confidence=sure)] * fails

    few, much = guesses.shares([*some(2, 1, 70), *some(10, 30, 90)])
    assert (few.confidence, few.holds, few.count, few.verdict) == (70, 2, 3, "too few to say otherwise")
    assert 0.2 < few.low < 2 / 3 < few.high < 0.95
    assert much.verdict == "too sure"
    assert guesses.shares(some(40, 1, 50))[0].verdict == "not sure enough"
    assert guesses.shares([guess(1.5, 1.45, 1.55)]) == [], "no confidence, no calibration"
    every = guesses.shares(some(3, 0, 90))[0]
    assert every.high == 1.0
    assert every.low == pytest.approx(0.4385, abs=1e-3), "Wilson's interval for 3 of 3"


def test_it_is_a_file_of_the_user(data_dir: Path) -> None:
    guesses.keep(guess(1.5, 1.4, 1.6))
    assert (machine.runs_folder() / "predictions.json").is_relative_to(data_dir)


def answer(value: float | str, result: float | str, **more: Any) -> Answer:
    given = {"made": "2026-11-20T12:00", "question": "the share that waits", **more}
    return Answer(value=value, result=result, **given)


@pytest.mark.parametrize(
    ("value", "result", "holds"),
    [
        (0.5, 0.45, True),
        (0.45, 0.5, True),
        (0.5, 0.4, False),
        (0, 0, True),
        (0, 0.1, False),
        (-1, 1, False),
        (" AMP", "amp", True),
        ("amp", "compile", False),
        ("3", 4.0, False),
    ],
)
def test_a_number_holds_within_a_fifth_and_a_name_if_it_is_the_same(
    value: float | str, result: float | str, holds: bool
) -> None:
    assert answer(value, result).holds is holds


def test_the_first_answer_about_a_run_is_final() -> None:
    for value, run in ((0.5, "r1"), (0.4, "r1"), (0.4, "r2")):
        guesses.keep_answer(answer(value, 0.4, about=run, confidence=70))
    assert [(one.value, one.about) for one in guesses.answers()] == [(0.5, "r1"), (0.4, "r2")]
    (share,) = guesses.shares([*guesses.answers(), guess(1.5, 1.4, 1.6, confidence=70)])
    assert (share.holds, share.count) == (2, 3)
    (machine.runs_folder() / "answers.json").write_bytes(b"[{}]")
    assert guesses.answers() == []


def test_a_confidence_is_one_of_three() -> None:
    assert [guesses.sure(one) for one in (50, 70, 90, None)] == [50, 70, 90, None]
    with pytest.raises(InvalidValue, match="50, 70, 90"):
        guesses.sure(80)
