"""A loop observed in its own process: what counts as a step, what as waiting; nothing stays patched."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, dataloader

import perfkit
from perfkit.scripts import loop


class Ticking:
    """A clock that the test moves."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def batches(self, count: int, wait_s: float):
        for _ in range(count):
            self.now += wait_s
            yield {"input": torch.zeros(8, 3), "ids": torch.zeros(8, 5, dtype=torch.long)}


def test_steps_and_waiting_also_of_the_step_that_breaks(capsys):
    clock = Ticking()
    tracker = perfkit.track(clock.batches(100, 0.25), clock=clock)
    for number, _ in enumerate(tracker):
        clock.now += 0.75 if number > 1 else 5.75
        if number == 5:
            break
    seen = tracker.tracked
    assert seen.step_s == [6.0, 6.0, 1.0, 1.0, 1.0, 1.0]
    assert (seen.wait_s, seen.samples) == ([0.25] * 6, [8] * 6)
    assert (seen.step.value, seen.waiting, seen.rate(seen.samples)) == (1.0, 0.25, 8.0), (
        "without the first two"
    )
    said = "perfkit: 8 samples/s, 1000 ms a step (median), 25% of it waiting for data (6 steps)\n"
    assert capsys.readouterr().err == said


def test_it_stays_a_loader():
    loader = DataLoader(TensorDataset(torch.zeros(10, 2)), batch_size=4)
    tracker = perfkit.track(loader, quiet=True)
    assert (len(tracker), tracker.batch_size) == (3, 4)
    assert [len(x) for (x,) in [*tracker, *tracker]] == tracker.tracked.samples == [4, 4, 2, 4, 4, 2]


def test_anything_can_be_iterated_over():
    tracker = perfkit.track(range(3), quiet=True)
    assert list(tracker) == [0, 1, 2]
    assert tracker.tracked.rate(tracker.tracked.samples) is None
    assert "steps/s" in tracker.tracked.describe()
    assert loop.Tracked().describe() == "no step was seen"
    assert perfkit.track([], quiet=True).sections()


def test_any_loop_is_observed_and_nothing_is_left_behind():
    plain = dataloader._BaseDataLoaderIter.__next__
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(TensorDataset(torch.zeros(12, 2)), batch_size=2)

    def train():
        batches = iter(loader)
        for (first,), (second,) in zip(batches, batches, strict=True):
            (model(first).sum() + model(second).sum()).backward()
            optimizer.step()

    with pytest.raises(ZeroDivisionError), loop.observed() as tracked:
        train()
        _ = 1 / 0
    assert tracked.samples == [4, 4, 4]
    assert all(0 <= wait <= step for wait, step in zip(tracked.wait_s, tracked.step_s, strict=True))
    assert dataloader._BaseDataLoaderIter.__next__ is plain
    train()
    assert len(tracked.step_s) == 3
