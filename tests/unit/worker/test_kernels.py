"""FLOPs, bytes and shapes, against what can be counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from perfkit import old_train as train
from perfkit.recipe import Recipe
from perfkit.worker import kernels, roofline
from perfkit.worker.harness import Harness
from perfkit.worker.reports import StepWork
from tests.support.toy import Toy

CPU = torch.device("cpu")


def harness(workload: Any, **switches: Any) -> Harness:
    return Harness(train.Training(workload, Recipe(**{"batch_size": 8, **switches}), CPU))


def test_flops_of_a_step_are_those_of_its_products() -> None:
    """Forward 2·b·in·out for each layer; backward the same for weights, and for inputs but the first."""
    step, operators = kernels.work(harness(Toy()))
    assert step.flops == 2 * 8 * (3 * 32 * 2 + 2 * 16 * 32)
    assert step.bytes == sum(one.bytes for one in operators) > 0
    assert sum(one.flops > 0 for one in operators) == 5, "two forward, two of weights, one of inputs"
    assert kernels.work(harness(Toy(), amp="bf16"))[0].dtype == "bfloat16"
    assert kernels.work(harness(Toy(), compile=True))[0].flops is None


def test_flops_are_those_that_torch_counts() -> None:
    measured = harness(Toy())
    with FlopCounterMode(display=False) as counter:
        measured.training.step(measured.batches)
    assert kernels.work(measured)[0].flops == counter.get_total_flops()


def test_shares_of_the_roof_are_known_where_the_work_is() -> None:
    roofs: Any = {"step_s": 20.0, "peaks": {"float32": 100.0}, "bytes_per_s": 50.0}
    operators = [roofline.Operator(400, 50), roofline.Operator(100, 100), roofline.Operator(0, 50)]
    mfu, light_share = roofline.shares(StepWork(500, 200, "float32"), operators, **roofs)
    assert mfu == pytest.approx(500 / 100 / 20)
    assert light_share == pytest.approx((400 / 100 + 100 / 50 + 50 / 50) / 20), "the longer of both, each"
    assert roofline.shares(StepWork(None, None, ""), [], **roofs) == (None, None)


def test_layers_with_unlucky_sizes_are_listed_with_the_cost_of_padding() -> None:
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Conv2d(64, 64, 3), nn.Linear(64, 10), nn.Linear(16, 24))
    found = {row.layer: row for row in kernels.misaligned(model)}
    assert set(found) == {"0", "2"}
    assert found["0"].padded == [8, 64]
    assert found["0"].more_flops == pytest.approx(8 / 3 - 1)
    assert found["2"].more_flops == pytest.approx(16 / 10 - 1)
