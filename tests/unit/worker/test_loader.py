"""The loader as it is measured: times of its batches, and when its workers rest."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from perfkit.trace import loading
from perfkit.worker import loader
from perfkit.worker.loader import time_loader, timed_pinning, wait_for_idle_loader


class Doubled(TensorDataset):
    """Has a transform, as torchvision's data sets do."""

    def transform(self, value: torch.Tensor) -> torch.Tensor:
        return 2 * value

    def __getitem__(self, index: int) -> Any:
        return self.transform(super().__getitem__(index)[0])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_timed_loader_gives_the_same_batches_and_notes_each(workers: int, tmp_path: Path) -> None:
    data = Doubled(torch.arange(12))
    plain = [batch.tolist() for batch in DataLoader(data, batch_size=3)]
    loader: Any = DataLoader(Doubled(torch.arange(12)), batch_size=3, num_workers=workers)
    time_loader(loader, str(tmp_path))
    assert [batch.tolist() for _epoch in range(2) for batch in loader] == 2 * plain
    with (tmp_path / "cut.jsonl").open("w") as file:
        file.write('{"number": 9, "wor')  # a process that was killed while it wrote
    notes = list(loading.read_notes(tmp_path))
    assert sorted(n.number for n in notes) == list(range(8))
    assert {n.worker for n in notes} == ({0, 1} if workers else {-1})
    for n in notes:
        assert n.start_s <= n.fetched_s <= n.collated_s
        assert n.transform_s
        assert 0 < n.transform_s <= n.fetched_s - n.start_s


def test_pinning_is_timed_and_put_back() -> None:
    from torch.utils.data._utils import pin_memory as module

    before = module.pin_memory
    pins: list[float] = []
    with timed_pinning(pins):
        module.pin_memory([])
    assert len(pins) == 1
    assert module.pin_memory is before


class Busy:
    """A process that computes until it has been looked at this often, then waits."""

    def __init__(self, looks: int) -> None:
        self.looks, self.seen = looks, 0

    def cpu_times(self) -> Any:
        self.seen += 1
        return SimpleNamespace(user=0.01 * min(self.seen, self.looks), system=0.0)


@pytest.mark.parametrize(("looks", "seen"), [(5, 6), (1, 2), (0, 0)])
def test_the_next_block_waits_until_the_workers_of_the_loader_are_idle(
    monkeypatch: pytest.MonkeyPatch, looks: int, seen: int
) -> None:
    child = Busy(looks)
    monkeypatch.setattr(loader, "process_tree", lambda: [None, *([child] if looks else [])])
    wait_for_idle_loader(limit_s=60, period_s=0)
    assert child.seen == seen
    endless = Busy(10**9)
    monkeypatch.setattr(loader, "process_tree", lambda: [None, endless])
    wait_for_idle_loader(limit_s=0.01, period_s=0.001)
    assert endless.seen > 1
