"""One optimization: its switches, a guess, and the answer in the guess's unit."""

import pytest

from perfkit import notebook as pk
from perfkit.errors import InvalidValue
from perfkit.results.store import RunStore
from perfkit.show import html, terminal
from tests.unit.notebook.fakes import FakeStudy, plain, until_cancelled, wait_until
from tests.unit.show.fake_runs import session


def shown(panel):
    return " ".join(terminal.text(panel.sections()).split())


def stored():
    """A session of two stages in the store."""
    runs = [plain(run) for run in session()[:2]]
    for run in runs:
        RunStore().add(run)
    return runs


def test_switches_of_the_rung_and_others_are_set_in_code(monkeypatch):
    study = FakeStudy(monkeypatch)
    panel = pk.StagePanel("data_loading")
    panel.set(workers=3, amp="bf16")
    panel.run()
    assert study.plans[-1].changes["workers"] == 3
    assert study.plans[-1].settings == {"amp": "bf16"}
    with pytest.raises(InvalidValue):
        panel.set(turbo=1)
    assert panel.plan.settings == {"amp": "bf16"}


def test_the_result_answers_the_guess_in_its_unit(monkeypatch):
    FakeStudy(monkeypatch)
    panel = pk.StagePanel("data_loading")
    panel._guess.value = "much"
    assert "no guess" in panel.bar.error.value
    panel._guess.value = "1,5x"
    panel.run()
    text = shown(panel)
    assert "Your guess: 1.50×, within a fifth. The article's V100: 2.16×." in text
    assert "bit for bit" in text, "whether the training is still right"
    assert "<h2>How it works</h2>" in html.fragment(panel.sections())
    assert "pk.StagePanel(" in panel._line.value, "what to click or write to go on"


def test_other_switches_are_another_question(monkeypatch):
    FakeStudy(monkeypatch)
    panel = pk.StagePanel("data_loading")
    panel.run()
    panel.controls.by_name["prefetch_factor"].value = 8
    assert (panel.runs, shown(panel)) == ([], "")


def test_a_guess_is_shown_again_with_its_result(monkeypatch):
    runs = stored()
    FakeStudy(monkeypatch, lambda progress: runs)
    panel = pk.StagePanel("data_loading")
    panel._guess.value = "3"
    panel.run()
    later = pk.StagePanel("data_loading")
    later._ipython_display_()
    assert (later.guess, later.runs) == (3.0, runs)


def test_controls_offer_what_is_declared_before_a_process_has_loaded_the_workload():
    panel = pk.StagePanel("device_resize", workload="cifar_resnet18")
    assert panel.controls.recipe.device_resize and not panel.controls.reasons
    refused = pk.StagePanel("device_resize", workload="photos")
    assert "does not offer" in refused.controls.reasons["device_resize"]


def test_later_panels_start_from_what_was_kept(monkeypatch):
    runs = stored()
    FakeStudy(monkeypatch, lambda progress: runs)
    panel = pk.StagePanel("data_loading", workload=runs[0].workload, preset=runs[0].preset)
    with pytest.raises(InvalidValue, match="nothing was measured"):
        panel.keep()
    panel.run()
    later = {"workload": panel.plan.workload, "preset": panel.plan.preset.name}
    panel.keep()
    assert "data loading 1.5" in panel._line.value and "pk.StagePanel(" in panel._line.value
    kept = runs[-1].recipe["workers"]
    assert pk.StagePanel("amp", **later).plan.settings["workers"] == kept > 0
    panel.drop()
    assert "data loading dropped" in panel._line.value
    assert pk.StagePanel("amp", **later).plan.settings["workers"] == 0
    assert pk.StagePanel("data_loading", **later).plan.settings == {}, "a rung does not change itself"
    assert pk.StagePanel("amp", **later, settings={"workers": 3}).plan.settings["workers"] == 3


def test_a_recording_is_played_without_a_process():
    panel = pk.StagePanel("data_loading", device="recorded:cpu-quick")
    panel.run()
    text = shown(panel)
    assert "played, not measured now" in text
    assert "Training: the losses: equal bit for bit" in text, "the recording's own evidence"


@pytest.mark.parametrize("place", ["recorded:cpu-quick", "sim:v100"])
def test_the_menu_holds_for_one_panel_and_use_for_the_session(place):
    panel = pk.StagePanel("data_loading")
    panel._menu.value = place
    assert panel.device == place
    assert pk.StagePanel("amp").device == "cpu"
    pk.use(place)
    assert pk.StagePanel("data_loading").device == place


def test_the_menu_says_why_it_does_not_move_a_panel(monkeypatch):
    panel = pk.StagePanel("data_loading")
    panel.choose("recorded:none")
    assert (panel.device, panel._menu.value) == ("cpu", "cpu")
    assert "none" in panel.bar.error.value
    FakeStudy(monkeypatch, until_cancelled)
    panel.start(panel._measure)
    wait_until(lambda: len(panel.runs) == 1)
    panel._menu.value = "recorded:cpu-quick"
    assert (panel.device, panel._menu.value) == ("cpu", "cpu")
    assert "at work" in panel.bar.error.value
    panel.stop()
    wait_until(lambda: not panel._turn.locked())
