"""What counts as an optimizer's own time; the clock goes on by one each time it is read."""

import itertools
from unittest.mock import MagicMock, Mock

from perfkit.scripts import optimizers
from perfkit.scripts.script import Step


def test_forward_and_backward_in_a_closure_are_not_the_work_of_an_optimizer_or_of_one_inside(monkeypatch):
    monkeypatch.setattr(optimizers, "clock", map(float, itertools.count()).__next__)
    script = MagicMock(optimizers=[], toggles={}, backwards=0, losses=[])
    script.steps.now, script.steps.in_backward = Step(), False
    watched, inner, outer = optimizers.Updates(script), Mock(), Mock()

    def closure():
        return watched._backward(lambda roots: 0.5, None)

    assert watched._step(lambda: watched._step(closure, inner), outer) == 0.5
    assert script.steps.now.updated == 2 - 1  # the step lasts from 0 to 2, the backward pass ends at 1
    script.steps.optimizer_stepped.assert_called_once_with(outer)
