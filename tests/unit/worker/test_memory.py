"""What holds memory in a step, against what can be counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from perfkit import old_train as train
from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.worker import memory
from perfkit.worker.harness import Harness
from tests.support.toy import Toy

CPU = torch.device("cpu")


def harness(workload: Any, **switches: Any) -> Harness:
    return Harness(train.Training(workload, Recipe(**{"batch_size": 8, **switches}), CPU))


WEIGHTS = 4 * (16 * 32 + 32 + 32 * 2 + 2)


class Momentum(Toy):
    def optimizer(self, parameters: Any, **implementation: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **implementation)


def test_each_byte_is_of_one_kind() -> None:
    watched = harness(Momentum(), zero_grad_set_to_none=False)
    watched.training.step(watched.batches)  # now gradients and momentum are there
    found = memory.measure(watched)
    assert sum(found.parts.values()) == found.peak
    assert found.parts["weights"] == WEIGHTS
    assert found.parts["optimizer"] == WEIGHTS
    assert found.parts["gradients"] == WEIGHTS
    assert found.parts["batch"] >= 8 * 16 * 4
    assert found.allocated is None
    assert {"forward", "backward", "optimizer"} <= set(found.phases)


class Deep(Toy):
    """Each layer keeps 256 × 16 floats; the batch is the whole data set."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            *(nn.Sequential(nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 16), nn.Tanh()) for _ in range(8)),
            nn.Linear(16, 2),
        )


def test_checkpointing_gives_activations_up() -> None:
    plain, less = (
        memory.measure(harness(Deep(), activation_checkpointing=on, batch_size=64)) for on in (False, True)
    )
    assert less.parts["activations"] < 0.5 * plain.parts["activations"]
    assert less.parts["weights"] == plain.parts["weights"]
    assert any(kind == "activations" and size == 4 * 64 * 256 for _, kind, size in plain.places)
    assert ("0.0.weight", "weights", 4 * 16 * 256) in plain.places


def test_memory_of_a_compiled_model_is_refused_in_words() -> None:
    watched = harness(Toy())
    watched.training.recipe = Recipe(compile=True)
    with pytest.raises(InvalidValue, match="compile=false"):
        memory.measure(watched)
