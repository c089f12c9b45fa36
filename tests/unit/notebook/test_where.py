"""The chooser: this machine or a recording, remembered for the session, with what cannot be chosen."""

from __future__ import annotations

import shutil
import threading
from typing import Any

import pytest

from perfkit import machine
from perfkit import notebook as pk
from perfkit.errors import InvalidValue, WorkloadError
from perfkit.notebook import where
from perfkit.recipe import Recipe
from perfkit.results import recordings
from perfkit.results.store import RunStore
from perfkit.rules import Target, why_not
from perfkit.studies import setup
from tests.unit.notebook.fakes import wait_until

pytestmark = pytest.mark.usefixtures("no_pictures")

PLAYED = "recorded:cpu-quick"
CPU = Target(device="cpu")


def labels(panel: Any) -> dict[str, str]:
    return {
        device: option.label
        for options in panel._where._offers.values()
        for device, option in options.items()
        if not option.reason
    }


def choose(panel: Any, device: str, host: str | None = None) -> None:
    """Presses the buttons of a place."""
    place = where.Place(device, host)
    panel._where.kind.buttons[place.kind].click()
    if device != panel._where.place.device and panel._where.device.buttons:
        panel._where.device.buttons[device].click()
    if host and host != panel._where.place.host:
        panel._where.host.buttons[host].click()


def read(panel: Any) -> None:
    """What a display does, and its end."""
    panel._start_reading()
    panel._reader.join()


@pytest.fixture(autouse=True)
def _no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Playing a recording starts none; where another panel would, it is not ready."""

    def refuse(*_: Any) -> None:
        raise WorkloadError("no process in this test")

    monkeypatch.setattr(setup, "Child", refuse)


def test_a_panel_offers_this_machine_and_every_recording() -> None:
    folder = machine.own_recordings_folder()
    folder.mkdir(parents=True)
    shutil.copy(recordings.available()["cpu-quick"], folder / "h100-paper.json")
    (folder / "broken.json").write_text("{}")
    panel = pk.StagePanel("amp")
    assert labels(panel)["cpu"] == "cpu"
    assert labels(panel)[PLAYED] == "cpu-quick"
    assert "recorded:h100-paper" in labels(panel)
    assert panel.plan.recorded == "" and panel._where.place.device == panel.plan.device
    assert "recorded:broken" not in labels(panel)
    choose(panel, PLAYED)
    assert "broken.json is not a recording of perfkit" in panel._where.note.value
    assert panel._where.device.buttons["recorded:broken"].disabled


def test_a_recording_is_played_through_the_panel() -> None:
    panel = pk.StagePanel("amp")
    choose(panel, PLAYED)
    assert panel._reader
    panel._reader.join()
    assert "Recorded 20" in panel._where.note.value and "Run plays it" in panel._where.note.value
    assert panel._controls.recipe.amp == "bf16"
    panel.predict(2)
    panel.run()
    assert not panel.error
    assert [run.stage for run in panel.runs] == ["channels_last", "amp"]
    assert "Nothing was measured now" in panel._results.value
    assert "You predicted 2.00×" in panel._score()
    assert "torch.autocast" in panel.diff().data
    assert panel._parity is None
    assert RunStore().runs(workload="photos") == [], (
        "what was played is not stored as if it were measured here"
    )


def test_a_switch_that_the_recording_lacks_says_so() -> None:
    panel = pk.StagePanel("data_loading", device=PLAYED)
    read(panel)
    panel._controls.by_name["workers"].value = 2
    panel.run()
    assert panel.runs[-1].reason.startswith("not in this recording, which has baseline, data loading")
    assert "not in this recording" in panel._results.value


def test_a_stage_that_the_recording_lacks_says_so() -> None:
    panel = pk.StagePanel("fused_optimizer", device=PLAYED)
    read(panel)
    assert "n/a in this recording: not in this recording" in panel._status.text.value
    assert "not in this recording" in panel.diff().data


def test_the_choice_is_remembered_for_the_session_and_an_argument_goes_first() -> None:
    choose(pk.StagePanel("amp"), PLAYED)
    wait_until(lambda: not [one for one in threading.enumerate() if one.name == "perfkit-read"])
    assert pk.LadderPanel().plan.recorded == "cpu-quick"
    assert pk.LadderPanel(device="cpu").plan.recorded == ""
    pk.use()
    assert pk.LadderPanel().plan.recorded == ""
    pk.use(PLAYED)
    assert pk.Workbench()._where.place.device == PLAYED


def test_a_remembered_recording_of_another_workload_is_left_with_the_reason() -> None:
    pk.use(PLAYED)
    panel = pk.StagePanel("pinning", workload="cifar_resnet18")
    assert panel.plan.recorded == ""
    assert "is of another workload" in panel._where.note.value
    assert PLAYED not in labels(panel)


def test_a_recording_of_another_workload_is_refused_where_it_is_asked_for() -> None:
    for make in (pk.LadderPanel, pk.Workbench):
        with pytest.raises(InvalidValue, match="of another workload"):
            make(workload="cifar_resnet18", device=PLAYED)


def test_another_place_clears_the_results_of_the_old_one() -> None:
    panel = pk.LadderPanel(["data_loading"], device=PLAYED)
    panel.run()
    assert len(panel.runs) == 3
    choose(panel, "cpu")
    assert panel.runs == [] and panel.plan.device == "cpu" and not panel.plan.recorded
    assert "<table" not in panel._results.value
    assert "press Run" in panel._status.text.value


def test_nothing_can_be_chosen_while_something_runs() -> None:
    panel = pk.LadderPanel(["data_loading"], device=PLAYED)
    states: list[bool] = []
    panel._keep = lambda run: states.append(panel._where.kind.buttons["mine"].disabled)  # type: ignore[method-assign]
    panel.run()
    assert states and all(states) and not panel._where.kind.buttons["mine"].disabled


def test_the_workbench_shows_the_runs_of_a_recording_and_finds_them_by_their_switches() -> None:
    bench = pk.Workbench()
    choose(bench, PLAYED)
    assert bench._reader
    bench._reader.join()
    assert [run.stage for run in bench.runs][:2] == ["baseline", "data_loading"]
    assert bench._workload.disabled and bench._workload.value == bench.runs[0].workload
    assert "<table" in bench._results.value and "Nothing was measured now" in bench._results.value
    assert bench.controls.reasons["accumulation"] == "not in this recording"
    assert not bench.controls.reasons["workers"]
    count = len(bench.runs)
    bench.controls.presets["Best so far"].click()
    bench.run()
    assert not bench.error and len(bench.runs) == count
    bench.controls.by_name["workers"].value = 9
    bench.run()
    assert bench.error.startswith("this recipe is not in this recording, which has baseline")
    choose(bench, "cpu")
    assert bench.runs == [] and not bench._workload.disabled
    bench._reader.join()
    assert "no process in this test" in bench._status.error.value


def test_a_simulated_gpu_has_a_host_to_choose() -> None:
    panel = pk.LadderPanel(["data_loading"])
    assert not panel._where.host.buttons
    choose(panel, "sim:v100", "article")
    assert panel.plan.device == "sim:v100" and panel.plan.host and panel.plan.host.name == "article"
    assert panel._where.host.value == "article" and panel._where.host.buttons["article"].description[0] == "✓"
    panel._where.host.buttons["article"].click()  # pressed again: it stays chosen
    assert panel._where.host.buttons["article"].description[0] == "✓" and panel._where.place.host == "article"
    assert panel._reader
    panel._reader.join()
    choose(panel, "cpu")
    assert panel.plan.host is None and not panel._where.host.buttons
    assert pk.LadderPanel(device="sim:v100", host="cores=4").plan.host.cores == 4


def remedy(panel: pk.LadderPanel, switch: str, value: object) -> str:
    action = panel._remedy(why_not(switch, Recipe().replace(**{switch: value}), CPU))
    return action.label if action else ""


def test_a_switch_that_needs_a_gpu_offers_a_simulated_one_and_moves_the_panel_there() -> None:
    panel = pk.LadderPanel(["data_loading"], device="cpu")
    assert remedy(panel, "pin_memory", True) == remedy(panel, "fp32_precision", "tf32") == "Simulate a V100"
    action = panel._where.simulation()
    assert action
    action.act()
    assert panel.plan.device == "sim:v100"
    assert panel._where.simulation() is None
    assert not remedy(panel, "pin_memory", True)
    assert not remedy(panel, "uint8_copy", True), "the workload does not offer it: nothing to press"


def test_where_no_gpu_can_be_simulated_a_stage_shows_its_diff(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = pk.StagePanel("pinning", device="cpu")
    monkeypatch.setattr(panel._where, "simulation", lambda: None)
    action = panel._remedy("Pin memory needs a CUDA device; this run is on cpu")
    assert action and action.label == "Show the CUDA diff"
    action.act()
    assert panel._folded.selected_index == 0


def test_a_missing_compiler_tells_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "compiler_problem", lambda device: "no C++ compiler (g++): apt install g++")
    panel = pk.StagePanel("compile", device="cpu")
    action = panel._remedy(why_not("compile", Recipe(compile=True), Target(device="cpu", compiler=False)))
    assert action and action.label == "Install a compiler"
    action.act()
    assert "apt install g++" in panel._status.text.value
    assert panel._remedy("the loss became NaN") is None
