"""Goes over every workload."""

import pytest
import torch
from torch import nn

from perfkit import rules, workloads
from perfkit.ladder.presets import PRESETS
from tests.support import toy

WORKLOADS = sorted(workloads.BUILT_IN)


def test_the_tests_below_go_over_all_of_them():
    assert WORKLOADS == ["cifar_resnet18", "photos", "tiny_gpt"]


def test_whether_a_model_convolves_is_told_without_its_weights():
    assert workloads.convolves(workloads.load("cifar_resnet18", {"image_size": 32, "samples": 8}))
    assert not workloads.convolves(toy.Toy())

    class NeedsRealTensors(toy.Toy):
        def model(self):
            return nn.Linear(int(torch.ones(3).sum()), 2)

    assert workloads.convolves(NeedsRealTensors())


@pytest.mark.parametrize("preset", sorted(PRESETS))
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_has_sizes_for_every_preset(name, preset):
    found = workloads.find(name)
    assert workloads.options_for(found, preset, {})
    first = next(iter(workloads.options_for(found, preset, {})))
    assert workloads.options_for(found, preset, {first: 7})[first] == 7
    assert rules.offers(found) == workloads.declared(name), "what is shown before it is loaded"
