"""The panel of one stage: prediction and score, controls and diff, proof, and its card."""

from __future__ import annotations

import html
import threading

import pytest

from perfkit import notebook as pk
from perfkit.errors import InvalidValue
from perfkit.ladder.catalogue import OPTIMIZATIONS
from perfkit.studies import ladder as ladders
from tests.unit.notebook.fakes import FakeStudy
from tests.unit.show.fake_runs import again, disturbed, session


def test_run_draws_the_results_and_scores_the_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeStudy(monkeypatch)
    panel = pk.StagePanel("data_loading")
    assert not panel._guess.value, "it is empty until somebody fills it in"
    panel.predict(1.5)
    assert panel._guess.value == "1.5"
    panel.run()
    assert [run.status for run in panel.runs] == ["ok", "ok"]
    assert "<table" in panel._results.value
    assert "You predicted 1.50" in panel._results.value
    assert "What shrank" in panel._results.value
    assert "bit for bit" in panel._results.value
    assert "Measured earlier" not in panel._results.value
    assert "<svg" in panel._headline.value
    assert list(panel._pictures) == ["Throughput", "Memory", "Losses"]
    assert not panel._run.disabled
    assert panel._cancel.disabled


def test_a_workload_read_late_leaves_the_result_of_a_run_standing(
    monkeypatch: pytest.MonkeyPatch, no_pictures: None
) -> None:
    FakeStudy(monkeypatch)
    ran, resolve = threading.Event(), ladders.resolve
    monkeypatch.setattr(ladders, "resolve", lambda plan: ran.wait(20) and resolve(plan))
    panel = pk.StagePanel("pinning", device="cpu")
    panel._start_reading()
    panel.run()
    assert ">done<" in panel._status.text.value
    ran.set()
    assert panel._reader
    panel._reader.join(60)
    assert panel._stages, "it was read"
    assert panel._stages[-1].reason, "pinning needs a GPU"
    assert ">done<" in panel._status.text.value


def test_the_baseline_again_is_not_the_stage(monkeypatch: pytest.MonkeyPatch, no_pictures: None) -> None:
    FakeStudy(monkeypatch, lambda show, cancelled: disturbed(again(session()[:2])))
    panel = pk.StagePanel("data_loading")
    panel.predict(1.5)
    panel.run()
    score = panel._score()
    assert "measured: 1.53× (1.51–1.56), disturbed" in score
    assert "Your guess: open" in score, "no guess is judged by disturbed rounds"
    results = panel._results.value
    assert results.index("pk-notice") < results.index("<table"), "the notice is open, above the table"
    assert "equal processes differ" in panel.verdict().data


def test_a_prediction_is_a_positive_number() -> None:
    panel = pk.StagePanel("amp")
    for times in (0, float("nan"), float("inf")):
        with pytest.raises(InvalidValue, match="above 0"):
            panel.predict(times)
    panel._guess.value = "a lot"
    panel._take_guess()
    assert "such as 1.5" in panel._told.value
    assert panel.prediction is None
    panel._guess.value = "1,5×"
    panel._take_guess()
    assert panel.prediction == 1.5
    assert "The article" in panel._told.value


def test_without_a_prediction_the_results_say_so(monkeypatch: pytest.MonkeyPatch, no_pictures: None) -> None:
    FakeStudy(monkeypatch)
    panel = pk.StagePanel("data_loading")
    assert "article" not in panel._told.value
    panel.run()
    assert "No prediction was made" in panel._results.value
    assert "The article" in panel._results.value


def test_the_panel_runs_the_values_of_its_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    study = FakeStudy(monkeypatch)
    panel = pk.StagePanel("data_loading")
    panel._resolve()
    assert "+" not in panel._diff.value, "no diff is made before somebody looks"
    panel._folded.selected_index = 0
    assert "+" in panel._diff.value
    panel._controls.by_name["prefetch_factor"].value = 8
    assert "prefetch_factor=8" in panel._diff.value
    panel.run()
    assert study.plans[0].changes == {"prefetch_factor": 8}
    panel._controls.presets["The ladder's rung"].click()
    assert panel.plan.changes == {}


@pytest.mark.parametrize("name", ["data_loading", "amp", "compile"])
def test_the_card_is_in_the_panel(name: str) -> None:
    panel = pk.StagePanel(name)
    diff, card = panel._folded.children
    assert panel._folded.titles == ("What changes in the script", "How it works")
    assert diff is panel._diff
    assert "<h4>When it does not help</h4>" in card.value
    assert html.escape(OPTIMIZATIONS[name].question) in panel._above[1].value
    assert "When it applies" in panel.card().data


def test_other_switches_are_another_question(monkeypatch: pytest.MonkeyPatch, no_pictures: None) -> None:
    FakeStudy(monkeypatch)
    panel = pk.StagePanel("data_loading")
    panel._resolve()
    panel.predict(1.5)
    panel._controls.by_name["prefetch_factor"].value = 8
    assert panel.prediction == 1.5, "nothing was measured yet: the prediction stands"
    panel.run()
    panel._controls.by_name["prefetch_factor"].value = 4
    assert panel.prediction is None
    assert panel._guess.value == ""
