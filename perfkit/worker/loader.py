"""The loader from inside: how long each batch takes its workers."""

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, get_worker_info


class _NumberedBatches:
    """Sends a batch's number, in the order of delivery, to the worker with its indices."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches
        self.numbers = itertools.count()

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        return zip(self.batches, self.numbers, strict=False)


class TimedFetch:
    """Replaces a loader's data set and collate function, and records how long each batch took."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], folder: str) -> None:
        self.dataset = dataset
        self.collate = collate
        self.folder = folder
        self.note: dict[str, Any] = {}

    def __getitems__(self, batch: Any) -> Any:
        indices, number = batch
        start = time.perf_counter()
        together = getattr(self.dataset, "__getitems__", None)
        fetched = together(indices) if together else [self.dataset[index] for index in indices]
        worker = get_worker_info()
        self.note = {
            "number": number,
            "worker": worker.id if worker else -1,
            "start_s": start,
            "fetched_s": time.perf_counter(),
        }
        return fetched

    def __call__(self, samples: Any) -> Any:
        batch = self.collate(samples)
        self.note["collated_s"] = time.perf_counter()
        with open(Path(self.folder) / f"{os.getpid()}.jsonl", "a") as file:
            file.write(json.dumps(self.note) + "\n")
        return batch


def time_loader(loader: Any, folder: str) -> None:
    """Makes a `DataLoader` that has not started yet record its batches' times in a folder; none if empty."""
    if not folder or not isinstance(loader, DataLoader):
        return
    timed = TimedFetch(loader.dataset, loader.collate_fn, folder)
    batches = _NumberedBatches(loader.batch_sampler)
    # DataLoader refuses to have these set, since a new sampler would not follow; here the order is the same.
    loader.__dict__ |= {"dataset": timed, "collate_fn": timed, "batch_sampler": batches}
