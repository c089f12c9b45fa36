"""One control for each switch; changed ones are bold, and those that cannot act are in one fold."""

import ipywidgets
import pytest

from perfkit.errors import InvalidValue
from perfkit.notebook.controls import Controls
from perfkit.recipe import Recipe, switches
from perfkit.rules import Target, why_not

CPU = Target(device="cpu", offers=frozenset({"uint8_copy"}))


@pytest.fixture
def controls():
    """Every switch, on a CPU."""
    made = Controls(switches())
    made.offer(Recipe(), lambda name, recipe: why_not(name, recipe, CPU))
    return made


def styled(controls, style):
    return {name for name, control in controls.by_name.items() if style in control._dom_classes}


def test_every_kind_of_switch_is_set_in_code_and_a_wrong_value_is_refused(controls):
    controls.set({"workers": 1, "amp": "bf16", "channels_last": True})
    assert [controls.by_name[name].value for name in ("workers", "amp", "channels_last")] == [1, "bf16", True]
    for wrong in ({"turbo": 1}, {"amp": "fp8"}):
        with pytest.raises(InvalidValue, match=next(iter(wrong))):
            controls.set(wrong)
    controls.offer(Recipe(batch_size=128), lambda name, recipe: "")
    assert (controls.recipe.batch_size, controls.recipe.amp) == (128, "bf16"), "changes survive another base"


def test_what_cannot_act_is_in_one_fold_with_its_reason_until_it_can(controls):
    off = styled(controls, "pk-off")
    assert off >= {"pin_memory", "prefetch_factor", "compile_mode"}
    assert not off & {"workers", "amp", "batch_size", "uint8_copy"}
    fold = controls.widget.children[-1]
    assert fold.value.count("<details>") == 1
    assert "<b>Pin memory</b>: needs a CUDA device" in fold.value
    controls.by_name["workers"].value = 2
    assert (styled(controls, "pk-changed"), controls.changes()) == ({"workers"}, {"workers": 2})
    assert "prefetch_factor" not in styled(controls, "pk-off")
    controls.set({"pin_memory": True})
    assert "pin_memory" not in styled(controls, "pk-off"), "what is changed can be put back"
    assert 'role="alert"' in fold.value


def test_a_change_that_comes_after_a_run_has_begun_is_put_back_and_said(controls):
    """While the kernel is busy, a page holds back a control's second change, but not a click on Run."""
    workers = controls.by_name["workers"]
    workers.value = 2
    workers.disabled = True
    workers.set_state({"value": 4})
    assert (workers.value, controls.changes()) == (2, {"workers": 2})
    fold = controls.widget.children[-1]
    assert "Loader workers: 4 came after this run had begun. Set it again" in fold.value
    assert "<b>Pin memory</b>: needs a CUDA device" in fold.value
    workers.disabled = False
    workers.set_state({"value": 4})
    assert controls.changes() == {"workers": 4} and "came after" not in fold.value


def test_a_toggle_sends_what_changes_and_nothing_else(controls, monkeypatch):
    """Each message is work for kernel, server and page."""
    sent = []
    monkeypatch.setattr(ipywidgets.Widget, "_send", lambda *message, **more: sent.append(message))
    controls.by_name["channels_last"].set_state({"value": True})  # as a click in a page does
    assert len(sent) == 2, "an echo, and the bold label"
    controls.by_name["workers"].set_state({"value": 2})
    assert len(sent) == 6, "also: prefetch is offered now, and the fold names one switch less"
