"""What a look inside a training finds, against what can be counted by hand: memory, FLOPs."""

import pytest
import torch
from torch import nn

from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.worker import checks, inside
from perfkit.worker.training import Training
from tests.support.toy import Toy

CPU = torch.device("cpu")
WEIGHTS = 4 * (16 * 32 + 32 + 32 * 2 + 2)


def training(workload=None, **switches):
    return Training(Recipe(**{"batch_size": 8, **switches}), workload or Toy(), CPU)


class Momentum(Toy):
    def optimizer(self, parameters, **implementation):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **implementation)


class Deep(Toy):
    """Each of eight parts keeps 256 floats of a sample, and 16 more."""

    def model(self):
        parts = [nn.Sequential(nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 16)) for _ in range(8)]
        return nn.Sequential(*parts, nn.Linear(16, 2))


def test_each_byte_is_of_one_kind():
    report = inside.memory(training(Momentum(), zero_grad_set_to_none=False))
    assert sum(report.parts.values()) == report.peak
    assert [report.parts[kind] for kind in ("weights", "optimizer", "gradients")] == [WEIGHTS] * 3
    assert report.parts["batch"] >= 8 * 16 * 4
    assert report.allocated is None
    assert report.peak_phase in ("forward", "backward", "optimizer")


def test_activations_are_what_layers_keep_for_the_backward_pass():
    report = inside.memory(training(Deep(), batch_size=64))
    kept = 8 * 4 * 64 * 256
    assert kept <= report.parts["activations"] < 1.1 * kept


def test_memory_of_a_compiled_model_is_refused_and_its_work_is_not_known():
    measured = training()
    measured.recipe = Recipe(compile=True)
    with pytest.raises(InvalidValue, match="compile=false"):
        inside.memory(measured)
    assert inside.flops(measured) is None


def test_a_peak_that_is_not_kept_is_not_known():
    """MPS knows what is allocated now, and that is no peak."""
    assert checks.peak_bytes(torch.device("mps")) == (None, None)
    assert (checks.peak_bytes(CPU)[0] or 0) > 1 << 20


def test_flops_of_a_step_are_those_of_its_products():
    """Forward 2·b·in·out for each layer; backward the same for weights, and for inputs but the first."""
    assert inside.flops(training()) == 2 * 8 * (3 * 32 * 2 + 2 * 16 * 32)
