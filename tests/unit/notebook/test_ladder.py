"""The panel of a ladder: what it recalls from the store, what it offers to save."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit import notebook as pk
from perfkit.ladder.stages import Stage
from perfkit.program.recipe import Recipe
from perfkit.results.run import Run
from perfkit.results.store import RunStore
from perfkit.studies import ladder as ladders
from perfkit.worker.messages import Description, DeviceFacts
from tests.unit.notebook.fakes import FakeStudy
from tests.unit.show.fake_runs import session

pytestmark = pytest.mark.usefixtures("no_pictures")

OPTIONS = {"image_size": 224}
DESCRIPTION = Description("perfkit.workloads.photos:Photos", OPTIONS, [], DeviceFacts(2, "2.15"))
PLAIN, LOADED = Recipe(batch_size=32), Recipe(batch_size=32, workers=1)


def store(monkeypatch: pytest.MonkeyPatch, *changes: dict[str, Any]) -> list[Run]:
    """A stored session of two stages, whose runs have `changes`; what this machine would run is known."""
    recipes = [PLAIN.to_dict(), LOADED.to_dict()]
    runs = [
        msgspec.structs.replace(run, **{"recipe": recipe, "workload": "photos", "options": OPTIONS, **more})
        for run, recipe, more in zip(session()[:2], recipes, changes or ({}, {}), strict=True)
    ]
    for run in runs:
        RunStore().add(msgspec.convert(msgspec.to_builtins(run, enc_hook=float), Run))
    stages = [Stage("baseline", "baseline", PLAIN), Stage("data_loading", "data loading", LOADED)]
    monkeypatch.setattr(ladders, "resolve", lambda plan: (DESCRIPTION, stages))
    return runs


def recalled(**more: Any) -> pk.LadderPanel:
    panel = pk.LadderPanel(["data_loading"], workload="photos", preset="quick", device="cpu", **more)
    panel._read()
    return panel


def test_the_newest_results_of_the_same_recipes_are_shown_with_their_date(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = store(monkeypatch)
    panel = recalled()
    assert [run.id for run in panel.runs] == [run.id for run in runs]
    assert "results of 2026-11-20 12:00 UTC" in panel._status.text.value
    assert "<table" in panel._results.value
    assert "perfkit-report.html" in panel._report.value


@pytest.mark.parametrize(
    "changes",
    [
        ({"recipe": PLAIN.replace(amp="bf16").to_dict()}, {}),  # other settings
        ({}, {"recipe": LOADED.replace(prefetch_factor=8).to_dict()}),  # a control was changed
        ({"options": {"image_size": 64}}, {}),
        ({"preset": "smoke"}, {}),
        ({"stage": "channels_last"}, {}),
    ],
)
def test_results_of_other_settings_options_or_recipes_are_not_recalled(
    changes: tuple[dict[str, Any], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store(monkeypatch, *changes)
    panel = recalled()
    assert panel.runs == []
    assert "ready" in panel._status.text.value


def test_the_share_of_compute_threads_is_not_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    store(monkeypatch, {}, {"recipe": LOADED.replace(cpu_threads=1).to_dict()})
    assert len(recalled().runs) == 2


def test_stages_after_one_that_failed_are_recalled_as_they_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    store(monkeypatch, {"status": "failed"}, {"recipe": PLAIN.replace(workers=1, amp="bf16").to_dict()})
    assert len(recalled().runs) == 2


def test_nothing_is_recalled_over_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    store(monkeypatch)
    FakeStudy(monkeypatch)
    panel = pk.LadderPanel(["data_loading"], workload="photos", preset="quick", device="cpu")
    panel.run()
    measured = panel.runs
    panel._read()
    assert panel.runs is measured


def test_without_stored_results_no_process_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladders, "resolve", lambda plan: pytest.fail("a process was started"))
    assert recalled().runs == []


def test_recipes_are_recalled_only_for_the_same_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    store(monkeypatch, {"stage": "plain"}, {"stage": "loaded"})
    first = [Stage("baseline", "baseline", PLAIN)]
    monkeypatch.setattr(ladders, "resolve", lambda plan: (DESCRIPTION, first))
    where = {"workload": "photos", "preset": "quick", "device": "cpu"}
    same = pk.RecipePanel({"plain": {}, "loaded": {"workers": 1}}, **where)
    same._read()
    assert len(same.runs) == 2
    for other in ({"workers": 2}, {"workers": 1, "cpu_threads": 1}):
        panel = pk.RecipePanel({"plain": {}, "loaded": other}, **where)
        panel._read()
        assert panel.runs == []
