"""Panels in process: toggles, the error path, cancel, the queue. No browser, and a ladder that is faked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfkit import notebook as pk
from perfkit.errors import Cancelled, InvalidValue, WorkloadError
from perfkit.notebook import parts
from perfkit.notebook import stage as stages
from perfkit.notebook.controls import Controls
from perfkit.process import child as runner
from perfkit.program.recipe import Recipe, switches
from perfkit.program.rules import Target
from perfkit.results.parity import Check, Parity
from perfkit.studies import engine
from tests.unit.show.fake_runs import session

CPU = Target(device="cpu", offers=frozenset({"uint8_copy"}))


@pytest.fixture(autouse=True)
def _own_store(data_dir: Path) -> None:
    """An empty store for each test."""


class Climb:
    """In the place of `experiment.climb`: does what it is told, and remembers the plans."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, does: Callable[..., Any] | None = None) -> None:
        self.plans: list[engine.Plan] = []
        self.does = does or (lambda show, cancelled: session()[:2])
        monkeypatch.setattr(engine, "climb", self)
        same = Parity("AMP", "bitwise", [Check("losses", True, "equal")], False, {})
        monkeypatch.setattr(stages.proving, "parity", lambda *given, **named: same)

    def __call__(self, plan: engine.Plan, store: Any, show: Any, cancelled: threading.Event) -> Any:
        self.plans.append(plan)
        return self.does(show, cancelled)


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


# ---------------------------------------------------------------- controls


def test_every_switch_has_a_control_known_by_its_name() -> None:
    controls = Controls(switches())
    assert len(controls.by_name) == len(switches()) >= 21
    for name, control in controls.by_name.items():
        assert f"pk-switch-{name}" in controls.boxes[name]._dom_classes
        assert control.description
        assert control.tooltip


def test_a_toggle_becomes_the_recipe_and_is_told_once() -> None:
    told: list[Recipe] = []
    controls = Controls(switches(), on_change=told.append)
    controls.by_name["workers"].value = 3
    controls.by_name["amp"].value = "bf16"
    controls.by_name["channels_last"].value = True
    assert controls.recipe == Recipe(workers=3, amp="bf16", channels_last=True)
    assert len(told) == 3
    controls.show(Recipe(batch_size=64))
    assert controls.by_name["batch_size"].value == 64
    assert controls.by_name["workers"].value == 0
    assert len(told) == 3


def test_what_cannot_act_is_disabled_with_the_reason_and_comes_back() -> None:
    controls = Controls(switches())
    controls.set_target(CPU)
    assert controls.by_name["pin_memory"].disabled
    assert "CUDA" in controls.marks["pin_memory"].value
    assert controls.by_name["device_dataset"].disabled
    assert not controls.by_name["uint8_copy"].disabled
    assert controls.by_name["persistent_workers"].disabled
    controls.by_name["workers"].value = 2
    assert not controls.by_name["persistent_workers"].disabled


def test_a_switch_left_on_that_can_no_longer_act_says_so_and_can_be_put_back() -> None:
    controls = Controls(switches())
    controls.set_target(CPU)
    controls.by_name["compile"].value = True
    controls.by_name["compile_mode"].value = "max-autotune"
    controls.by_name["compile"].value = False
    assert "Compile mode acts only with" in controls.why.value
    assert not controls.by_name["compile_mode"].disabled


def test_a_toggle_is_quick() -> None:
    """Counts work, not time: one toggle makes no figure and asks no process."""
    controls = Controls(switches())
    controls.set_target(CPU)
    before = threading.active_count()
    controls.by_name["channels_last"].value = True
    assert threading.active_count() == before


# ---------------------------------------------------------------- panels


def test_run_draws_the_results_and_scores_the_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    Climb(monkeypatch)
    panel = pk.StagePanel("data_loading")
    panel.predict(1.5)
    assert panel._guess.value == 1.5
    panel.run()
    assert [run.status for run in panel.runs] == ["ok", "ok"]
    assert "<table" in panel._results.value
    assert "You predicted 1.50" in panel._results.value
    assert "What shrank" in panel._results.value
    assert "bit for bit" in panel._results.value
    assert "equal" in panel.proof().data
    assert sum("<svg" in plot.value for plot in panel._plots) >= 3
    assert not panel._run.disabled
    assert panel._cancel.disabled


def test_the_button_returns_at_once_and_a_second_click_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def does(show: Any, cancelled: threading.Event) -> Any:
        assert go.wait(20)
        return session()[:2]

    climb = Climb(monkeypatch, does)
    panel = pk.StagePanel("amp")
    panel._run.click()
    assert panel._run.disabled
    assert not panel._cancel.disabled
    panel._run.click()
    panel.run(block=False)
    go.set()
    wait_until(lambda: not panel._job.busy)
    assert len(climb.plans) == 1
    wait_until(lambda: len(panel.runs) == 2)


def test_cancel_ends_the_work_and_keeps_what_was_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    def does(show: Any, cancelled: threading.Event) -> Any:
        show(engine.Progress("baseline", "ok", 0.5, session()[0]))
        assert cancelled.wait(20)
        raise Cancelled("stopped on request")

    Climb(monkeypatch, does)
    panel = pk.StagePanel("amp")
    panel._run.click()
    wait_until(lambda: len(panel.runs) == 1)
    panel._cancel.click()
    wait_until(lambda: not panel._job.busy)
    assert "stopped" in panel.error
    assert "stopped" in panel._status.error.value
    assert len(panel.runs) == 1


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (WorkloadError("workload 'x' cannot be built", "Mend <it>"), "Mend &lt;it&gt;"),
        (RuntimeError("odd"), "fault of perfkit"),
        (KeyboardInterrupt(), "stopped"),
    ],
)
def test_an_error_is_shown_in_the_panel_which_stays_usable(
    problem: BaseException, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Any] = [problem, session()[:2]]

    def does(show: Any, cancelled: threading.Event) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    Climb(monkeypatch, does)
    panel = pk.StagePanel("amp")
    panel.run()
    assert said in panel._status.error.value
    panel.run()
    assert panel._status.error.value == ""
    assert len(panel.runs) == 2


def test_the_panel_runs_the_values_of_its_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    climb = Climb(monkeypatch)
    panel = pk.StagePanel("data_loading")
    panel._resolve()
    assert "+" not in panel._diff.value, "no diff is made before somebody looks"
    panel._folded.selected_index = 0
    assert "+" in panel._diff.value
    panel._controls.by_name["prefetch_factor"].value = 8
    assert "prefetch_factor=8" in panel._diff.value
    panel.run()
    assert climb.plans[0].changes == {"prefetch_factor": 8}
    panel._reset.click()
    assert panel.plan.changes == {}


def test_a_cell_run_again_ends_the_older_panels_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def does(show: Any, cancelled: threading.Event) -> Any:
        assert cancelled.wait(20)
        raise Cancelled("stopped on request")

    Climb(monkeypatch, does)
    older = pk.StagePanel("amp")
    older._run.click()
    wait_until(lambda: older._job.busy)
    pk.StagePanel("amp")
    wait_until(lambda: not older._job.busy)


def test_a_panel_without_a_browser_says_what_to_do() -> None:
    panel = pk.StagePanel("amp")
    assert "run this cell" in panel._repr_mimebundle_()["text/plain"]
    assert panel._reader
    panel._reader.join()  # its child must not outlive this test
    assert "run this cell" in pk.Workbench()._repr_mimebundle_()["text/plain"]


def test_a_class_from_a_cell_is_refused_with_the_way_out() -> None:
    class Mine:
        pass

    for make in (lambda: pk.StagePanel("amp", workload=Mine), lambda: pk.Workbench(workload=Mine)):  # type: ignore[arg-type]
        with pytest.raises(InvalidValue, match="%%writefile"):
            make()


# ---------------------------------------------------------------- workbench


def test_the_workbench_runs_lists_ticks_and_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = session()[:2]

    def does(show: Any, cancelled: threading.Event) -> Any:
        for run in runs:
            show(engine.Progress(run.title, "ok", 1.0, run))
        return runs

    climb = Climb(monkeypatch, does)
    bench = pk.Workbench()
    bench.controls.by_name["channels_last"].value = True
    bench._name.value = "mine"
    bench.run()
    (_, baseline), (name, recipe) = climb.plans[0].recipes
    assert name == "mine"
    assert recipe.channels_last
    assert not baseline.channels_last
    assert [run.id for run in bench.ticked()] == [run.id for run in runs]
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


def test_a_suggestion_sets_its_switch() -> None:
    bench = pk.Workbench()
    bench._applier("workers").click()
    assert bench.controls.recipe.workers == 1


# ---------------------------------------------------------------- the queue


def test_two_runs_never_share_a_device_and_the_second_says_that_it_waits() -> None:
    said: list[str] = []
    order: list[str] = []
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with runner.turn("cpu"):
            inside.set()
            assert leave.wait(20)
            order.append("first")

    def second() -> None:
        with runner.turn("cpu", on_wait=lambda: said.append("waits")):
            order.append("second")

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert inside.wait(20)
    threads[1].start()
    wait_until(lambda: bool(said))
    leave.set()
    for thread in threads:
        thread.join(20)
    assert order == ["first", "second"]


def test_who_waits_can_give_up() -> None:
    stop = threading.Event()
    with runner.turn("cpu"):
        stop.set()
        with pytest.raises(Cancelled), runner.turn("cpu", stop):
            pass


def test_html_from_outside_is_text() -> None:
    assert "<b>" not in parts.message("<b>")
    assert "<b>" not in parts.html_table(["<b>"], [["<b>"]])
    assert "<b>" not in parts.code_diff("+<b>")
    assert stages.SHRINKS
