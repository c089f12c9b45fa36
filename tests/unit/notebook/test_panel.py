"""What every panel does: run, cancel, one piece of work at a time, errors in words, an end to older work."""

from __future__ import annotations

import _thread
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from perfkit import notebook as pk
from perfkit.errors import InvalidValue, WorkloadError
from perfkit.notebook import panel as panels
from perfkit.notebook import shown
from tests.unit.notebook.fakes import FakeStudy, until_cancelled, wait_until
from tests.unit.show.fake_runs import session

pytestmark = pytest.mark.usefixtures("no_pictures")


def test_the_button_returns_at_once_and_a_second_click_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def does(show: Any, cancelled: threading.Event) -> Any:
        assert go.wait(20)
        return session()[:2]

    study = FakeStudy(monkeypatch, does)
    panel = pk.StagePanel("amp")
    panel._run.click()
    assert panel._run.disabled
    assert not panel._cancel.disabled
    panel._run.click()
    go.set()
    wait_until(lambda: not panel._job.busy)
    assert len(study.plans) == 1
    wait_until(lambda: len(panel.runs) == 2)


def test_a_cell_waits_for_the_work_that_a_button_began(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    go, order = threading.Event(), list[str]()

    def does(show: Any, cancelled: threading.Event) -> Any:
        order.append("begins")
        assert go.wait(20)
        order.append("ends")
        return session()[:2]

    study = FakeStudy(monkeypatch, does)
    panel = pk.StagePanel("amp")
    panel._run.click()
    threading.Timer(0.05, go.set).start()
    panel.run()
    assert order == ["begins", "ends"] * 2
    assert len(study.plans) == 2
    assert "waiting for the work under way" in capsys.readouterr().err


def test_the_stop_button_ends_the_waiting_and_not_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = FakeStudy(monkeypatch, until_cancelled)
    panel = pk.StagePanel("amp")
    panel._run.click()
    wait_until(lambda: panel.runs)
    monkeypatch.setattr(panels.Line, "wait", lambda line: _thread.interrupt_main())
    panel.run()
    assert "stopped before its turn" in capsys.readouterr().err
    assert panel._job.busy
    panel.cancel()
    wait_until(lambda: not panel._job.busy)
    assert len(study.plans) == 1


def test_cancel_ends_the_work_and_keeps_what_was_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeStudy(monkeypatch, until_cancelled)
    panel = pk.StagePanel("amp")
    panel._run.click()
    wait_until(lambda: len(panel.runs) == 1)
    panel._cancel.click()
    wait_until(lambda: not panel._job.busy)
    assert "stopped" in panel.error
    assert "stopped" in panel._status.error.value
    assert len(panel.runs) == 1


@pytest.mark.parametrize(
    ("problem", "shown"),
    [
        (WorkloadError("workload 'x' cannot be built", "Fix <it>"), "Fix &lt;it&gt;"),
        (RuntimeError("odd"), "bug in perfkit"),
        (KeyboardInterrupt(), "stopped"),
    ],
)
def test_an_error_is_shown_in_the_panel_which_stays_usable(
    problem: BaseException, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Any] = [problem, session()[:2]]

    def does(show: Any, cancelled: threading.Event) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    FakeStudy(monkeypatch, does)
    panel = pk.StagePanel("amp")
    panel.run()
    assert shown in panel._status.error.value
    panel.run()
    assert panel._status.error.value == ""
    assert len(panel.runs) == 2


def test_a_stage_that_failed_or_was_stopped_is_an_error_of_the_panel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [session()[-1:], session(gpu=True)[-2:-1]]
    FakeStudy(monkeypatch, lambda show, cancelled: answers.pop(0))
    panel = pk.LadderPanel(["compile"])
    panel.run()
    assert panel.error == f"compile failed: {session()[-1].reason}"
    panel.run()
    assert panel.error == "stopped; what was finished is kept"


def test_a_panel_that_was_stopped_between_rounds_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run keeps the rounds that are complete, so none of them is `cancelled`."""
    panel = pk.LadderPanel(["amp"])

    def stopped(show: Any, cancelled: threading.Event) -> Any:
        cancelled.set()
        return session()[:2]

    FakeStudy(monkeypatch, stopped)
    panel.run()
    assert panel.error == "stopped; what was finished is kept"


def test_a_cell_run_again_ends_the_older_panels_work(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeStudy(monkeypatch, until_cancelled)
    older = pk.StagePanel("amp")
    older._run.click()
    wait_until(lambda: older._job.busy)
    pk.StagePanel("amp")
    wait_until(lambda: not older._job.busy)


def test_a_panel_without_a_browser_says_what_to_do() -> None:
    assert "run this cell" in pk.StagePanel("amp")._repr_mimebundle_()["text/plain"]
    assert "run this cell" in pk.Workbench()._repr_mimebundle_()["text/plain"]


def test_a_class_from_a_cell_is_refused_with_the_way_out() -> None:
    class Mine:
        pass

    for make in (lambda: pk.StagePanel("amp", workload=Mine), lambda: pk.Workbench(workload=Mine)):  # type: ignore[arg-type]
        with pytest.raises(InvalidValue, match="%%writefile"):
            make()


def test_outputs_need_results() -> None:
    for panel in (pk.LadderPanel(), pk.Workbench()):
        for output in (panel.table, panel.plot, panel.verdict):
            with pytest.raises(InvalidValue):
                output()


def test_large_type_is_a_class_of_the_box(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeStudy(monkeypatch)
    panel = pk.LadderPanel(["data_loading"])
    panel.run()
    ordinary = panel._headline.value
    panel.enlarge(True)
    assert "pk-large" in panel.box._dom_classes
    assert panel._headline.value != ordinary
    panel.enlarge(False)
    assert "pk-large" not in panel.box._dom_classes


def test_a_panel_is_shown_once_and_a_run_replaces_what_other_readers_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cell, widgets, outputs = SimpleNamespace(execution_count=1), list[Any](), dict[str, Any]()

    def keep(bundle: Any, raw: bool, display_id: str, metadata: Any = None) -> None:
        outputs[display_id] = bundle

    monkeypatch.setattr(panels, "get_ipython", lambda: cell)
    monkeypatch.setattr(
        panels, "display", lambda it, raw=False: widgets.append(it) if raw else it._ipython_display_()
    )
    monkeypatch.setattr(shown, "display", keep)
    monkeypatch.setattr(shown, "update_display", keep)
    monkeypatch.setattr(pk.StagePanel, "_start_reading", lambda panel: None)
    FakeStudy(monkeypatch)
    panel = pk.StagePanel("data_loading")
    panel.run()  # a panel that was not displayed yet appears
    panel._ipython_display_()
    assert len(widgets) == 1
    picture, words = outputs.values()
    assert "image/png" in picture
    assert "data loading" in words["text/plain"]
    assert "<svg" not in words["text/html"], "where HTML is cleaned, only the text of a picture would be left"
    cell.execution_count = 2
    panel.predict(1.5)
    panel.run()
    assert (len(widgets), len(outputs)) == (1, 2)
    assert "You predicted" in [*outputs.values()][1]["text/html"]
    panel._move(panel.plan)
    assert {output["text/plain"].strip() for output in outputs.values()} == {""}, (
        "another place: no old results"
    )
