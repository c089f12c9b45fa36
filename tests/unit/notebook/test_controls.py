"""Controls of switches: their names and groups, what is offered, chips and presets, who is called when."""

from __future__ import annotations

import threading

from perfkit.notebook.controls import Controls
from perfkit.notebook.layout import Action
from perfkit.recipe import GROUPS, Recipe, switches
from tests.unit.notebook.fakes import on_cpu


def offered(controls: Controls) -> set[str]:
    return {name for name, one in controls.by_name.items() if "pk-off" not in one._dom_classes}


def chips(controls: Controls) -> list[str]:
    return [b.description for b in controls.chips.buttons.values() if "pk-off" not in b._dom_classes]


def test_every_switch_has_a_control_known_by_its_name_in_one_group() -> None:
    controls = Controls(switches())
    assert len(controls.by_name) == len(switches()) >= 21
    for name, control in controls.by_name.items():
        assert f"pk-switch-{name}" in control._dom_classes
        assert control.description
        assert control.tooltip
    assert list(controls.groups) == list(GROUPS)
    grouped = [name for group in controls.groups.values() for name in group.controls]
    assert sorted(grouped) == sorted(switches())


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


def test_what_cannot_act_is_not_offered_and_its_group_says_why_in_one_line() -> None:
    controls = Controls(switches())
    controls.set_rule(on_cpu)
    assert not {"pin_memory", "cudnn_benchmark"} & offered(controls)
    assert {"uint8_copy", "workers"} <= offered(controls)
    assert controls.by_name["pin_memory"].disabled
    said = controls.groups["Copy"].note.value
    assert "needs a CUDA device: Pin memory, Non-blocking copy" in said
    assert "the workload does not offer it: Resize on device" in said
    assert "this run is on cpu" in said, "the whole reason is the tooltip"
    assert not controls.groups["Several ranks"].note.value


def test_a_dependent_switch_appears_when_its_partner_is_on() -> None:
    controls = Controls(switches())
    controls.set_rule(on_cpu)
    assert not {"prefetch_factor", "compile_mode", "device_prefetch"} & offered(controls)
    controls.by_name["workers"].value = 2
    assert {"prefetch_factor"} <= offered(controls)
    assert not controls.by_name["prefetch_factor"].disabled
    alone = Controls(["prefetch_factor"])
    alone.set_rule(on_cpu)
    assert "acts only with Loader workers" in alone.groups["Data"].note.value, "its partner is not here"


def test_a_group_with_a_remedy_offers_it_once() -> None:
    done: list[str] = []
    gpu = Action("Simulate a V100", lambda: done.append("simulated"))
    controls = Controls(switches(), remedy=lambda reason: gpu if "CUDA" in reason else None)
    controls.set_rule(on_cpu)
    offers = {title: group.offer.widget for title, group in controls.groups.items()}
    shown = [title for title, button in offers.items() if "pk-off" not in button._dom_classes]
    assert shown == ["Copy"]
    offers["Copy"].click()
    assert done == ["simulated"]


def test_a_switch_left_on_that_can_no_longer_act_says_so_and_can_be_put_back() -> None:
    controls = Controls(switches())
    controls.set_rule(on_cpu)
    controls.by_name["compile"].value = True
    controls.by_name["compile_mode"].value = "max-autotune"
    controls.by_name["compile"].value = False
    assert "Compile mode acts only with" in controls.why.value
    assert "compile_mode" in offered(controls)
    controls.by_name["amp"].value = "fp16"
    assert "on a CPU use bf16" in controls.why.value, "one value may be refused where others are not"


def test_chips_are_what_differs_from_the_base_and_each_puts_its_switch_back() -> None:
    recipes: list[Recipe] = []
    start = Recipe(batch_size=8)
    controls = Controls(switches(), start, recipes.append)
    assert chips(controls) == []
    controls.by_name["workers"].value = 4
    controls.by_name["zero_grad_set_to_none"].value = False
    assert chips(controls) == ["Loader workers: 4", "zero_grad to None: off"]
    controls.chips.buttons["workers"].click()
    assert chips(controls) == ["zero_grad to None: off"]
    assert controls.recipe == recipes[-1] == start.replace(zero_grad_set_to_none=False)
    controls.set_base(Recipe(batch_size=64))
    assert controls.recipe == Recipe(batch_size=64, zero_grad_set_to_none=False), "what was set by hand stays"


def test_presets_set_a_recipe_or_say_why_there_is_none() -> None:
    best: list[Recipe | str] = ["no run yet"]
    recipes: list[Recipe] = []
    controls = Controls(["workers", "amp"], None, recipes.append, {"Best so far": lambda: best[0]})
    button = controls.presets["Best so far"]
    button.click()
    assert "no run yet" in controls.why.value and recipes == []
    best[0] = Recipe(workers=2, compile=True)
    button.click()
    assert recipes == [Recipe(workers=2)], "switches that are not shown are left alone"
    controls.presets["The baseline"].click()
    assert controls.recipe == Recipe()


def test_a_toggle_is_quick() -> None:
    """Counts work, not time: one toggle starts no thread and asks no process."""
    controls = Controls(switches())
    controls.set_rule(on_cpu)
    before = threading.active_count()
    controls.by_name["channels_last"].value = True
    assert threading.active_count() == before
