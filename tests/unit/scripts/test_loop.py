"""A loop observed in its own process: what counts as a step, what as waiting; nothing stays patched."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, dataloader

import perfkit
from perfkit.scripts import loop
from perfkit.scripts.tracked import Tracked


class Ticking:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def batches(self, count: int, wait_s: float):
        for _ in range(count):
            self.now += wait_s
            yield {"input": torch.zeros(8, 3), "ids": torch.zeros(8, 5, dtype=torch.long)}


def test_steps_and_waiting():
    clock = Ticking()
    tracker = perfkit.track(clock.batches(6, 0.25), quiet=True, clock=clock)
    for _ in tracker:
        clock.now += 0.75
    assert tracker.tracked.step_s == [1.0] * 6
    assert tracker.tracked.wait_s == [0.25] * 6
    assert tracker.tracked.samples == [8] * 6
    assert tracker.tracked.waiting == 0.25
    assert tracker.tracked.rate(tracker.tracked.samples) == 8.0


def test_break_counts_the_step_and_says_so(capsys):
    clock = Ticking()
    tracker = loop.track(clock.batches(100, 0.5), clock=clock)
    for number, _ in enumerate(tracker):
        clock.now += 0.5
        if number == 2:
            break
    assert tracker.tracked.step_s == [1.0] * 3
    assert "8 samples/s" in capsys.readouterr().err


def test_it_stays_a_loader():
    loader = DataLoader(TensorDataset(torch.zeros(10, 2)), batch_size=4)
    tracker = loop.track(loader, quiet=True)
    assert (len(tracker), tracker.batch_size) == (3, 4)
    assert [len(x) for (x,) in tracker] == [4, 4, 2]
    assert tracker.tracked.samples == [4, 4, 2]
    list(tracker)
    assert tracker.tracked.loops == 2 and len(tracker.tracked.step_s) == 6


def test_anything_can_be_iterated_over():
    tracker = loop.track(range(3), quiet=True)
    assert list(tracker) == [0, 1, 2]
    assert tracker.tracked.rate(tracker.tracked.samples) is None
    assert "steps/s" in tracker.tracked.describe()


def test_no_step():
    assert Tracked().describe() == "no step was seen"
    assert loop.track([], quiet=True).sections()


def test_the_first_steps_are_left_out_of_the_figures():
    result = Tracked([9.0, 9.0, 1.0, 1.0, 1.0], [0.0] * 5, [4] * 5, [0] * 5)
    assert result.rate(result.samples) == 4.0
    assert result.step.value == 1.0


def test_observing_any_loop_and_leaving_nothing_behind():
    plain = dataloader._BaseDataLoaderIter.__next__
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(TensorDataset(torch.zeros(12, 2)), batch_size=2)
    with loop.observed() as tracked:
        for (first,), (second,) in pairs(loader):
            (model(first).sum() + model(second).sum()).backward()
            optimizer.step()
    assert tracked.samples == [4, 4, 4]
    assert all(0 <= wait <= step for wait, step in zip(tracked.wait_s, tracked.step_s, strict=True))
    assert dataloader._BaseDataLoaderIter.__next__ is plain
    optimizer.step()
    assert len(tracked.step_s) == 3


def pairs(values):
    values = iter(values)
    return zip(values, values, strict=True)


def test_a_loop_that_fails_leaves_nothing_behind():
    plain = dataloader._BaseDataLoaderIter.__next__
    with pytest.raises(ZeroDivisionError), loop.observed():
        _ = 1 / 0
    assert dataloader._BaseDataLoaderIter.__next__ is plain
