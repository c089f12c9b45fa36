"""The training program: what single switches do to it."""

from __future__ import annotations

from typing import Any

import torch

from perfkit.program import train
from perfkit.program.recipe import Recipe
from perfkit.workloads.bottlenecks import Recommender
from tests.support.toy import Blocks

CPU = torch.device("cpu")


def losses(workload: Any, **switches: Any) -> tuple[list[float], Any]:
    made = train.Training(workload, Recipe(batch_size=8, **switches), CPU)
    batches = made.batches(train.epochs(made.loader))
    return [made.step(batches).item() for _ in range(4)], made.model


def test_checkpointing_trains_the_same_and_counts_batch_statistics_once() -> None:
    (plain, one), (again, other) = losses(Blocks()), losses(Blocks(), activation_checkpointing=True)
    assert plain == again
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_an_embedding_on_the_host_feeds_a_model_elsewhere() -> None:
    """`meta` stands for the device: shapes and places are real, values are not."""
    elsewhere = torch.device("meta")
    model = train.make_model(Recommender(50), Recipe(embedding_device="cpu"), elsewhere)
    assert model.embedding.weight.device.type == "cpu"
    assert {p.device.type for p in model.head.parameters()} == {"meta"}
    batch = (torch.zeros(3, 20, dtype=torch.long), torch.zeros(3, dtype=torch.long))
    inputs, targets = train.to_device(batch, Recommender(50), Recipe(embedding_device="cpu"), elsewhere)
    assert (inputs.device.type, targets.device.type) == ("cpu", "meta")
    assert model(inputs).device.type == "meta"


def test_the_table_of_the_recommender_is_trained_by_sparse_gradients() -> None:
    made = train.Training(Recommender(50), Recipe(batch_size=4), CPU)
    inputs, targets = next(made.batches(iter(made.loader)))
    train.forward(made.model, made.workload, made.recipe, CPU, inputs, targets)[1].backward()
    assert made.model.embedding.weight.grad.is_sparse
