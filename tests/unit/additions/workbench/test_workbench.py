"""The workbench: a recipe beside the baseline, the history, what becomes of ticked runs."""

import ipywidgets as widgets
import pytest
from msgspec.structs import replace

from perfkit import lookup, registry
from perfkit import notebook as pk
from perfkit.additions.workbench.panel import Workbench
from perfkit.errors import Cancelled, InvalidValue, PerfkitError
from perfkit.notebook.shown import Shown
from perfkit.results.store import RunStore
from perfkit.show import terminal
from perfkit.studies.decisions import plan_key
from tests.unit.notebook.fakes import FakeStudy
from tests.unit.notebook.test_panel import press, wait_until, words
from tests.unit.show.fake_runs import session

RUNS = session()[:2]
WORKLOAD = RUNS[0].workload


@pytest.fixture
def bench():
    """A workbench with two stored runs."""
    for run in RUNS:
        RunStore().add(run)
    return pk.Workbench(workload=WORKLOAD, preset="quick")


def tick(bench, *runs):
    bench.history.ticked = [run.id for run in runs]


def test_a_plain_first_run_measures_the_baseline_once(monkeypatch):
    study = FakeStudy(monkeypatch)
    bench = pk.Workbench()
    bench.run()
    assert [title for title, _ in study.plans[-1].ladder.recipes] == ["baseline"]
    bench.set(workers=1)
    bench.run()
    assert [title for title, _ in study.plans[-1].ladder.recipes] == ["baseline", "Loader workers 1"]


def test_continue_measures_what_was_measured_and_goes_when_a_switch_is_changed(monkeypatch):
    base, run = RUNS
    pairings = [
        replace(each, own_samples_per_s=[100.0, 140.0], other_samples_per_s=[140.0, 100.0], disturbed=[])
        for each in run.pairings
    ]
    study = FakeStudy(monkeypatch, lambda progress: [base, replace(run, pairings=pairings)])
    bench = pk.Workbench()
    bench.set(workers=1)
    bench.run()
    assert "pk-off" not in bench._continue._dom_classes
    bench.set(workers=1)
    assert "pk-off" not in bench._continue._dom_classes, "nothing is changed"
    press(bench, "pk-continue")
    wait_until(lambda: not bench.is_busy)
    assert study.plans[0].ladder.recipes == study.plans[1].ladder.recipes
    bench.controls.by_name["workers"].value = 2
    assert "pk-off" in bench._continue._dom_classes, "its rounds would be those of another recipe"


def test_a_stop_before_the_first_round_leaves_what_is_shown_and_profile_leaves_continue(monkeypatch, bench):
    base, run = RUNS
    pairings = [
        replace(each, own_samples_per_s=[100.0, 140.0], other_samples_per_s=[140.0, 100.0], disturbed=[])
        for each in run.pairings
    ]
    answer = [replace(base, id="base"), replace(run, id="open", pairings=pairings)]

    def measured(progress):
        for each in answer:
            RunStore().add(each)
        return answer

    def stopped(progress):
        raise Cancelled("stopped on request")

    FakeStudy(monkeypatch, stopped)
    tick(bench, RUNS[1])
    with pytest.raises(Cancelled):
        bench.run()
    assert bench.runs == [RUNS[1]]
    FakeStudy(monkeypatch, measured)
    bench.set(workers=1)
    bench.run()
    shown = Shown(None, ["what a step does"])
    with monkeypatch.context() as profiled:
        profiled.setattr(lookup, "load", lambda place: lambda *args, **named: shown)
        bench.profile()
    study = FakeStudy(monkeypatch, stopped)
    for _ in range(2):
        assert "pk-off" not in bench._continue._dom_classes and bench.runs == answer
        assert list(bench.sections()) == ["what a step does"], "it is still the newest"
        press(bench, "pk-continue")
        wait_until(lambda: not bench.is_busy)
    assert study.earlier == answer


def test_runs_that_are_ticked_while_it_measures_are_no_part_of_its_answer(monkeypatch, bench):
    """The session of the old runs was remembered as what the new plan had measured."""
    base = replace(RUNS[0], id="base", session="new")
    failed = replace(RUNS[1], id="failed", session="new", status="failed", reason="it broke", pairings=[])
    finished = []

    def measured(progress):
        tick(bench, *RUNS)
        progress.finish(base)
        finished.extend(bench.answer.runs)
        return [base, failed]

    FakeStudy(monkeypatch, measured)
    bench.set(workers=1)
    with pytest.raises(PerfkitError, match="it broke"):
        bench.run()
    assert finished == [base]
    assert RunStore().remembered(plan_key(bench.plan)) == []


def test_two_ticked_runs_are_compared(bench):
    assert bench.sections() == ()
    tick(bench, *RUNS)
    text = terminal.text(bench.sections())
    assert "data loading" in text and "samples/s" in text
    other, elsewhere = (replace(RUNS[1], id=name, session=name, device=name) for name in ("cpu", "cuda"))
    for run in (other, elsewhere):
        RunStore().add(run)
    bench._plan_changed()
    tick(bench, RUNS[0], other)
    text = " ".join(terminal.text(bench.sections()).split())
    assert "1.53× (1.4" in text and "as fast" in text
    assert "First losses: not the same (" in text
    assert "These runs were not all measured together" in text
    tick(bench, elsewhere)
    assert "not all measured together" not in terminal.text(bench.sections())


def test_a_ticked_run_gives_its_switches_its_script_and_a_report(bench):
    press(bench, "pk-use")
    assert "no run is shown" in words(bench)
    tick(bench, RUNS[1])
    press(bench, "pk-use")
    assert bench.controls.recipe.workers == RUNS[1].recipe["workers"]
    press(bench, "pk-export")
    assert "Save train.py" in bench._link.value and "Save perfkit-runs.json" in bench._link.value
    assert "Save perfkit-report.html" in bench._link.value


def test_deleted_runs_come_back(bench):
    for run in RUNS:
        tick(bench, run)
        press(bench, "pk-delete")
    assert RunStore().history() == bench.history.rows == []
    press(bench, "pk-undo")
    assert len(bench.history.rows) == 2


def test_runs_of_a_recording_are_shown_and_not_deleted():
    bench = pk.Workbench(device="recorded:cpu-quick")
    assert len(bench.history.rows) == len(bench.history.ticked) > 2
    press(bench, "pk-delete")
    assert "no run" in words(bench)
    assert len(bench.history.rows) > 2


def test_profile_is_an_addition_and_its_button_goes_with_it(monkeypatch):
    bench = pk.Workbench()
    shown = Shown(None, ["what a step does"])
    monkeypatch.setattr(lookup, "load", lambda place: lambda *args, **named: shown)
    bench.profile()
    assert list(bench.sections()) == ["what a step does"]
    press(bench, "pk-profile")
    monkeypatch.undo()
    monkeypatch.setattr(registry, "table", lambda name: {})
    with pytest.raises(AssertionError, match="no pk-profile"):
        press(Workbench(), "pk-profile")


def test_profile_looks_where_run_measures(monkeypatch):
    where = {"device": "sim:v100", "host": "cores=4,fetch_ms=3"}
    bench, asked = pk.Workbench(**where), []

    def profile(*args, **named):
        asked.append(named)
        return Shown(None, ["what a step does"])

    monkeypatch.setattr(lookup, "load", lambda place: profile)
    bench.profile()
    assert {name: asked[0][name] for name in where} == where


@pytest.mark.integration
def test_twenty_draws_leave_as_many_widgets_as_one(monkeypatch):
    FakeStudy(monkeypatch)
    bench = pk.Workbench()

    def draw():
        bench.run()
        bench.set(amp="bf16")

    draw()
    before = len(widgets.widgets.widget._instances)
    for _ in range(20):
        draw()
    assert len(widgets.widgets.widget._instances) == before


def test_a_recording_has_no_steps_to_profile():
    bench = pk.Workbench(device="recorded:cpu-quick")
    with pytest.raises(InvalidValue, match="'cpu-quick' is a recording. It can be shown"):
        bench.profile()


def test_a_row_of_the_history_has_texts_and_the_numbers_to_sort_by():
    RunStore().add(session()[3])
    (row,) = pk.Workbench(workload=WORKLOAD).history.rows
    run = session()[3]
    assert run.samples_per_s and row["rate_value"] == run.samples_per_s.value
    assert (row["rate"], row["ratio"]) == ("25.0 (23.2–26.8)", "1.54× (1.43–1.65) ▲")
    assert (row["changes"], row["date"]) == ("Batch size 128, Loader workers 2", "2026-11-20 12:00")


def test_a_recording_has_a_script_and_a_report_and_its_file_is_there_already():
    bench = pk.Workbench(device="recorded:cpu-quick")
    press(bench, "pk-export")
    assert "Save perfkit-report.html" in bench._link.value and "Save train.py" in bench._link.value
    assert "perfkit-runs.json" not in bench._link.value
