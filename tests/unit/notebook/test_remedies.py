"""What can be done about a message: one action, or none. The reasons are those that the rules give."""

from __future__ import annotations

import pytest

from perfkit import machine
from perfkit import notebook as pk
from perfkit.notebook import remedies
from perfkit.program.recipe import Recipe
from perfkit.program.rules import Target, why_not

CPU = Target(device="cpu", compiler=False)


def label(panel: pk.LadderPanel, switch: str, value: object) -> str:
    action = panel._remedy(why_not(switch, Recipe().replace(**{switch: value}), CPU))
    return action.label if action else ""


def test_a_switch_that_needs_a_gpu_offers_a_simulated_one_and_moves_the_panel_there() -> None:
    panel = pk.LadderPanel(["data_loading"], device="cpu")
    assert label(panel, "pin_memory", True) == label(panel, "fp32_precision", "tf32") == "Simulate a V100"
    action = panel._where.simulation()
    assert action
    action.act()
    assert panel.plan.device == "sim:v100"
    assert panel._where.simulation() is None
    assert not label(panel, "pin_memory", True)
    assert not label(panel, "uint8_copy", True), "the workload does not offer it: nothing to press"


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
    action = panel._remedy(why_not("compile", Recipe(compile=True), CPU))
    assert action and action.label == "Install a compiler"
    action.act()
    assert "apt install g++" in panel._status.text.value
    assert remedies.find("the loss became NaN", print) is None
