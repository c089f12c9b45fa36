"""What counts as an optimizer's own time; the clock goes on by one each time it is read."""

import itertools
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from perfkit.scripts import optimizers
from perfkit.scripts.script import Step


@pytest.fixture
def watched(monkeypatch):
    monkeypatch.setattr(optimizers, "clock", map(float, itertools.count()).__next__)
    steps = SimpleNamespace(now=Step(), optimizer_stepped=Mock(), in_backward=0)
    script = SimpleNamespace(steps=steps, toggles={}, refuse=Mock())
    return SimpleNamespace(optimizers=optimizers.Optimizers(script, Mock()), steps=steps)


def step(optimizer, closure=None):
    return closure and closure()


@pytest.mark.parametrize("by_name", [False, True])
def test_forward_and_backward_in_a_closure_are_not_the_optimizer_s_work(watched, by_name):
    optimizer, closure = object(), Mock(return_value=0.5)
    args, kwargs = ((), {"closure": closure}) if by_name else ((closure,), {})
    assert watched.optimizers.run(step, optimizer, args, kwargs) == 0.5
    closure.assert_called_once_with()
    assert watched.steps.now.updated == 3 - 1
    watched.steps.optimizer_stepped.assert_called_once_with(optimizer)


def test_a_closure_that_is_handed_on_to_an_inner_optimizer_counts_once(watched):
    inner, outer, closure = object(), object(), Mock(return_value=0.5)

    def hands_on(_, timed):
        return watched.optimizers.run(step, inner, (timed,), {})

    assert watched.optimizers.run(hands_on, outer, (closure,), {}) == 0.5
    # Four readings: the start of the outer one, around the closure, the end; one interval is the closure's.
    assert watched.steps.now.updated == 3 - 1
    watched.steps.optimizer_stepped.assert_called_once_with(outer)
