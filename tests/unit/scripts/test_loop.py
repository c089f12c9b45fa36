"""A loop observed in its own process: what counts as a step, what as waiting; nothing stays patched."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, dataloader

from perfkit.scripts import loop


def test_the_figures_leave_out_the_first_steps():
    now = [0.0]
    tracked = loop.Tracked(lambda: now[0])

    def wait():
        now[0] += 0.25
        return {"input": torch.zeros(8, 3), "ids": torch.zeros(8, 5, dtype=torch.long)}

    for seconds in (5.75, 5.75, 0.75, 0.75, 0.75, 0.75):
        tracked.fetch(wait)
        now[0] += seconds
        tracked.end()
    assert [step.seconds for step in tracked.steps] == [6.0, 6.0, 1.0, 1.0, 1.0, 1.0]
    (table,) = loop.contents(tracked)
    assert dict(table.rows) | {"samples/s": "8.00", "waiting for data": "25%"} == dict(table.rows)
    assert loop.contents(loop.Tracked())[0].text.startswith("No step was seen")


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
    assert [step.samples for step in tracked.steps] == [4, 4, 4]
    assert all(0 <= step.waited <= step.seconds for step in tracked.steps)
    assert dataloader._BaseDataLoaderIter.__next__ is plain
    train()
    assert len(tracked.steps) == 3
