from __future__ import annotations

import pytest
import torch

from perfkit.program import train
from perfkit.program.recipe import Recipe
from perfkit.workloads import bottlenecks

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["Chatty", "DataBound", "HostBound", "DeviceBound", "Recommender"])
def test_every_one_trains(name: str) -> None:
    losses = train.train(getattr(bottlenecks, name)(), Recipe(batch_size=4), CPU, steps=2)
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
