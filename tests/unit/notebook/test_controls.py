"""One control for each switch; changed ones are bold, and those that cannot act are in one fold."""

import pytest

from perfkit.errors import InvalidValue
from perfkit.notebook.widgets import Controls
from perfkit.recipe import Recipe, switches
from tests.unit.notebook.fakes import on_cpu


def offered(controls):
    return {name for name, control in controls.by_name.items() if "pk-off" not in control._dom_classes}


def bold(controls):
    return {name for name, control in controls.by_name.items() if "pk-changed" in control._dom_classes}


def test_a_change_by_hand_is_bold_and_told():
    told = []
    controls = Controls(switches(), lambda: told.append(controls.recipe))
    controls.by_name["workers"].value = 2
    assert (bold(controls), controls.changes(), told[-1].workers) == ({"workers"}, {"workers": 2}, 2)
    controls.by_name["workers"].value = 0
    assert bold(controls) == set()


def test_every_kind_of_switch_is_set_in_code_and_a_wrong_value_is_refused():
    controls = Controls(switches())
    controls.set({"workers": 1, "amp": "bf16", "channels_last": True})
    assert [controls.by_name[name].value for name in ("workers", "amp", "channels_last")] == [1, "bf16", True]
    with pytest.raises(InvalidValue, match="'turbo' cannot be set here"):
        controls.set({"turbo": 1})
    with pytest.raises(InvalidValue, match="amp"):
        controls.set({"amp": "fp8"})
    assert controls.recipe.amp == "bf16"


def test_what_cannot_act_is_in_one_fold_with_its_reason():
    controls = Controls(switches())
    controls.set_rule(on_cpu)
    assert not {"pin_memory", "prefetch_factor", "compile_mode"} & offered(controls)
    assert {"workers", "amp", "batch_size", "uint8_copy"} <= offered(controls)
    fold = controls.widget.children[-1].value
    assert fold.count("<details>") == 1
    assert "<b>Pin memory</b>: needs a CUDA device" in fold


def test_a_switch_that_acts_with_another_appears_when_that_is_on():
    controls = Controls(switches())
    controls.set_rule(on_cpu)
    controls.by_name["workers"].value = 2
    assert "prefetch_factor" in offered(controls)


def test_a_changed_switch_that_cannot_act_stays_and_says_why():
    controls = Controls(switches())
    controls.set({"pin_memory": True})
    controls.set_rule(on_cpu)
    assert "pin_memory" in offered(controls)
    assert "needs a CUDA device" in controls.widget.children[-1].value


def test_changes_by_hand_survive_another_base():
    controls = Controls(switches())
    controls.set({"amp": "bf16"})
    controls.set_base(Recipe(batch_size=128))
    assert (controls.recipe.batch_size, controls.changes()) == (128, {"amp": "bf16"})
