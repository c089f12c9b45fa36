from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from perfkit import old_train as train
from perfkit.recipe import Recipe
from perfkit.workloads import bottlenecks, options_for

CPU = torch.device("cpu")


NAMES = (
    "Chatty", "DataBound", "HostBound", "DeviceBound", "Recommender", "Wide", "Pointwise", "Experts"
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_one_trains(name: str) -> None:
    found = getattr(bottlenecks, name)
    workload = found(**options_for(found, "smoke", {}))
    losses = train.train(workload, Recipe(batch_size=4), CPU, steps=2)
    assert len(losses) == 2
    assert all(loss > 0 for loss in losses)


def test_without_reading_it_is_the_same_training() -> None:
    chatty, clean = (bottlenecks.Chatty(clean) for clean in (False, True))
    losses = [train.train(workload, Recipe(batch_size=4), CPU, steps=3) for workload in (chatty, clean)]
    assert losses[0] == pytest.approx(losses[1])
    assert chatty.history == pytest.approx(losses[0])
    assert not clean.history


def test_gradients_of_the_table_are_sparse() -> None:
    workload = bottlenecks.Recommender(rows=50)
    model = workload.model()
    workload.loss(model(torch.randint(50, (2, 20))), torch.tensor([1, 2])).backward()
    assert model.embedding.weight.grad.is_sparse


def test_the_operations_of_a_wide_step_are_those_that_torch_counts() -> None:
    workload = bottlenecks.Wide(width=64, rows=3)
    model = workload.model()
    with FlopCounterMode(display=False) as counter:
        workload.loss(model(torch.randn(2, 3, 32, 32)), torch.tensor([1, 2])).backward()
    assert workload.step_flops(2) / counter.get_total_flops() == pytest.approx(1, abs=0.1)


def test_only_set_to_none_leaves_the_other_experts_alone() -> None:
    """With zeros every expert that was ever used is updated in each step, and the training is the same."""
    losses, updated = [], []
    for to_none in (True, False):
        workload = bottlenecks.Experts(count=3, width=8)
        training = train.Training(workload, Recipe(batch_size=2, zero_grad_set_to_none=to_none), CPU)
        batches = training.batches(train.epochs(training.loader))
        gradients: list[int] = []

        def note(optimizer: Any, *_: Any, gradients: list[int] = gradients) -> None:
            gradients.append(sum(p.grad is not None for p in optimizer.param_groups[0]["params"]))

        training.optimizer.register_step_pre_hook(note)
        losses.append([training.step(batches).item() for _ in range(12)])
        updated.append(gradients[-1])
    assert losses[0] == losses[1]
    assert updated == [6, 10], "stem, head and one expert of two weights each; then all experts"
