from __future__ import annotations

import pytest

from perfkit.errors import InvalidValue
from perfkit.ladder import stages
from perfkit.ladder.catalogue import LADDER, OPTIMIZATIONS
from perfkit.ladder.presets import PRESETS, Sizing, sizing
from perfkit.recipe import Recipe
from perfkit.rules import Target

SIZES = Sizing(workers=3, batch_size=8, large_batch=16, largest_batch=32, amp="bf16", threads=2)
CPU = Target("cpu")


def test_a_stage_stands_on_those_before_it() -> None:
    built = stages.build(["data_loading", "batch_size", "compile"], SIZES, CPU)
    assert [stage.name for stage in built] == ["baseline", "data_loading", "batch_size", "compile"]
    assert built[0].recipe == Recipe(batch_size=8)
    assert built[-1].recipe == Recipe(batch_size=16, workers=3, compile=True)


def test_what_cannot_act_is_left_out_with_its_reason() -> None:
    built = stages.build(["pinning", "compile"], SIZES, CPU)
    assert built[1].reason.startswith("Pin memory, Non-blocking copy: needs a CUDA device")
    assert built[1].recipe == built[0].recipe
    assert built[2].recipe.compile


def test_a_stage_without_its_own_switch_does_not_apply() -> None:
    """`device_prefetch` brings pinning: where it cannot act itself there is nothing to measure."""
    stage = stages.stage(OPTIMIZATIONS["device_prefetch"], Recipe(), SIZES, CPU)
    assert "needs a CUDA device" in stage.reason
    assert stage.recipe == Recipe()


def test_a_stage_that_finds_its_change_made_says_so() -> None:
    stage = stages.stage(OPTIMIZATIONS["compile"], Recipe(compile=True), SIZES, CPU)
    assert stage.reason == "nothing to change: the recipe has it already"


def test_below_a_rung_are_those_before_it_and_below_another_all() -> None:
    assert stages.below("pinning") == ("wait_policy", "allocator", "data_loading")
    assert stages.below("baseline") == ()
    assert stages.below("batched_fetch") == LADDER[1:]


def test_an_unknown_rung_is_refused() -> None:
    with pytest.raises(InvalidValue, match="unknown stage"):
        stages.rungs(["no_such"])


def test_the_baseline_of_every_preset_changes_nothing_but_the_batch_size() -> None:
    for preset in PRESETS.values():
        sizes = sizing(preset, CPU, cores=8)
        assert set(Recipe().diff(stages.build((), sizes, CPU)[0].recipe)) <= {"batch_size"}


def test_tf32_is_a_rung_of_its_own_before_16_bits_and_zeroed_gradients_are_none() -> None:
    assert LADDER.index("tf32") < LADDER.index("amp")
    assert "zero_grad" not in LADDER
    on_gpu, on_cpu, on_old_gpu = (
        next(stage for stage in stages.build(LADDER, SIZES, target) if stage.name == "tf32")
        for target in (Target("cuda"), CPU, Target("cuda", bf16=False))
    )
    assert on_gpu.recipe.fp32_precision == "tf32"
    assert on_cpu.reason == "float32 precision: TF32 is a number format of CUDA devices (this run is on cpu)"
    assert "came with Ampere" in on_old_gpu.reason
    zeroed = stages.stage(OPTIMIZATIONS["zero_grad"], Recipe(), SIZES, CPU)
    assert zeroed.recipe == Recipe(zero_grad_set_to_none=False)
