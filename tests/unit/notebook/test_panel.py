"""One way for work to begin and to end: in a cell it raises, from the button the panel says it."""

import dataclasses
import errno
import itertools
import sys
import threading
import time
import types
from unittest.mock import Mock

import ipywidgets
import msgspec
import pytest
from IPython.utils.capture import capture_output

from perfkit import notebook as pk
from perfkit import workloads
from perfkit.errors import Cancelled, InvalidValue, PerfkitError, RunFailed, StoreError
from perfkit.notebook.shown import CellOutput
from perfkit.results.store import RunStore
from perfkit.show import html, terminal
from perfkit.studies.decisions import plan_key
from perfkit.studies.job import Stopped
from perfkit.studies.sources import Update
from tests.unit.notebook.fakes import FakeStudy
from tests.unit.show.fake_runs import session


def words(panel):
    """The panel's line and its error."""
    return f"{panel.status.line.value} {panel.status.error.value}"


def press(panel, name):
    """Clicks a button by its CSS class."""
    for widget in _all(panel.widget):
        if name in getattr(widget, "_dom_classes", ()):
            return widget.click()
    raise AssertionError(f"no {name}")


def _all(widget):
    return [widget, *(one for child in getattr(widget, "children", ()) for one in _all(child))]


def until_cancelled(progress):
    """Work that only a stop ends, with one run finished before."""
    progress.finish(session()[0])
    assert progress.cancelled.wait(60)
    raise Cancelled("stopped on request")


def wait_until(true):
    until = time.monotonic() + 60
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_panel_that_no_cell_has_displayed_appears_below_the_cell_that_runs_it(shell, monkeypatch):
    FakeStudy(monkeypatch)
    shell.user_ns["panel"] = pk.LadderPanel(["data_loading"])
    with capture_output() as output:
        shell.run_cell("panel.run()\npanel", store_history=True)
    views = [one for one in output.outputs if "application/vnd.jupyter.widget-view+json" in one.data]
    assert len(views) == 1


class Place:
    """In the place of a cell's output: notes what it was told to show."""

    def __init__(self):
        self.said = []

    def show(self, contents):
        self.said.append("a result" if contents else "nothing")

    def line(self, now):
        self.said.append(now.describe())


def test_the_result_of_a_cell_stays_while_the_next_one_measures(monkeypatch):
    FakeStudy(monkeypatch)
    panel = pk.LadderPanel(["data_loading"])
    first, second = Place(), Place()
    places = iter([first, second])
    monkeypatch.setattr(panel, "_output_here", lambda: next(places))
    panel.run()
    assert first.said[0] == "starting …" and first.said[-1] == "a result"
    said = [*first.said]
    panel.run()
    assert first.said == said and second.said[0] == "starting …" and second.said[-1] == "a result"


def test_whoever_reads_done_finds_every_button_usable(monkeypatch):
    FakeStudy(monkeypatch)
    panel = pk.StagePanel("data_loading")
    run = next(one for one in _all(panel.widget) if "pk-run" in getattr(one, "_dom_classes", ()))
    seen = []

    def note(change):
        if "done" in change.new:
            seen.append(run.disabled)

    panel.status.line.observe(note, "value")
    panel.run()
    assert seen == [False]


@pytest.mark.parametrize(
    ("make", "status", "error"),
    [
        (pk.StagePanel, "failed", RunFailed),
        (lambda stage: pk.LadderPanel([stage]), "failed", RunFailed),
        (pk.StagePanel, "cancelled", Cancelled),
    ],
)
def test_a_run_without_a_result_raises_in_a_cell_and_stands_in_the_panel(monkeypatch, make, status, error):
    ok, *others = session()[:3]
    runs = [ok, *(msgspec.structs.replace(run, status=status, reason="out of memory") for run in others)]
    FakeStudy(monkeypatch, lambda progress: runs)
    panel = make("data_loading")
    with pytest.raises(error):
        panel.run()
    assert len(panel.runs) == 3, "what was finished is kept"
    press(panel, "pk-run")
    wait_until(lambda: not panel.is_busy and panel.status.error.value)
    assert words(panel).count("out of memory" if status == "failed" else "stopped; what") == 1
    assert status != "failed" or "out of memory" not in terminal.text(panel.sections()), "it is said once"


def test_a_file_that_cannot_be_read_is_no_bug_of_perfkit(monkeypatch):
    def denied(progress):
        raise PermissionError(errno.EACCES, "Permission denied", "there.json")

    FakeStudy(monkeypatch, denied)
    panel = pk.LadderPanel(["data_loading"])
    press(panel, "pk-run")
    wait_until(lambda: "change its permissions" in words(panel))
    assert "there.json: Permission denied" in words(panel)
    assert "bug" not in words(panel) and "Traceback" not in words(panel)


def test_an_error_that_nobody_expected_keeps_its_traceback(monkeypatch):
    def broken(progress):
        raise ZeroDivisionError("<b>")

    FakeStudy(monkeypatch, broken)
    panel = pk.LadderPanel(["data_loading"])
    press(panel, "pk-run")
    wait_until(lambda: "Traceback" in words(panel))
    assert "ZeroDivisionError: &lt;b&gt;" in words(panel)
    with pytest.raises(ZeroDivisionError):
        panel.run()


def test_a_second_click_does_nothing_and_a_cell_waits(monkeypatch):
    started, go = threading.Event(), threading.Event()

    def slowly(progress):
        started.set()
        assert go.wait(60)
        return session()[:2]

    study = FakeStudy(monkeypatch, slowly)
    panel = pk.LadderPanel(["data_loading"])
    press(panel, "pk-run")
    assert started.wait(60)
    press(panel, "pk-run")
    panel.start(panel._measure)
    with pytest.raises(InvalidValue, match="busy"):
        panel.set(workers=1)
    panel.choose("cuda")
    assert panel._menu.value == "cpu" and "busy" in words(panel)
    cell = threading.Thread(target=panel.run)
    cell.start()
    go.set()
    cell.join(60)
    assert len(study.plans) == 2


def test_a_click_that_comes_as_a_job_ends_begins_the_next(monkeypatch):
    """The inputs are usable a moment before: it was ignored."""
    study = FakeStudy(monkeypatch)
    panel = pk.LadderPanel(["data_loading"])
    clicks = [threading.Thread(target=press, args=(panel, "pk-run"))]

    def note(change):
        if "done" in change.new and clicks:
            click = clicks.pop()
            click.start()
            click.join(0.5)  # it returns at once where it is ignored

    panel.status.line.observe(note, "value")
    press(panel, "pk-run")
    wait_until(lambda: len(study.plans) == 2 and not panel.is_busy)
    assert "done" in words(panel)


def test_a_panel_whose_thread_cannot_start_is_not_busy(monkeypatch):
    study = FakeStudy(monkeypatch)
    panel = pk.LadderPanel(["data_loading"])
    panel._output = below = CellOutput()
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        press(panel, "pk-run")
    assert panel._output is below, "its result is below another cell, and stays there"
    assert not panel.is_busy and "can't start new thread" in words(panel).replace("&#x27;", "'")
    panel.run()
    assert len(study.plans) == 1


def test_stop_keeps_what_was_finished_and_a_cell_run_again_stops_the_panel_before(monkeypatch):
    FakeStudy(monkeypatch, until_cancelled)
    panel = pk.StagePanel("data_loading", settings={"batch_size": 2})
    for stop in (panel.stop, lambda: pk.StagePanel("data_loading", settings={"batch_size": 2})):
        panel._set_answer(dataclasses.replace(panel.answer, runs=[]))
        press(panel, "pk-run")
        wait_until(lambda: len(panel.runs) == 1)
        others = pk.StagePanel("data_loading", settings={"batch_size": 8}), pk.LadderPanel()
        assert panel.job.state == "running", others
        newer = stop()
        wait_until(lambda: not panel.is_busy and "what was finished is kept" in words(panel))
        assert [run.title for run in panel.runs] == ["baseline"], newer


@pytest.mark.integration
def test_twenty_draws_leave_as_many_widgets_as_one(monkeypatch):
    FakeStudy(monkeypatch)
    panel = pk.StagePanel("data_loading")

    def draw():
        panel.run()
        panel.set(workers=1)

    draw()
    before = len(ipywidgets.widgets.widget._instances)
    for _ in range(20):
        draw()
    assert len(ipywidgets.widgets.widget._instances) == before


def test_the_line_says_what_is_left():
    panel = pk.LadderPanel(["data_loading"])
    panel.status.follow(Update("baseline", "measuring", 0.5, left_s=600))
    assert "baseline: measuring, at most 10:00 left, 50%<" in panel.status.line.value, "one estimate"


def test_a_class_of_a_cell_is_refused_with_what_to_do():
    class Mine: ...

    for mine in (Mine, "__main__:Mine"):
        with pytest.raises(InvalidValue, match="writefile.*my_training:Mine"):
            pk.LadderPanel(workload=mine)


def test_in_colab_the_click_itself_does_the_work(monkeypatch):
    """What a thread sets does not show there; no click arrives meanwhile, so that there is no Stop."""
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    here = []
    FakeStudy(monkeypatch, lambda progress: here.append(threading.current_thread()) or session()[:2])
    panel = pk.LadderPanel(["data_loading"])
    press(panel, "pk-run")
    assert here == [threading.current_thread()] and len(panel.runs) == 2
    assert panel._stop.layout.display == "none"


def test_the_kernels_interrupt_stops_a_click_in_colab(monkeypatch):
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))

    def interrupted(progress):
        progress.finish(session()[0])
        raise KeyboardInterrupt

    FakeStudy(monkeypatch, interrupted)
    panel = pk.LadderPanel(["data_loading"])
    press(panel, "pk-run")
    assert "what was finished is kept" in words(panel) and len(panel.runs) == 1
    press(panel, "pk-run")
    assert len(panel.runs) == 1, "the next click works"


def test_inputs_are_disabled_while_it_runs_and_what_was_asked_is_what_is_remembered(monkeypatch):
    """Set by a hand that was faster than the browser, or by code: the control goes back."""
    started, go = threading.Event(), threading.Event()

    def slowly(progress):
        started.set()
        assert go.wait(60)
        for run in session()[:2]:
            RunStore().add(run)
        return session()[:2]

    study = FakeStudy(monkeypatch, slowly)
    panel = pk.StagePanel("data_loading")
    press(panel, "pk-run")
    assert started.wait(60)
    inputs = [*panel.controls.by_name.values(), panel._menu, panel._guess]
    buttons = [one for one in _all(panel.widget) if isinstance(one, ipywidgets.Button)]
    assert all(one.disabled for one in inputs)
    assert [one.description for one in buttons if not one.disabled] == ["Stop"]
    workers = panel.controls.by_name["workers"]
    before = workers.value
    workers.value = 7
    assert (workers.value, panel.controls.recipe.workers) == (before, before)
    go.set()
    wait_until(lambda: not panel.is_busy)
    assert not any(one.disabled for one in inputs)
    assert RunStore().remembered(plan_key(study.plans[-1]))


def test_a_stopped_answer_does_not_take_the_place_of_a_complete_one(monkeypatch):
    """The study comes back with runs that have a round each, as the real one does."""
    runs = session()[:2]
    for run in runs:
        RunStore().add(run)
    FakeStudy(monkeypatch, lambda progress: runs)
    panel = pk.LadderPanel(["data_loading"])
    panel.run()
    fewer = [msgspec.structs.replace(run, id=f"{run.id}-fewer", session="stopped") for run in runs]

    def stopped(progress):
        for run in fewer:
            RunStore().add(run)
        panel.stop()
        return fewer

    FakeStudy(monkeypatch, stopped)
    with pytest.raises(Stopped, match="what was finished is kept"):
        panel.run()
    assert [*panel.runs] == fewer, "what was finished is shown"
    assert "stopped" in panel.status.line.value
    assert RunStore().remembered(plan_key(panel.plan)) == runs


@pytest.mark.parametrize(("missing", "is_of_panels"), [("anywidget", True), ("torchvision", False)])
def test_only_for_packages_of_panels_a_missing_one_has_their_remedy(missing, is_of_panels, monkeypatch):
    def load(reference):
        raise ModuleNotFoundError(f"No module named '{missing}'", name=missing)

    monkeypatch.setattr(pk, "lookup", types.SimpleNamespace(load=load))
    expected = "anywidget is missing" if is_of_panels else "No module named 'torchvision'"
    with pytest.raises(PerfkitError if is_of_panels else ModuleNotFoundError, match=expected):
        pk.__getattr__("StagePanel")


def test_a_disk_that_was_full_once_says_nothing_of_the_next_run(monkeypatch):
    def full(progress):
        panel.store.lost.append("baseline was measured, but not stored: the disk is full")
        return session()[:2]

    FakeStudy(monkeypatch, full)
    panel = pk.LadderPanel(["data_loading"])
    with pytest.raises(StoreError, match="the disk is full"):
        panel.run()
    FakeStudy(monkeypatch)
    panel.run()
    assert "done" in panel.status.line.value


@pytest.mark.parametrize("problem", [StoreError("the store is damaged"), KeyboardInterrupt()])
def test_what_drawing_raises_leaves_run_enabled_and_the_first_problem_told(monkeypatch, problem):
    def fails(progress):
        raise RunFailed("the first problem")

    def sections():
        raise problem

    FakeStudy(monkeypatch, fails)
    panel = pk.LadderPanel(["data_loading"])
    panel.sections = sections
    with pytest.raises((RunFailed, KeyboardInterrupt)):
        panel.run()
    assert not any(one.disabled for one in panel._inputs)
    assert panel._stop.disabled
    press(panel, "pk-run")
    wait_until(lambda: panel.status.error.value)
    assert isinstance(problem, KeyboardInterrupt) or "the first problem" in panel.status.error.value


def undecided(run):
    """A run whose comparison with the one before it more rounds would decide."""
    rounds = [100.0, 140.0]
    (pairing,) = [one for one in run.pairings if one.role == "previous"]
    few = {"own_samples_per_s": rounds, "other_samples_per_s": rounds[::-1], "disturbed": []}
    found = msgspec.structs.replace(run, pairings=[msgspec.structs.replace(pairing, **few)])
    assert found.speedup("previous").verdict == "undecided"
    return found


def measured(*runs):
    """A study that comes back with these runs."""

    def study(progress):
        for run in runs:
            progress.finish(run)
        return [*runs]

    return study


def offers_more(panel):
    return "pk-off" not in panel._continue._dom_classes


def pressed(panel, name):
    """Clicks a button, and waits for the work that it starts."""
    press(panel, name)
    wait_until(lambda: not panel.is_busy and bool(panel.job.problem) == bool(panel.status.error.value))


def test_continue_is_there_only_for_what_is_open_and_adds_to_the_runs_before(monkeypatch):
    base, stage = session()[:2]
    open_ = undecided(stage)
    FakeStudy(monkeypatch, measured(base, open_))
    panel = pk.LadderPanel(["data_loading"])
    assert not offers_more(panel)
    panel.run()
    assert offers_more(panel)
    study = FakeStudy(monkeypatch, measured(base, stage))
    with monkeypatch.context() as edited:
        edited.setattr(workloads, "source", lambda name: b"edited")
        press(panel, "pk-continue")
    assert "has changed since these rounds were measured. Press Run" in words(panel)
    assert not study.plans and [*panel.runs] == [base, open_]
    failed = msgspec.structs.replace(stage, status="failed", reason="out of memory")
    with monkeypatch.context() as fails:
        FakeStudy(fails, measured(base, failed))
        pressed(panel, "pk-continue")
    assert "out of memory" in words(panel)
    assert [*panel.runs] == [base, open_], "what failed adds no rounds"
    assert offers_more(panel)
    study = FakeStudy(monkeypatch, measured(base, stage))
    pressed(panel, "pk-continue")
    assert [*study.earlier] == [base, open_]
    assert not offers_more(panel), "it is decided"


@pytest.mark.parametrize("button", ["pk-continue", "pk-run"])
@pytest.mark.parametrize(
    "problem", [Cancelled("stopped on request"), KeyboardInterrupt(), RunFailed("it cannot be loaded")]
)
def test_what_ends_before_it_measures_leaves_the_answer_and_what_is_known_of_it(monkeypatch, button, problem):
    def ends(progress):
        raise problem

    base, stage = session()[:2]
    answer = [base, undecided(stage)]
    FakeStudy(monkeypatch, measured(*answer))
    panel = pk.StagePanel("data_loading")
    panel.run()
    shown = terminal.text(panel.sections())
    assert "Parity" in shown
    plan = panel.answer.plan
    for _ in range(2):
        FakeStudy(monkeypatch, ends)
        pressed(panel, button)
        assert panel.job.state in ("stopped", "failed") and panel.status.error.value
        assert [*panel.runs] == answer and terminal.text(panel.sections()) == shown
        assert offers_more(panel)
    study = FakeStudy(monkeypatch, measured(base, stage))
    pressed(panel, "pk-continue")
    assert ([*study.earlier], study.plans) == (answer, [plan])


def test_rounds_that_were_measured_before_a_stop_are_part_of_the_answer(monkeypatch):
    base, stage = session()[:2]
    joined = [msgspec.structs.replace(run, id=f"{run.id}-more") for run in (base, undecided(stage))]
    FakeStudy(monkeypatch, measured(base, undecided(stage)))
    panel = pk.LadderPanel(["data_loading"])
    panel.run()

    def interrupted(progress):
        for run in joined:
            progress.finish(run)
        raise KeyboardInterrupt

    FakeStudy(monkeypatch, interrupted)
    pressed(panel, "pk-continue")
    assert [*panel.runs] == joined and offers_more(panel)
    study = FakeStudy(monkeypatch, measured(base, stage))
    pressed(panel, "pk-continue")
    assert [*study.earlier] == joined


@pytest.mark.parametrize("button", ["pk-continue", "pk-run"])
@pytest.mark.parametrize("has_more", [False, True])
def test_a_measurement_that_is_stopped_leaves_what_is_known_of_the_training(monkeypatch, has_more, button):
    """The study comes back with the runs that were there, or with further rounds of both."""
    base, stage = session()[:2]
    answer = [base, undecided(stage)]
    more = [msgspec.structs.replace(run, session="of further rounds") for run in answer]
    FakeStudy(monkeypatch, measured(*answer))
    panel = pk.StagePanel("data_loading")
    panel.run()
    proof = panel.answer.proof
    runs = more if has_more else answer

    def stopped(progress):
        panel.stop()
        return measured(*runs)(progress)

    FakeStudy(monkeypatch, stopped)
    pressed(panel, button)
    assert panel.job.state == "stopped" and [*panel.runs] == runs
    assert proof and panel.answer.proof is proof
    assert "Parity" in terminal.text(panel.sections()) and offers_more(panel)


def test_a_run_that_failed_before_is_not_told_again_by_a_stop(monkeypatch):
    titles = {"plain": {}, "AMP": {"amp": "bf16"}, "workers": {"workers": 1}}
    base, stage = session()[:2]
    failed = msgspec.structs.replace(
        stage, id="workers", title="workers", status="failed", reason="no memory"
    )
    answer = [base, undecided(stage), failed]
    FakeStudy(monkeypatch, measured(*answer))
    panel = pk.RecipePanel(titles)
    pressed(panel, "pk-run")
    assert "workers failed: no memory" in words(panel)

    def stopped(progress):
        panel.stop()
        return answer

    FakeStudy(monkeypatch, stopped)
    pressed(panel, "pk-continue")
    assert panel.job.state == "stopped" and "no memory" not in words(panel)
    assert [*panel.runs] == answer


def test_a_refusal_leaves_the_result_below_the_cell_that_has_it(monkeypatch):
    base, stage = session()[:2]
    FakeStudy(monkeypatch, measured(base, undecided(stage)))
    panel = pk.LadderPanel(["data_loading"])
    below, controls = Place(), Place()
    monkeypatch.setattr(panel, "_output_here", lambda: below)
    monkeypatch.setattr(panel, "_panel_output", controls)
    panel.run()
    monkeypatch.setattr(workloads, "source", lambda name: b"edited")
    press(panel, "pk-continue")
    assert "has changed since these rounds were measured" in words(panel)
    before = len(below.said), len(controls.said)
    panel.show()
    assert below.said[before[0] :] == ["a result"]
    assert controls.said[before[1] :] == [], "it is there once"


def test_a_recipe_that_fails_keeps_its_rounds_and_one_that_has_none_holds_no_other_up(monkeypatch):
    titles = {"plain": {}, "AMP": {"amp": "bf16"}, "workers": {"workers": 1}}
    base, stage = session()[:2]
    plain = msgspec.structs.replace(base, title="plain")
    amp = msgspec.structs.replace(undecided(stage), id="AMP", title="AMP")
    workers = msgspec.structs.replace(stage, id="workers", title="workers")
    failed = msgspec.structs.replace(workers, status="failed", reason="out of memory")
    more = [msgspec.structs.replace(run, id=f"{run.id} more") for run in (plain, amp)]
    FakeStudy(monkeypatch, measured(plain, amp, workers))
    panel = pk.RecipePanel(titles)
    panel.run()
    FakeStudy(monkeypatch, measured(*more, failed))
    pressed(panel, "pk-continue")
    assert [*panel.runs] == [plain, amp, workers] and "workers failed: out of memory" in words(panel)
    other = pk.RecipePanel(titles, settings={"channels_last": True})
    FakeStudy(monkeypatch, measured(plain, amp, failed))
    pressed(other, "pk-run")
    study = FakeStudy(monkeypatch, measured(*more, failed))
    for earlier in ([plain, amp, failed], [*more, failed]):
        assert [*other.runs] == earlier and offers_more(other)
        pressed(other, "pk-continue")
        assert [*study.earlier] == earlier


def test_a_ladder_that_is_stopped_on_its_way_does_not_take_the_place_of_a_whole_one(monkeypatch):
    """Nor does one that cannot be continued offer it; one that ends takes the place of any other."""
    whole = [run for run in session() if run.status == "ok"]
    FakeStudy(monkeypatch, measured(*whole))
    panel = pk.LadderPanel()
    panel.run()

    def stopped(progress):
        panel.stop()
        return whole[:2]

    FakeStudy(monkeypatch, stopped)
    pressed(panel, "pk-run")
    assert panel.job.state == "stopped" and [*panel.runs] == whole
    FakeStudy(monkeypatch, measured(whole[0], undecided(whole[1])))
    pressed(panel, "pk-run")
    assert len(panel.runs) == 2 and not offers_more(panel), "nothing was kept this time"


def test_an_answer_of_an_earlier_panel_can_be_continued(monkeypatch):
    base, stage = session()[:2]
    answer = [base, undecided(stage)]
    for run in answer:
        RunStore().add(run)
    FakeStudy(monkeypatch, measured(*answer))
    pk.LadderPanel(["data_loading"]).run()
    later = pk.LadderPanel(["data_loading"])
    assert [*later.runs] == answer and offers_more(later)
    study = FakeStudy(monkeypatch, measured(base, stage))
    pressed(later, "pk-continue")
    assert [*study.earlier] == answer


@pytest.mark.parametrize("captured", [True, False])
def test_a_result_that_an_output_widget_would_take_is_shown_in_the_panel(shell, monkeypatch, captured):
    FakeStudy(monkeypatch)
    panel = pk.LadderPanel(["data_loading"])
    output = ipywidgets.Output()
    if captured:
        output.msg_id = "as `with output` sets it"
    panel._ipython_display_()
    output.msg_id = ""
    press(panel, "pk-run")
    wait_until(lambda: "done" in panel.status.line.value)
    inside = next(one for one in _all(panel.widget) if "pk-result" in one._dom_classes)
    assert ("<svg" in inside.value) == captured


def test_a_panel_in_a_tab_shows_its_result_there(monkeypatch):
    FakeStudy(monkeypatch)
    panel = pk.LadderPanel(["data_loading"])
    tab = ipywidgets.Tab([panel.widget])
    press(panel, "pk-run")
    wait_until(lambda: "done" in panel.status.line.value)
    assert any("<svg" in getattr(one, "value", "") for one in _all(tab) if isinstance(one, ipywidgets.HTML))


CELLS = [
    {"metadata": {"cellId": "the same"}, "content": {"code": "as it is now"}},
    {"metadata": {}, "content": {"code": "pk.StagePanel('data_loading')"}},  # a notebook without ids
]


@pytest.fixture
def execute(monkeypatch):
    """Makes panels in a cell: each call is one run of it."""
    runs = itertools.count()

    def execute(cell, *make):
        message = {**cell, "header": {"msg_id": f"run {next(runs)}"}}
        shell = type("Shell", (), {"get_parent": lambda self: message})
        monkeypatch.setattr("perfkit.notebook.panel.get_ipython", shell)
        return [one() for one in make]

    return execute


def is_open(panel):
    return panel.widget in ipywidgets.widgets.widget._instances.values()


@pytest.mark.parametrize("message", CELLS)
def test_a_cell_that_runs_again_leaves_nothing_of_its_older_panel(execute, message):
    execute(message, lambda: pk.StagePanel("data_loading"))
    before = len(ipywidgets.widgets.widget._instances)
    for _ in range(3):
        execute(message, lambda: pk.StagePanel("data_loading"))
    assert len(ipywidgets.widgets.widget._instances) == before


@pytest.mark.parametrize("message", CELLS)
def test_panels_of_one_run_of_a_cell_leave_each_other_alone_until_it_runs_again(
    monkeypatch, execute, message
):
    FakeStudy(monkeypatch, until_cancelled)
    make = [lambda stage=stage: pk.LadderPanel([stage]) for stage in ("amp", "compile")]

    def busy():
        panel = pk.StagePanel("data_loading")
        press(panel, "pk-run")
        wait_until(lambda: panel.runs)
        return panel

    older = execute(message, busy, lambda: pk.StagePanel("data_loading"), *make)
    assert all(map(is_open, older)) and older[0].job.state == "running"
    other = execute({"metadata": {"cellId": "another"}}, *make)
    assert all(map(is_open, older + other)) and older[0].job.state == "running"
    newer = execute(message, lambda: pk.StagePanel("data_loading"), *make)
    assert all(map(is_open, newer + other)) and not any(map(is_open, older))
    wait_until(lambda: not older[0].is_busy)
    assert older[0].job.state == "stopped"


def test_a_cell_that_was_edited_and_runs_again_replaces_its_older_panel(execute):
    (older,) = execute(CELLS[0], lambda: pk.StagePanel("data_loading"))
    (newer,) = execute(CELLS[0], lambda: pk.LadderPanel(["data_loading"], settings={"workers": 1}))
    assert is_open(newer) and not is_open(older)


def test_what_is_kept_makes_no_widget():
    before = len(ipywidgets.widgets.widget._instances)
    pk.kept()
    assert len(ipywidgets.widgets.widget._instances) == before


def test_the_text_of_a_result_has_its_ratio(monkeypatch):
    FakeStudy(monkeypatch)
    panel = pk.StagePanel("data_loading")
    panel.run()
    assert "1.5" in html.mimebundle(panel.sections())["text/plain"]
