"""Controls of switches: their names, their reasons, and who is called when."""

from __future__ import annotations

import threading

from perfkit.notebook.controls import Controls
from perfkit.program.recipe import Recipe, switches
from tests.unit.notebook.fakes import on_cpu


def test_every_switch_has_a_control_known_by_its_name() -> None:
    controls = Controls(switches())
    assert len(controls.by_name) == len(switches()) >= 21
    for name, control in controls.by_name.items():
        assert f"pk-switch-{name}" in controls.boxes[name]._dom_classes
        assert control.description
        assert control.tooltip


def test_a_toggle_becomes_the_recipe_and_is_reported_once() -> None:
    recipes: list[Recipe] = []
    controls = Controls(switches(), on_change=recipes.append)
    controls.by_name["workers"].value = 3
    controls.by_name["amp"].value = "bf16"
    controls.by_name["channels_last"].value = True
    assert controls.recipe == Recipe(workers=3, amp="bf16", channels_last=True)
    assert len(recipes) == 3
    controls.show(Recipe(batch_size=64))
    assert controls.by_name["batch_size"].value == 64
    assert controls.by_name["workers"].value == 0
    assert len(recipes) == 3


def test_what_cannot_act_is_disabled_with_the_reason_and_comes_back() -> None:
    controls = Controls(switches())
    controls.set_rule(on_cpu)
    assert controls.by_name["pin_memory"].disabled
    assert "CUDA" in controls.marks["pin_memory"].value
    assert controls.by_name["device_dataset"].disabled
    assert not controls.by_name["uint8_copy"].disabled
    assert controls.by_name["persistent_workers"].disabled
    controls.by_name["workers"].value = 2
    assert not controls.by_name["persistent_workers"].disabled


def test_a_switch_left_on_that_can_no_longer_act_says_so_and_can_be_put_back() -> None:
    controls = Controls(switches())
    controls.set_rule(on_cpu)
    controls.by_name["compile"].value = True
    controls.by_name["compile_mode"].value = "max-autotune"
    controls.by_name["compile"].value = False
    assert "Compile mode acts only with" in controls.why.value
    assert not controls.by_name["compile_mode"].disabled


def test_a_toggle_is_quick() -> None:
    """Counts work, not time: one toggle starts no thread and asks no process."""
    controls = Controls(switches())
    controls.set_rule(on_cpu)
    before = threading.active_count()
    controls.by_name["channels_last"].value = True
    assert threading.active_count() == before
