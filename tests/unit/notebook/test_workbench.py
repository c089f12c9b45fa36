"""The workbench: runs, the list of runs, ticks, scripts, suggestions."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from perfkit import notebook as pk
from perfkit.program.recipe import Recipe
from perfkit.studies import plan as plans
from tests.unit.notebook.fakes import FakeStudy
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
    for tick in bench._ticks.values():
        tick.value = False
    assert "press Run" in bench._results.value
    bench.show_script()
    assert "no run is ticked" in bench._status.error.value
    next(iter(bench._ticks.values())).value = True
    bench._to_baseline()
    assert not bench.controls.recipe.channels_last
    bench._preset.value = runs[0].preset
    bench._to_best()
    assert bench.controls.recipe == Recipe.from_dict(bench._best().recipe)  # type: ignore[union-attr]


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
    assert bench._remarks([one, other]) == ""
    assert "2 sessions" in bench._remarks([one, session(session="later")[1]])


def test_a_suggestion_sets_its_switch() -> None:
    bench = pk.Workbench()
    bench._suggestion("workers").click()
    assert bench.controls.recipe.workers == 1
