"""A switch is in effect if the built objects and an observed step say so, not if the recipe does."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perfkit import old_train as train
from perfkit.recipe import Recipe
from perfkit.worker import checks, parity
from perfkit.worker.checks import verify
from perfkit.worker.harness import Harness
from perfkit.worker.observe import observe_step
from tests.support.toy import Blocks

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _fp32_precision_kept() -> Iterator[None]:
    with parity.fp32_precision_kept():
        yield


def harness(workload: Any, **switches: Any) -> Harness:
    return Harness(train.Training(workload, Recipe(**{"batch_size": 8, **switches}), CPU))


@pytest.mark.parametrize("switch", [{"activation_checkpointing": True}])
def test_a_switch_is_proven_by_what_was_built_not_by_the_recipe(switch: dict[str, Any]) -> None:
    (name,) = switch
    for built in (switch, {}):
        watched = harness(Blocks(), **built)
        for claimed in (switch, {}):
            training = watched.training
            real, training.recipe = training.recipe, Recipe(batch_size=8, **built)
            made = observe_step(training, watched.source)
            training.recipe = Recipe(batch_size=8, **claimed)
            (check,) = (one for one in verify(made) if one.switch == name)
            assert check.ok is (built == claimed), check
            training.recipe = real


def test_every_check_tells_a_switch_that_is_on_from_one_that_is_off() -> None:
    """On a CPU, in one process; what needs a GPU or ranks is proven there."""
    states = {
        "batch_size": 16, "workers": 1, "prefetch_factor": 4,
        "zero_grad_set_to_none": False, "amp": "bf16", "cudnn_benchmark": True, "fp32_precision": "tf32",
        "optimizer_impl": "foreach", "accumulation": 2,
        "activation_checkpointing": True, "non_blocking": True,
    }  # fmt: skip
    watched = harness(Blocks(), **states)
    watched.first_steps(1)
    mechanisms, _ = watched.mechanisms()
    assert [m for m in mechanisms if not m.ok] == []
    step = observe_step(watched.training, watched.source)
    for switch in states:
        others = {name: value for name, value in states.items() if name != switch}
        watched.training.recipe = Recipe(**{"batch_size": 8, **others})
        assert switch in {m.switch for m in verify(step) if not m.ok}, switch


@pytest.mark.parametrize("precision", ["default", "tf32", "ieee"])
def test_the_precision_of_float32_is_read_back(precision: str) -> None:
    step = observe_step((watched := harness(Blocks(), fp32_precision=precision)).training, watched.source)
    for claimed in ("default", "tf32", "ieee"):
        watched.training.recipe = Recipe(batch_size=8, fp32_precision=claimed)
        (check,) = (one for one in verify(step) if one.switch == "fp32_precision")
        assert check.ok is (claimed == precision), check.evidence
    assert ("convolutions in full precision" in check.evidence) is (precision == "ieee")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({}, "on a stream of its own, from pinned memory; 2 tensors recorded"),
        ({"copy_streams": [0]}, "on the stream of the kernels"),
        ({"copy_streams": []}, "on the stream of the kernels"),
        ({"batch": [SimpleNamespace(is_pinned=lambda: False)]}, "from pageable memory"),
        ({"recorded": 0}, "0 tensors recorded"),
    ],
)
def test_device_prefetch_is_a_second_stream_pinned_memory_and_recorded_tensors(
    fault: dict[str, Any], words: str
) -> None:
    """Without a GPU: what `observe_step` would have noted on one."""
    pinned = SimpleNamespace(is_pinned=lambda: True)
    noted = {"prefetches": True, "copy_streams": [7], "compute_stream": 0, "recorded": 2, "batch": [pinned]}
    state, evidence = checks.CHECKS["device_prefetch"](SimpleNamespace(**{**noted, **fault}))  # type: ignore[arg-type]
    assert (state is True) is (not fault)
    assert words in evidence
    plain = SimpleNamespace(**{**noted, "prefetches": False})
    assert checks.CHECKS["device_prefetch"](plain)[0] is False  # type: ignore[arg-type]
