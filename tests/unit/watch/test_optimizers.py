"""What counts as an optimizer's own time; the clock goes on by one each time it is read."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from perfkit.scripts import optimizers


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(optimizers, "clock", map(float, itertools.count()).__next__)
    steps = SimpleNamespace(now=SimpleNamespace(updated=0.0), optimizer_stepped=Mock())
    script: Any = SimpleNamespace(
        steps=steps, gradients=SimpleNamespace(inside=0), models=Mock(), toggles={}, refuse=Mock()
    )
    return optimizers.Optimizers(script)


def step(optimizer: object, closure: Any = None) -> Any:
    return closure and closure()


@pytest.mark.parametrize("by_name", [False, True])
def test_forward_and_backward_in_a_closure_are_not_the_optimizer_s_work(watched: Any, by_name: bool) -> None:
    optimizer, closure = object(), Mock(return_value=0.5)
    given: tuple[Any, ...] = (optimizer,) if by_name else (optimizer, closure)
    assert watched.run(step, given, {"closure": closure} if by_name else {}) == 0.5
    closure.assert_called_once_with()
    assert watched.script.steps.now.updated == 3 - 1
    watched.script.steps.optimizer_stepped.assert_called_once_with(optimizer)


def test_without_a_closure_all_of_it_is(watched: Any) -> None:
    optimizer = object()
    watched.run(step, (optimizer, None), {})
    watched.run(step, (optimizer,), {"closure": None})
    assert watched.script.steps.now.updated == 2


def test_a_closure_that_is_handed_on_to_an_inner_optimizer_counts_once(watched: Any) -> None:
    inner, outer, closure = object(), object(), Mock(return_value=0.5)

    def hands_on(_: object, given: Any) -> Any:
        return watched.run(step, (inner, given), {})

    assert watched.run(hands_on, (outer, closure), {}) == 0.5
    closure.assert_called_once_with()
    # Five readings: the start of both, around the closure, the end; one interval is the closure's.
    assert watched.script.steps.now.updated == 4 - 1
    watched.script.steps.optimizer_stepped.assert_called_once_with(outer)
