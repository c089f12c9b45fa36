"""A replay with a clock that a test controls: what the host does for real, and when the device is done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from perfkit.recipe import Recipe
from perfkit.simulate import replay as replays
from perfkit.simulate.queue import Action, Launch, Link
from perfkit.simulate.replay import ON_DEVICE, PinnedLoader, RealClock, Replay
from perfkit.simulate.step import Copy, Fetch, Wait

LINK = Link(pinned=1e9, pageable=1e9)


class Ticking:
    """Each look at the clock takes a microsecond; a sleep takes as long as it was asked to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time_s = 100.0
        self.slept = 0.0
        monkeypatch.setattr(replays.time, "sleep", self.sleep)

    def now(self) -> float:
        self.time_s += 1e-6
        return self.time_s

    def sleep(self, seconds: float) -> None:
        self.time_s += seconds
        self.slept += seconds


class Workload:
    """Ten samples of 1,000 floats."""

    def dataset(self, recipe: Any) -> Any:
        return [(torch.ones(1000), 0) for _ in range(10)]


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Ticking:
    return Ticking(monkeypatch)


def make(ticking: Ticking, *actions: Action, **switches: Any) -> tuple[Replay, Iterator[Any]]:
    recipe = Recipe(batch_size=2, **switches)
    made = Replay(Workload(), recipe, actions, LINK, clock=RealClock(ticking.now))
    return made, iter(made.loader)


def test_the_host_is_ahead_of_the_device_until_it_waits(ticking: Ticking) -> None:
    made, batches = make(ticking, Fetch(), Launch(1e-3, 0.0, [50e-3]))
    start = ticking.time_s
    made.step(batches)
    assert ticking.time_s - start == pytest.approx(1e-3, abs=1e-4)
    assert ticking.slept == 0, "a launch keeps the core busy"
    made.queue.synchronize()
    assert ticking.time_s - start == pytest.approx(51e-3, rel=1e-3)
    assert ticking.slept > 0.04, "the core is left to the loader while the host waits"


def test_a_block_takes_the_planned_device_time_within_a_percent(ticking: Ticking) -> None:
    kernels = [Launch(6e-6, 4e-6, [200e-6]) for _ in range(100)]
    made, batches = make(ticking, Fetch(), *kernels, Wait("item"))
    made.step(batches)
    start = ticking.time_s
    for _ in range(3):
        made.step(batches)
    assert ticking.time_s - start == pytest.approx(3 * 100 * 200e-6, rel=0.01)


def test_pageable_batches_are_copied_by_the_host_and_block_it(ticking: Ticking) -> None:
    made, batches = make(ticking, Fetch(), Copy(8000), Copy(16))
    start = ticking.time_s
    made.step(batches)
    assert len(made._staging) == 2
    assert ticking.time_s - start >= 8e-6
    staged = made._staging[(8000, 2, 1000)]
    assert staged.sum() == 2000


def test_pinned_batches_are_queued_and_no_second_copy_is_made(ticking: Ticking) -> None:
    made, batches = make(ticking, Fetch(), Copy(10**8, pinned=True, non_blocking=True), pin_memory=True)
    start = ticking.time_s
    made.step(batches)
    assert ticking.time_s - start < 1e-3
    assert made._staging == {}
    assert made.queue.ends() - start == pytest.approx(0.1, rel=1e-2)


def test_a_batch_that_is_on_the_device_is_not_copied(ticking: Ticking) -> None:
    made, _ = make(ticking, Fetch(), Copy(10**9), Launch(0.0, 1e-6, [1e-3]))
    held = (torch.empty(2, 1000, device=ON_DEVICE), torch.empty(2, device=ON_DEVICE))
    start = ticking.time_s
    made.step(iter([held]))
    made.queue.synchronize()
    assert ticking.time_s - start == pytest.approx(1e-3, rel=0.1)


def test_a_loss_has_no_number(ticking: Ticking) -> None:
    made, batches = make(ticking, Fetch())
    loss = made.step(batches)
    assert loss.is_meta
    with pytest.raises(RuntimeError):
        loss.item()


def test_the_pin_thread_hands_on_copies_in_order_and_errors_too() -> None:
    source = [(torch.full((2,), float(n)), torch.zeros(2)) for n in range(5)]
    copies = list(PinnedLoader(source, in_thread=True))
    assert [batch[0][0].item() for batch in copies] == [0, 1, 2, 3, 4]
    assert copies[0][0].data_ptr() != source[0][0].data_ptr()

    def broken() -> Iterator[Any]:
        yield source[0]
        raise ValueError("the data set is broken")

    batches = iter(PinnedLoader(broken(), in_thread=True))
    next(batches)
    with pytest.raises(ValueError, match="broken"):
        next(batches)
