"""What counts as an optimizer's own time; the clock goes on by one each time it is read."""

import itertools
from types import SimpleNamespace
from unittest.mock import Mock

from perfkit.scripts import optimizers
from perfkit.scripts.script import Step


def test_forward_and_backward_in_a_closure_are_not_the_work_of_an_optimizer_or_of_one_inside(monkeypatch):
    monkeypatch.setattr(optimizers, "clock", map(float, itertools.count()).__next__)
    steps, gradients = SimpleNamespace(now=Step(), optimizer_stepped=Mock(), in_backward=0), Mock(ended_at=0)
    script = SimpleNamespace(steps=steps, toggles={}, refuse=Mock())
    models = SimpleNamespace(optimized=[], leave_autocast=Mock())
    watched = optimizers.Optimizers(script, models, gradients)
    inner, outer = Mock(param_groups=[]), Mock(param_groups=[])

    def closure():
        gradients.ended_at = optimizers.clock()
        return 0.5

    def hands_on(_, closure):
        return watched.run(lambda _, closure: closure(), inner, (closure,), {})

    assert watched.run(hands_on, outer, (closure,), {}) == 0.5
    assert steps.now.updated == 2 - 1  # the step lasts from 0 to 2, the backward pass ends at 1
    steps.optimizer_stepped.assert_called_once_with(outer)
