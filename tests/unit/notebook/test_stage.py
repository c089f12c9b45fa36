"""One optimization: its switches, a guess beside the result, and what later panels start from."""

import pytest
from msgspec.structs import replace

from perfkit import notebook as pk
from perfkit import workloads
from perfkit.errors import Cancelled, InvalidValue, RunFailed
from perfkit.notebook import ladder, stage
from perfkit.results.store import RunStore
from perfkit.show import html, terminal
from tests.unit.notebook.fakes import FakeStudy
from tests.unit.notebook.test_panel import Place, wait_until
from tests.unit.show.fake_runs import session

RUNS = {run.stage: run for run in session()}


def shown(panel):
    return " ".join(terminal.text(panel.sections()).split())


def stored(*stages):
    """A session of these stages in the store, of the place where the panels of this test measure."""
    plan = pk.LadderPanel().plan
    where = {
        "workload": plan.subject.workload,
        "preset": plan.subject.size.name,
        "device": plan.subject.device,
        "options": {},
    }
    runs = [replace(RUNS[stage], **where) for stage in ("baseline", *stages)]
    for run in runs:
        RunStore().add(run)
    return runs


def test_switches_of_the_stage_and_others_are_set_in_code(monkeypatch):
    study = FakeStudy(monkeypatch)
    panel = pk.StagePanel("data_loading")
    panel.set(workers=3, amp="bf16")
    panel.run()
    assert study.plans[-1].ladder.changes["workers"] == 3
    assert study.plans[-1].ladder.settings == {"amp": "bf16"}
    with pytest.raises(InvalidValue):
        panel.set(turbo=1)
    with pytest.raises(InvalidValue):
        panel.set(amp="off", workers=-1)
    assert panel.plan.ladder.settings == {"amp": "bf16"}
    panel.controls.by_name["prefetch_factor"].value = 8
    assert ([*panel.runs], shown(panel)) == ([], ""), "other switches are another question"


def test_a_guess_stands_beside_its_result_now_and_later(monkeypatch):
    runs = stored("data_loading")
    FakeStudy(monkeypatch, lambda progress: runs)
    panel = pk.StagePanel("data_loading")
    assert panel.guess is None
    panel._guess.value = 1.5
    panel.run()
    text = shown(panel)
    assert "Your guess: 1.50×. The article's V100: 2.16×." in text
    assert "bit for bit" in text, "whether the training is still right"
    assert "<h2>How it works</h2>" in html.fragment(panel.sections())
    later = pk.StagePanel("data_loading")
    later._ipython_display_()
    assert (later.guess, later.runs) == (1.5, runs)
    panel.store._do("UPDATE runs SET guess = NULL")
    panel._plan_changed()
    assert panel.guess is None, "nobody has guessed this result"


def test_a_guess_stays_with_its_result_if_the_picture_is_stopped(monkeypatch):
    runs = stored("data_loading")
    FakeStudy(monkeypatch, lambda progress: runs)

    def stopped(panel, progress=None):
        if progress:
            raise Cancelled("stopped on request")

    monkeypatch.setattr(ladder.PlanPanel, "_steps", stopped)
    panel = pk.StagePanel("data_loading")
    panel._guess.value = 1.5
    with pytest.raises(Cancelled):
        panel.run()
    later = pk.StagePanel("data_loading")
    assert (later.guess, later.runs) == (1.5, runs)


def test_controls_offer_what_is_declared_before_a_process_has_loaded_the_workload():
    panel = pk.StagePanel("device_resize", workload="cifar_resnet18")
    assert panel.controls.recipe.device_resize and not panel.controls.reasons
    for workload in ("photos", "tests.support.toy:Toy"):
        refused = pk.StagePanel("device_resize", workload=workload)
        assert "does not offer" in refused.controls.reasons["device_resize"]


def test_later_panels_start_from_what_was_kept(monkeypatch):
    runs = stored("data_loading")
    FakeStudy(monkeypatch, lambda progress: runs)
    panel = pk.StagePanel("data_loading")
    with pytest.raises(InvalidValue, match="no run is shown"):
        panel.keep()
    panel.run()
    pk.kept()["amp"] = "bf16"  # the reader's own dictionary
    assert pk.kept() == {"workers": 1, "wait_policy": "passive"}, "the first change of the course"
    panel.keep()
    assert "data loading 1.5" in panel._decisions.value
    assert pk.kept()["prefetch_factor"] == runs[-1].recipe["prefetch_factor"]
    assert pk.StagePanel("amp").plan.ladder.settings["workers"] == runs[-1].recipe["workers"] > 0
    panel.drop()
    assert pk.kept() == {}, "what was dropped is not kept, nor is the first change of the course"
    assert "data loading dropped" in panel._decisions.value
    assert pk.StagePanel("amp").plan.ladder.settings["workers"] == 0
    assert pk.StagePanel("data_loading").plan.ladder.settings == {}, "a stage does not change itself"
    assert pk.StagePanel("amp", settings={"workers": 3}).plan.ladder.settings["workers"] == 3


@pytest.mark.parametrize("stage", ["amp_fewer_threads", "zero_grad"])
def test_a_stage_that_is_not_in_the_default_ladder_is_kept_as_any(stage, monkeypatch):
    base, amp = stored("amp")
    run = replace(amp, id=stage, stage=stage, title=stage, recipe={**amp.recipe, "cpu_threads": 1})
    RunStore().add(run)
    FakeStudy(monkeypatch, lambda progress: [base, run])
    panel = pk.StagePanel(stage)
    panel.run()
    panel.keep()
    assert f"climb so far: {stage} 2.9" in panel._decisions.value
    assert pk.kept() == {name: run.recipe[name] for name in panel.optimization.settings}
    below = pk.StagePanel("compile").plan.ladder.settings
    assert below == (pk.kept() if stage == "amp_fewer_threads" else {})


def test_a_panel_that_is_there_already_is_measured_on_what_is_kept_when_it_runs(monkeypatch):
    runs = stored("data_loading", "amp")
    kept = runs[1].recipe["workers"]
    study = FakeStudy(monkeypatch, lambda progress: runs)
    first, later = pk.StagePanel("data_loading"), pk.StagePanel("amp")
    later._guess.value = 1.5
    first.run()
    first.keep()
    assert later.plan.ladder.settings == {} and kept > 0
    later.run()
    assert study.plans[-1] == later.answer.plan
    assert study.plans[-1].ladder.settings["workers"] == kept
    assert "data loading 1.5" in later._decisions.value
    assert "This stage is measured on top of " in later._decisions.value
    assert f"workers={kept}" in later._decisions.value
    first.drop()
    later.start(later._measure, later.answer)
    wait_until(lambda: not later.is_busy)
    assert study.plans[-1].ladder.settings["workers"] == kept, "further rounds are of what was measured"
    assert later.plan.ladder.settings["workers"] == kept
    later.run()
    assert study.plans[-1].ladder.settings["workers"] == 0
    assert "data loading dropped. This stage is measured on top of " in later._decisions.value
    later._guess.value = 2.5
    first.keep()
    later.run()
    assert study.plans[-1].ladder.settings["workers"] == kept
    assert later.guess == 2.5, "not the one of the earlier answer"


def test_what_was_kept_meanwhile_does_not_change_the_result_below_an_earlier_cell(monkeypatch):
    runs = stored("data_loading", "amp")
    FakeStudy(monkeypatch, lambda progress: runs)
    first, later = pk.StagePanel("data_loading"), pk.StagePanel("amp")
    places = [Place(), Place()]
    waiting = iter(places)
    monkeypatch.setattr(later, "_output_here", lambda: next(waiting))
    later.run()
    first.run()
    first.keep()
    before = [*places[0].said]
    later.run()
    assert places[0].said == before and places[1].said[-1] == "a result"


def test_a_check_of_the_training_that_fails_leaves_the_measured_result(monkeypatch):
    runs = stored("data_loading")
    FakeStudy(monkeypatch, lambda progress: runs)

    def fails(*_):
        raise RunFailed("out of memory in float64", "Use a smaller batch")

    monkeypatch.setattr(stage, "proof", fails)
    panel = pk.StagePanel("data_loading")
    panel.run()
    assert "done" in panel.status.line.value
    assert "could not be checked: out of memory in float64" in shown(panel)
    panel.keep()
    assert pk.kept()["prefetch_factor"] == runs[-1].recipe["prefetch_factor"]


def test_a_damaged_proof_leaves_the_panel_usable(monkeypatch):
    runs = stored("data_loading")
    FakeStudy(monkeypatch, lambda progress: runs)
    panel = pk.StagePanel("data_loading")
    panel.run()
    panel.store._do("UPDATE proofs SET body = ?", (b'{"title": 1',))
    later = pk.StagePanel("data_loading")
    assert [*later.runs] == runs
    assert "the proof of run" in shown(later)


def test_a_workload_that_is_not_in_utf_8_has_a_panel(tmp_path, monkeypatch):
    code = "# -*- coding: latin-1 -*-\nclass Mine:\n    presets = {'quick': {'grüße': 1}}\n"
    (tmp_path / "in_latin.py").write_text(code, encoding="latin-1")
    monkeypatch.syspath_prepend(tmp_path)
    assert workloads.declared("in_latin:Mine", "presets") == {"quick": {"grüße": 1}}
    assert not pk.StagePanel("data_loading", workload="in_latin:Mine").runs


def test_what_was_measured_earlier_comes_back_with_its_proof_when_its_switches_are_set(monkeypatch):
    runs = stored("data_loading")
    FakeStudy(monkeypatch, lambda progress: runs)
    panel = pk.StagePanel("data_loading")
    panel.set(workers=3)
    panel.run()
    panel.set(workers=3)
    assert panel.runs, "the same switches are the same question"
    panel.set(workers=2)
    assert not panel.runs
    panel.set(workers=3)
    assert [*panel.runs] == runs and "measured earlier" in panel.status.line.value
    later = pk.StagePanel("data_loading")
    later.set(workers=3)
    assert "bit for bit" in shown(later), "the proof is kept with the run"
