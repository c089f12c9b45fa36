"""Panels in the place of a recording, or of a simulated GPU, which the menu has."""

import pytest

from perfkit import notebook as pk
from perfkit.errors import InvalidValue
from perfkit.results import recordings
from tests.unit.notebook.fakes import FakeStudy
from tests.unit.notebook.test_panel import measured, offers_more, undecided
from tests.unit.notebook.test_stage import shown, stored
from tests.unit.show.fake_runs import session


def test_a_place_that_is_not_in_the_menu_is_added_and_the_panel_stays_usable(tmp_path):
    file = tmp_path / "mine.json"
    file.write_bytes(recordings.available()["cpu-quick"].read_bytes())
    panel = pk.LadderPanel(["data_loading"])
    panel.choose(f"recorded:{file}")
    assert panel.device == panel._menu.value == f"recorded:{file}"
    panel.choose("nowhere")
    assert panel.device == panel._menu.value == f"recorded:{file}" and "nowhere" in panel.status.error.value
    panel.choose("cpu")
    assert panel.device == panel._menu.value == "cpu"


def test_a_recording_is_played_without_a_process():
    panel = pk.StagePanel("data_loading", device="recorded:cpu-quick")
    panel.run()
    text = shown(panel)
    assert "Not measured on this machine" in text
    assert "First losses: the same (equal bit for bit" in text, "the recording's own evidence"
    with pytest.raises(InvalidValue, match="a recording is shown.*Choose a place that measures"):
        panel.keep()


@pytest.mark.parametrize("place", ["recorded:cpu-quick", "sim:v100"])
def test_the_menu_holds_for_one_panel_and_use_for_the_session(place):
    panel = pk.StagePanel("data_loading")
    panel._menu.value = place
    assert panel.device == place
    assert pk.StagePanel("amp").device == "cpu"
    pk.use(place)
    assert pk.StagePanel("data_loading").device == place
    with pytest.raises(InvalidValue, match="none"):
        pk.use("recorded:none")
    panel = pk.StagePanel("data_loading")
    assert panel.device == panel._menu.value == place, "the session stays where it was"


def test_a_panel_that_cannot_run_in_the_session_s_place_is_refused_and_measures_nowhere_else():
    """It said so, and `run` took that away and measured on this machine."""
    with pytest.raises(InvalidValue, match="v10"):
        pk.use("sim:v10")
    pk.use("recorded:sim-v100")
    with pytest.raises(InvalidValue, match="unknown stage of the recording 'sim-v100' 'channels_last'"):
        pk.StagePanel("channels_last")


def test_a_stage_of_a_recording_is_built_on_its_own_stages_and_not_on_what_was_kept(monkeypatch):
    runs = stored("data_loading", "amp")
    study = FakeStudy(monkeypatch, lambda progress: runs)
    first, later = pk.StagePanel("data_loading"), pk.StagePanel("amp")
    first.run()
    first.keep()
    later.run()
    assert study.plans[-1].ladder.settings["workers"] > 0
    later.choose("recorded:cpu-quick")
    later.run()
    assert study.plans[-1].ladder.settings == {}, "a recording has its own"


def test_a_recording_cannot_be_continued(monkeypatch):
    base, stage = session()[:2]
    FakeStudy(monkeypatch, measured(base, undecided(stage)))
    recorded = pk.LadderPanel(["data_loading"], device="recorded:cpu-quick")
    recorded.run()
    assert not offers_more(recorded), "it would count the same rounds twice"
