"""The workbench: runs, the list of runs, ticks, scripts, suggestions."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from msgspec.structs import replace

from perfkit import notebook as pk
from perfkit.errors import InvalidValue
from perfkit.notebook import diagnosis
from perfkit.recipe import Recipe
from perfkit.studies import plan as plans
from perfkit.trace.diagnosis import Bottleneck
from tests.unit.notebook.fakes import FakeStudy, until_cancelled, wait_until
from tests.unit.show.fake_runs import again, session

pytestmark = pytest.mark.usefixtures("no_pictures")


def test_the_workbench_runs_lists_ticks_and_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = session()[:2]

    def does(show: Any, cancelled: threading.Event) -> Any:
        for run in again(runs):  # the second baseline is no recipe to compare
            show(plans.Progress(run.title, "ok", 1.0, run))
        return runs

    study = FakeStudy(monkeypatch, does)
    bench = pk.Workbench()
    bench.controls.by_name["channels_last"].value = True
    bench._name.value = "mine"
    bench.run()
    (_, baseline), (name, recipe) = study.plans[0].recipes
    assert name == "mine"
    assert bench._name.value == ""
    assert recipe.channels_last
    assert not baseline.channels_last
    assert [run.id for run in bench.ticked()] == [run.id for run in runs]
    assert "baseline" in bench.verdict().data
    bench.history.grid.ticked = []
    assert "press Run" in bench._results.value
    press(bench, "pk-export")
    assert "no run is ticked" in bench._status.error.value
    bench.history.grid.ticked = [runs[1].id]
    assert bench._status.error.value and "data loading" in bench._results.value
    bench.controls.presets["The baseline"].click()
    assert not bench.controls.recipe.channels_last
    bench._preset.value = runs[0].preset
    bench.controls.presets["Best so far"].click()
    assert bench.controls.recipe == Recipe.from_dict(bench._best().recipe)  # type: ignore[union-attr]


def press(bench: pk.Workbench, name: str) -> None:
    """One of the buttons below the history."""
    (button,) = [one for one in bench._beside[1].children if name in one._dom_classes]  # type: ignore[attr-defined]
    button.click()


@pytest.mark.parametrize(
    ("against", "titles"), [("the baseline", ["baseline", "mine"]), ("nothing", ["mine"])]
)
def test_what_a_recipe_is_measured_against(
    against: str, titles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = FakeStudy(monkeypatch, lambda show, cancelled: [])
    bench = pk.Workbench()
    bench._against.value, bench._name.value = against, "mine"
    bench.run()
    assert [title for title, _ in study.plans[0].recipes] == titles


def test_runs_of_two_sessions_carry_a_caution() -> None:
    bench = pk.Workbench()
    one, other = session()[:2]
    assert bench._remarks([one]) == []
    (together,) = bench._remarks([one, other])
    assert "Loader workers 1" in str(together)
    assert "2 sessions" in str(bench._remarks([one, session(session="later")[1]]))


def test_a_diagnosis_offers_its_switch_with_the_prediction_beside_it() -> None:
    bench = pk.Workbench()
    finding = Bottleneck(
        bottleneck="data-bound", message="40% of a step: <waiting>", exposed_us=1.0, share_of_step=0.4,
        gain_at_most=1.67, evidence={}, try_next=["workers", "pin_memory"],
    )  # fmt: skip
    (row,) = diagnosis.rows([finding], bench.controls, [])
    about, button, *_ = row.children
    assert about.value == "<b>data-bound</b>: 40% of a step: &lt;waiting&gt;"
    assert "at most 1.67×" in button.description
    button.click()
    assert bench.controls.recipe.workers == 1
    assert "press Run" in bench._status.text.value
    bench.controls.show(Recipe.from_dict(session()[0].recipe))
    (row,) = diagnosis.rows([finding], bench.controls, session()[:2])
    assert "predicted 1." in row.children[1].description


def queued(bench: pk.Workbench, *names: str) -> None:
    """Presses Run for each."""
    for name in names:
        bench._name.value = name
        bench._run.click()


def test_run_queues_while_something_runs_and_one_error_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    go, names = threading.Event(), list[str]()

    def does(show: Any, cancelled: threading.Event) -> Any:
        names.append(study.plans[-1].recipes[-1][0])
        assert go.wait(20)
        if names[-1] == "second":
            raise InvalidValue("no memory", "Take less")
        run = replace(session()[0], id=names[-1], title=names[-1], session=names[-1])
        show(plans.Progress(run.title, "ok", 1.0, run))
        return [run]

    study = FakeStudy(monkeypatch, does)
    bench = pk.Workbench()
    queued(bench, "first")
    wait_until(lambda: names == ["first"])
    assert bench._run.description == "Add to queue" and not bench._run.disabled
    bench.controls.by_name["channels_last"].value = True
    queued(bench, "second", "third", "fourth")
    bench.controls.by_name["channels_last"].value = False  # what is queued stays as it was
    assert bench.queue.names == ["second", "third", "fourth"]
    go.set()
    wait_until(lambda: len(names) == 4 and not bench._job.busy)
    assert names == ["first", "second", "third", "fourth"] and bench.queue.names == []
    assert [plan.recipes[-1][1].channels_last for plan in study.plans] == [False, True, True, True]
    assert "second: no memory" in bench.queue._errors.value
    assert [row["since"] for row in bench.history.grid.rows] == ["third", "first", ""]
    assert bench._run.description == "Run" and not bench.error
    queued(bench, "fifth")
    assert bench.queue._errors.value == ""
    wait_until(lambda: len(names) == 5 and not bench._job.busy)


def test_a_cell_takes_its_turn_beside_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    go, names = threading.Event(), list[str]()

    def does(show: Any, cancelled: threading.Event) -> Any:
        names.append(study.plans[-1].recipes[-1][0])
        assert go.wait(20)
        return [replace(session()[0], id=names[-1], title=names[-1])]

    study = FakeStudy(monkeypatch, does)
    bench = pk.Workbench()
    queued(bench, "first", "second")
    wait_until(lambda: names == ["first"])
    bench._name.value = "cell"
    threading.Timer(0.05, go.set).start()
    bench.run()
    assert "cell" in names[1:]
    wait_until(lambda: not bench._job.busy and not bench.queue.names)
    assert sorted(names) == ["cell", "first", "second"]


def test_cancel_ends_the_run_under_way_alone_and_a_newer_panel_all(monkeypatch: pytest.MonkeyPatch) -> None:
    study = FakeStudy(monkeypatch, until_cancelled)
    bench = pk.Workbench()
    queued(bench, "first", "second", "third")
    wait_until(lambda: len(study.plans) == 1)
    bench._cancel.click()
    wait_until(lambda: len(study.plans) == 2)
    assert bench.queue.names == ["third"] and bench.queue._errors.value == "", "cancelling is no error"
    pk.Workbench()
    wait_until(lambda: not bench._job.busy)
    assert bench.queue.names == [] and len(study.plans) == 2


def test_exports_need_ticked_runs_but_for_the_spreadsheet() -> None:
    bench = pk.Workbench()
    for name in ("pk-use", "pk-export", "pk-make-report", "pk-share"):
        press(bench, name)
        assert "no run is ticked" in bench._status.error.value
