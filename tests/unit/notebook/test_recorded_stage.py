"""What a chapter shows by reference: a stage of a recording, and the loop of a script without the rest."""

from __future__ import annotations

import pytest

from perfkit import notebook as pk
from perfkit.errors import InvalidValue


def test_a_stage_of_a_recording_is_shown_beside_the_measured_one_before_it() -> None:
    shown = pk.recording("sim-v100", "pinning")
    assert [run.stage for run in shown.found] == ["data_loading", "pinning"]
    assert "predicted" in shown.words().data and "sim." in shown.table().data
    (alone,) = pk.recording("sim-v100", "baseline").found
    assert alone.stage == "baseline"


def test_a_stage_that_a_recording_lacks_is_one_clear_message() -> None:
    with pytest.raises(InvalidValue, match="Did you mean 'pinning'"):
        pk.recording("sim-v100", "pining")


def test_the_loop_comes_first_and_the_whole_script_is_folded() -> None:
    text = pk.training_loop(pk.recording("cpu-quick").found).data
    loop, _, whole = text.partition("<details>")
    assert 40 < len(loop.splitlines()) < 80
    assert "DataLoader(" in loop and "loss.backward()" in loop and "import torch" not in loop
    assert "import torch" in whole and "loss.backward()" in whole
    assert not [relic for relic in ("=None,", "pin_memory=False", "recipe") if relic in loop]
