"""A small workload and its planned steps, shared by the tests of the simulation."""

from functools import cache

import torch
from torch import nn
from torch.utils.data import TensorDataset

from perfkit.additions.simulate import recording
from perfkit.additions.simulate.costs import GPUS
from perfkit.additions.simulate.host import IDEAL
from perfkit.additions.simulate.prediction import Prediction
from perfkit.additions.simulate.step import OperatorCall
from perfkit.recipe import Recipe


class Images:
    """Two convolutions with batch norm between them, and a linear layer, on images of 8 × 8."""

    def dataset(self, recipe):
        return TensorDataset(torch.zeros(64, 3, 8, 8), torch.zeros(64, dtype=torch.long))

    def model(self):
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 3, padding=1, bias=False),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 4),
        )

    def loss(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets)

    def optimizer(self, parameters, **implementation):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **implementation)


class Of(Images):
    """The same training of another model, and perhaps on images or with an optimizer of its own."""

    def __init__(self, model, **more):
        vars(self).update(more, model=model)


class Block(nn.Module):
    """Layers, and what is computed with them."""

    def __init__(self, forward, *layers):
        super().__init__()
        self.layers, self.compute = nn.ModuleList(layers), forward

    def forward(self, x):
        return self.compute(x, *self.layers)


def of(step, kind):
    """The events of a step that are of a kind."""
    return [event for event in step.events if isinstance(event, kind)]


@cache
def planned(**switches):
    return recording.record(Images(), Recipe(batch_size=4).replace(**switches))


def prediction(**switches):
    recipe = Recipe(batch_size=4).replace(**switches)
    return Prediction(GPUS["v100"], planned(**switches), recipe, IDEAL, 0.0)


def operators(step):
    return [event for event in step.events if isinstance(event, OperatorCall)]
