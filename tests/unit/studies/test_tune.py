"""Candidates and probes of the tuner; its search on a made-up machine."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfkit.errors import Cancelled, InvalidValue
from perfkit.recipe import Recipe
from perfkit.results.store import RunStore
from perfkit.rules import Target
from perfkit.search import predict, tune
from perfkit.studies import plan as plans
from tests.unit.studies.fakes import FakeMachine, install
from tests.unit.studies.test_predict import run

CPU = Target(device="cpu", offers=frozenset({"uint8_copy"}))
GPU = Target(device="cuda", offers=frozenset({"uint8_copy"}))
SPACE: dict[str, Any] = {
    "workers": (0, 1, 2), "amp": ("off", "bf16"), "channels_last": (False, True), "prefetch_factor": (2, 4),
}  # fmt: skip


def plan() -> plans.Plan:
    return plans.plan("cifar_resnet18", "smoke", ["baseline"], device="cpu")


def test_candidates_are_those_that_can_act_here_each_once() -> None:
    found = tune.candidates(plan(), CPU, tune.SPACE)
    assert len({recipe.digest() for recipe in found}) == len(found) >= 60
    assert {recipe.amp for recipe in found} == {"off", "bf16"}
    assert not any(recipe.pin_memory for recipe in found)
    assert all(recipe.pin_memory for recipe in tune.candidates(plan(), GPU, tune.SPACE) if recipe.workers)


def test_probes_are_few_and_cover_every_part() -> None:
    every = tune.candidates(plan(), CPU, tune.SPACE)
    base = Recipe(batch_size=8)
    probes = tune.probes(base, every)
    assert len(probes) < len(every) / 8
    model = predict.fit([run(recipe, 100, 200, 0.5) for recipe in [base, *probes]])
    assert all(predict.predict(model, recipe.to_dict()) for recipe in every)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> FakeMachine:
    """bf16 doubles the speed and each worker adds a tenth, but the machine slows down all the time."""
    pace = iter(range(100_000, 0, -1))

    def rate(recipe: Recipe) -> float:
        factor = (2.0 if recipe.amp == "bf16" else 1.0) * (1 + recipe.workers / 10)
        return 100 * factor * (1.5 if recipe.prefetch_factor == 4 else 1.0) * next(pace) / 100_000

    monkeypatch.setattr(tune, "parity", lambda *given: None)
    return install(monkeypatch, FakeMachine(rate))


def where() -> plans.Plan:
    return replace(plan(), preset=replace(plan().preset, batch_size=10))


def test_the_search_measures_the_parts_then_the_short_list_then_the_best_of_it(machine: FakeMachine) -> None:
    seen: list[plans.Progress] = []
    tuned = tune.tune(where(), SPACE, on_progress=seen.append)
    first, second = reversed(RunStore().sessions())
    short = [run.title for run in reversed(RunStore().runs(session=first))]
    finals = [run.title for run in reversed(RunStore().runs(session=second))]
    assert short[0] == "batch_size=10"
    assert set(short[1:3]) == {"batch_size=10, amp=bf16", "batch_size=10, channels_last=true"}
    parts = 1 + 2 + 2  # the baseline; amp and channels_last; one worker and two
    assert parts + 1 <= len(short) <= parts + 6 + 1 + 4 + 2
    assert any("prefetch_factor" in title for title in short), "what the model knows nothing of is tried too"
    assert finals[0] == "batch_size=10"
    assert len(finals) == 4
    assert finals[-1] == "batch_size=10 (again)"
    best = tuned.best.recipe
    assert (best["amp"], best["workers"], best["prefetch_factor"]) == ("bf16", 2, 4)
    assert tuned.considered == 20
    assert tuned.gain
    assert tuned.gain.ratio == pytest.approx(2 * 1.2 * 1.5, rel=0.01)
    assert tuned.score
    fractions = [progress.fraction for progress in seen]
    assert max(fractions) == fractions[-1] == 1.0


def test_after_the_budget_nothing_but_the_finals_starts(machine: FakeMachine) -> None:
    tuned = tune.tune(where(), SPACE, budget_s=-1)
    assert [run.title for run in tuned.tried] == ["batch_size=10"] * 2
    assert tuned.best.recipe == Recipe(batch_size=10).to_dict()
    assert tuned.score is None


def test_nothing_above_the_memory_cap_is_picked(machine: FakeMachine) -> None:
    space: dict[str, Any] = {"batch_size": (10, 20), "amp": ("off", "bf16")}
    tuned = tune.tune(where(), space, memory_cap_bytes=10_000)
    assert tuned.best.recipe["batch_size"] == 10
    assert {run.recipe["batch_size"] for run in tuned.over_memory} == {20}
    with pytest.raises(InvalidValue, match="fits under the memory cap"):
        tune.tune(where(), space, memory_cap_bytes=100)


def test_a_baseline_above_the_memory_cap_is_not_picked(
    monkeypatch: pytest.MonkeyPatch, data_dir: Path
) -> None:
    monkeypatch.setattr(tune, "parity", lambda *given: None)
    install(monkeypatch, FakeMachine(lambda recipe: 10.0 * recipe.batch_size))
    tuned = tune.tune(where(), {"batch_size": (5, 10)}, memory_cap_bytes=6_000)
    assert tuned.best.recipe["batch_size"] == 5


def test_a_search_that_is_cancelled_picks_nothing(machine: FakeMachine) -> None:
    stop = threading.Event()
    with pytest.raises(Cancelled):
        tune.tune(where(), SPACE, on_progress=lambda p: stop.set() if p.run else None, cancelled=stop)
    assert [run.status for run in reversed(RunStore().runs())] == ["ok", "cancelled"]
    assert machine.alive() == []
