"""A switch is in effect if the built objects and an observed step say so, not if the recipe does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from perfkit.program import train
from perfkit.program.recipe import Recipe
from perfkit.worker.checks import verify
from perfkit.worker.harness import Harness
from perfkit.worker.observe import observe_step
from tests.support.toy import Blocks

CPU = torch.device("cpu")


def harness(workload: Any, **switches: Any) -> Harness:
    return Harness(train.Training(workload, Recipe(**{"batch_size": 8, **switches}), CPU))


@pytest.mark.parametrize(
    "switch", [{"activation_checkpointing": True}, {"nvtx_ranges": True}, {"log_every": 2}]
)
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
        "batch_size": 16, "workers": 1, "persistent_workers": True, "prefetch_factor": 4,
        "zero_grad_set_to_none": True, "amp": "bf16", "cudnn_benchmark": True, "tf32": True,
        "optimizer_impl": "foreach", "accumulation": 2, "log_every": 1, "nvtx_ranges": True,
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
