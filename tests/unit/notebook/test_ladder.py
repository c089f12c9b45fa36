"""The panel of a ladder: what it recalls from the store, what it offers to save."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfkit import notebook as pk
from perfkit.ladder.stages import Stage
from perfkit.recipe import Recipe
from perfkit.results.run import Run
from perfkit.results.store import RunStore
from perfkit.studies import ladder as ladders
from perfkit.studies import plan as plans
from perfkit.worker.messages import Description, DeviceFacts
from tests.unit.notebook.fakes import FakeStudy
from tests.unit.show.fake_runs import session

pytestmark = pytest.mark.usefixtures("no_pictures")

OPTIONS = {"image_size": 224}
DESCRIPTION = Description("perfkit.workloads.photos:Photos", OPTIONS, [], DeviceFacts(2, "2.15"))
WHERE: dict[str, Any] = {"workload": "photos", "preset": "quick", "device": "cpu"}


def keep(run: Run, **changes: Any) -> Run:
    """A made-up run in the store, with its numbers as a real one has them."""
    run = msgspec.structs.replace(run, **{"workload": "photos", "options": OPTIONS, **changes})
    run = msgspec.convert(msgspec.to_builtins(run, enc_hook=float), Run)
    RunStore().add(run)
    return run


def store(
    monkeypatch: pytest.MonkeyPatch, *changes: dict[str, Any], stages: tuple[str, ...] = ("data_loading",)
) -> list[Run]:
    """A stored session of a ladder that this machine would run; its runs have `changes`."""
    plan, runs, failed = plans.plan(stages=stages, **WHERE), list[Run](), list[str]()
    monkeypatch.setattr(ladders, "resolve", lambda plan: (DESCRIPTION, [Stage("baseline", "", Recipe())]))
    for stage in ladders.ladder_stages(plan, plans.target(plan, DESCRIPTION), failed):
        more = changes[len(runs)] if changes else {}
        more = {"stage": stage.name, **more, "recipe": {**stage.recipe.to_dict(), **more.get("recipe", {})}}
        failed += [stage.name] * (more.get("status", "ok") != "ok")
        runs.append(keep(session()[len(runs)], **{"status": "ok", "id": f"run-{len(runs)}", **more}))
    return runs


def recalled(*stages: str, **more: Any) -> pk.LadderPanel:
    panel = pk.LadderPanel(stages or ["data_loading"], **{**WHERE, **more})
    panel._read()
    return panel


def test_the_newest_results_of_the_same_recipes_are_shown_with_their_date(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = store(monkeypatch)
    panel = recalled()
    assert [run.id for run in panel.runs] == [run.id for run in runs]
    assert "results of 2026-11-20 12:00 UTC" in panel._status.text.value
    assert "Measured earlier, at 2026-11-20 12:00 UTC" in panel._results.value
    assert "<table" in panel._results.value
    assert "perfkit-report.html" in panel._report.value


@pytest.mark.parametrize(
    "changes",
    [
        ({"recipe": {"amp": "bf16"}}, {}),  # other settings
        ({}, {"recipe": {"prefetch_factor": 8}}),  # a control was changed
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


def test_settings_are_recalled_with_the_same_settings_only(monkeypatch: pytest.MonkeyPatch) -> None:
    amp = {"recipe": {"amp": "bf16"}}
    store(monkeypatch, amp, amp)
    assert recalled().runs == []
    assert len(recalled(settings={"amp": "bf16"}).runs) == 2


def test_stages_after_one_that_failed_are_recalled_as_they_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = ("data_loading", "zero_grad")
    runs = store(monkeypatch, {}, {"status": "failed"}, {}, stages=stages)
    assert runs[-1].recipe["workers"] == 0, "it stands on the stage that worked"
    assert len(recalled(*stages).runs) == 3


def test_nothing_is_recalled_over_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    store(monkeypatch)
    FakeStudy(monkeypatch)
    panel = pk.LadderPanel(["data_loading"], **WHERE)
    panel.run()
    measured = panel.runs
    panel._read()
    assert panel.runs is measured


def test_where_the_reader_predicts_stored_results_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plans.plan(stages=["zero_grad"], below=True, **WHERE)
    stages = list(ladders.ladder_stages(plan, plans.target(plan, DESCRIPTION)))
    monkeypatch.setattr(ladders, "resolve", lambda plan: (DESCRIPTION, stages))
    for run, one in zip(session(), stages, strict=False):
        keep(run, stage=one.name, recipe=one.recipe.to_dict())
    panel = pk.StagePanel("zero_grad", **WHERE)
    panel._read()
    assert "results of 2026-11-20 12:00 UTC are stored: predict" in panel._status.text.value
    assert panel.runs == []
    assert "<table" not in panel._results.value
    panel.predict(1.5)
    assert len(panel.runs) == 2
    assert "You predicted 1.50" in panel._results.value
    assert "Measured earlier" in panel._results.value


def test_without_stored_results_no_process_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladders, "resolve", lambda plan: pytest.fail("a process was started"))
    assert recalled().runs == []


def test_recipes_are_recalled_only_for_the_same_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladders, "resolve", lambda plan: (DESCRIPTION, [Stage("baseline", "", Recipe())]))
    for run, name, workers in zip(session()[:2], ("plain", "loaded"), (0, 1), strict=True):
        keep(run, stage=name, recipe=Recipe(batch_size=32, workers=workers).to_dict())
    for other, count in (({"workers": 1}, 2), ({"workers": 2}, 0), ({"workers": 1, "cpu_threads": 1}, 0)):
        panel = pk.RecipePanel({"plain": {}, "loaded": other}, **WHERE)
        panel._read()
        assert len(panel.runs) == count
