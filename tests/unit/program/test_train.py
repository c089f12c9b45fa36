"""The training program: what its switches do, and what its sibling must not do."""

import itertools

import pytest
import torch

from perfkit.recipe import Recipe
from perfkit.train import train
from tests.support.toy import Points, Toy

CPU = torch.device("cpu")


def losses(workload, steps=4, **switches):
    training = train(Recipe(**{"batch_size": 8, **switches}), workload, CPU)
    return [loss.item() for loss in itertools.islice(training, steps)]


def test_each_epoch_is_shuffled_anew_and_alike_with_and_without_workers():
    class Short(Toy):
        def __init__(self):
            super().__init__()
            self.seen = []

        def dataset(self, recipe):
            return Points(27)

        def loss(self, outputs, targets):
            self.seen.append(float(targets.sum()))
            return super().loss(outputs, targets)

    alone, helped = Short(), Short()
    assert losses(alone, steps=9) == losses(helped, steps=9, workers=2)
    assert alone.seen == helped.seen
    assert alone.seen[:3] != alone.seen[3:6]


def test_accumulation_yields_the_mean_loss_of_its_batches_and_steps_once():
    class Counted(Toy):
        steps = 0

        def optimizer(self, parameters, **implementation):
            optimizer = super().optimizer(parameters, **implementation)
            optimizer.register_step_post_hook(lambda *_: setattr(self, "steps", self.steps + 1))
            return optimizer

    one, several = Counted(), Counted()
    split = losses(several, steps=2, batch_size=4, accumulation=2)
    assert split == pytest.approx(losses(one, steps=2), rel=1e-5)
    assert one.steps == several.steps == 2
