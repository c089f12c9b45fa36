"""One way for work to begin and to end: in a cell it raises, from the button the panel says it."""

import sys
import threading
import time
import types

import ipywidgets
import msgspec
import pytest
from IPython.utils.capture import capture_output

from perfkit import notebook as pk
from perfkit.errors import Cancelled, InvalidValue, RunFailed
from perfkit.show import terminal
from perfkit.studies.sources import Update
from tests.unit.notebook.fakes import FakeStudy
from tests.unit.show.fake_runs import session


def words(panel):
    """The panel's line and its error."""
    return f"{panel.line.value} {panel.error.value}"


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
    assert progress.cancelled.wait(20)
    raise Cancelled("stopped on request")


def wait_until(true):
    until = time.monotonic() + 20
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
    wait_until(lambda: not panel._turn.locked())
    assert words(panel).count("out of memory" if status == "failed" else "stopped; what") == 1
    assert status != "failed" or "out of memory" not in terminal.text(panel.sections()), "it is said once"


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
        assert go.wait(20)
        return session()[:2]

    study = FakeStudy(monkeypatch, slowly)
    panel = pk.LadderPanel(["data_loading"])
    press(panel, "pk-run")
    assert started.wait(20)
    press(panel, "pk-run")
    panel.start(panel._measure)
    with pytest.raises(InvalidValue, match="at work"):
        panel.set(workers=1)
    panel._menu.value = "recorded:cpu-quick"
    assert panel._menu.value == "cpu" and "at work" in words(panel)
    cell = threading.Thread(target=panel.run)
    cell.start()
    go.set()
    cell.join(20)
    assert len(study.plans) == 2


def test_stop_keeps_what_was_finished_and_a_cell_run_again_stops_the_panel_before(monkeypatch):
    FakeStudy(monkeypatch, until_cancelled)
    panel = pk.StagePanel("data_loading", settings={"batch_size": 2})
    for stop in (panel.stop, lambda: pk.StagePanel("data_loading", settings={"batch_size": 2})):
        panel.runs = []
        press(panel, "pk-run")
        wait_until(lambda: len(panel.runs) == 1)
        others = pk.StagePanel("data_loading", settings={"batch_size": 8}), pk.Workbench()
        assert not panel.cancelled.is_set(), others
        newer = stop()
        wait_until(lambda: not panel._turn.locked())
        assert [run.title for run in panel.runs] == ["baseline"], newer
        assert "what was finished is kept" in words(panel)


def test_two_hundred_draws_leave_as_many_widgets_as_two(monkeypatch):
    FakeStudy(monkeypatch)
    panel = pk.StagePanel("data_loading")
    bench = pk.Workbench()

    def draw():
        panel.run()
        panel.set(workers=1)
        bench.run()
        bench.set(amp="bf16")

    draw()
    before = len(ipywidgets.widgets.widget._instances)
    for _ in range(20):
        draw()
    assert len(ipywidgets.widgets.widget._instances) == before


def test_the_line_says_what_is_left():
    panel = pk.LadderPanel(["data_loading"])
    panel._started = time.monotonic() - 600
    panel.follow(Update("baseline", "measuring", 0.5))
    assert "baseline: measuring, 50%, about 10 min left" in panel.line.value


def test_a_class_of_a_cell_is_refused_with_what_to_do():
    class Mine: ...

    with pytest.raises(InvalidValue, match="writefile"):
        pk.LadderPanel(workload=Mine)


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
