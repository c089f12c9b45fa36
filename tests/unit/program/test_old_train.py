"""The training program: what single switches do to it."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch

from perfkit import old_train as train
from perfkit.recipe import Recipe
from perfkit.worker import checks, parity
from perfkit.workloads.bottlenecks import Recommender
from tests.support.toy import Blocks, Points, Toy

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


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("samples", [24, 27])
def test_an_infinite_sampler_gives_the_batches_of_epoch_after_epoch(samples: int, workers: int) -> None:
    class Short(Toy):
        def dataset(self, recipe: Any) -> Any:
            return Points(samples)

    def batches(infinite: bool) -> list[torch.Tensor]:
        recipe = Recipe(batch_size=8, workers=workers, infinite_sampler=infinite)
        loader = train.make_loader(Short(), recipe, CPU, seed=3)
        return [inputs for inputs, _ in itertools.islice(train.epochs(loader), 10)]

    torch.testing.assert_close(batches(True), batches(False), rtol=0, atol=0)


def test_an_infinite_sampler_without_a_full_batch_is_an_error_not_an_endless_search() -> None:
    with pytest.raises(ValueError, match="3 samples do not fill a batch of 8"):
        train.InfiniteSampler(range(3), 8)


@pytest.mark.parametrize("precision", ["default", "tf32", "ieee"])
def test_the_precision_of_float32_is_set_without_a_warning_or_left_alone(precision: str) -> None:
    before = checks.fp32_precision()
    with warnings.catch_warnings(), parity.fp32_precision_kept():
        warnings.simplefilter("error")
        train.configure(Recipe(fp32_precision=precision), seed=0)
        after = checks.fp32_precision()
    assert after == (before if precision == "default" else (precision,) * 3)
    assert checks.fp32_precision() == before
