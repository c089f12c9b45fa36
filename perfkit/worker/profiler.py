"""The profiler on some steps of one training, in its own process. Their times are never a throughput."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.profiler import ProfilerActivity, record_function, schedule

from perfkit.worker import observe
from perfkit.worker.harness import Harness
from perfkit.worker.messages import RecordProfile
from perfkit.worker.reports import ProfileReport

_COMPARED = 8
"""Unprofiled steps taken first, at least, to estimate the profiler's overhead."""
_MARKED = ("copy", "forward", "backward", "optimizer")


def profile(harness: Harness, command: RecordProfile) -> ProfileReport:
    """Takes steps with and without the profiler, and writes a trace of the active ones for each rank."""
    path, wait, warmup, active = command.path, command.wait, command.warmup, command.active
    if rank := int(os.environ.get("RANK", "0")):
        path = path.replace(".json", f".rank{rank}.json")
    plain = harness.block(max(_COMPARED, active) * harness.samples_per_step, settle=True)
    used = [ProfilerActivity.CUDA] if harness.training.device.type == "cuda" else []
    made = _Profile(
        activities=[ProfilerActivity.CPU, *used],
        schedule=schedule(wait=wait, warmup=warmup, active=active, repeat=1),
        record_shapes=command.shapes, profile_memory=command.memory, with_stack=command.stacks,
        on_trace_ready=lambda ready: _write(ready, path),
    )  # fmt: skip
    total = wait + warmup + active
    harness.source.stamps.clear()
    marks, pins = [], list[float]()
    has_ranges = harness.training.recipe.nvtx_ranges
    marked = contextlib.nullcontext() if has_ranges else observe.phases(_mark)
    with marked, _timed_pinning(pins), made:
        for step in range(total):
            marks.append(time.perf_counter())
            harness.training.step(harness.batches)
            if step == total - 1:
                harness.device.synchronize()
            made.step()
            harness.progress("profiling", step + 1, total)
        marks.append(time.perf_counter())
    first = wait + warmup
    taken = [stamp for stamp in harness.source.stamps if marks[first] <= stamp[2] <= marks[-1]]
    plain_step_s = statistics.median(plain.device_step_s or plain.step_s)
    return ProfileReport(plain_step_s, taken, marks[first:], pins)


class _Numbered(list[int]):
    """A batch's indices with its number in the order of delivery, which crosses to the worker with them."""

    number = -1


class _NumberedBatches:
    def __init__(self, batches: Any) -> None:
        self.batches = batches
        self.count = 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[_Numbered]:
        for indices in self.batches:
            batch = _Numbered(indices)
            batch.number = self.count
            self.count += 1
            yield batch


class TimedFetch:
    """Stands in a loader's data set and collate function, and notes how long each batch took.

    Attributes that are not its own come from the data set.
    """

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], folder: str) -> None:
        self.dataset = dataset
        self.collate = collate
        self.folder = folder
        self.note: dict[str, Any] = {}
        self.transform_s: float | None = None
        inner = getattr(dataset, "transform", None)
        if callable(inner):
            self.transform, dataset.transform = inner, self._transform
            self.transform_s = 0.0

    def __getattr__(self, name: str) -> Any:
        if name in ("dataset", "__setstate__"):  # not there yet while unpickling
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __len__(self) -> int:
        return len(self.dataset)

    def _transform(self, *given: Any) -> Any:
        start = time.perf_counter()
        made = self.transform(*given)
        self.transform_s = (self.transform_s or 0.0) + time.perf_counter() - start
        return made

    def __getitems__(self, indices: _Numbered) -> Any:
        before, start = self.transform_s, time.perf_counter()
        whole = getattr(self.dataset, "__getitems__", None)
        fetched = whole(list(indices)) if whole else [self.dataset[index] for index in indices]
        worker = torch.utils.data.get_worker_info()
        self.note = {
            "number": indices.number, "worker": worker.id if worker else -1, "start_s": start,
            "fetched_s": time.perf_counter(),
            "transform_s": None if before is None else (self.transform_s or 0.0) - before,
        }  # fmt: skip
        return fetched

    def __call__(self, samples: Any) -> Any:
        """Collates."""
        batch = self.collate(samples)
        self.note["collated_s"] = time.perf_counter()
        with open(Path(self.folder) / f"{os.getpid()}.jsonl", "a") as file:
            file.write(json.dumps(self.note) + "\n")
        return batch


def time_loader(loader: Any, folder: str) -> None:
    """Makes a `DataLoader` that has not started yet note its batches' times in a folder; others stay."""
    if not isinstance(loader, torch.utils.data.DataLoader):
        return
    timed = TimedFetch(loader.dataset, loader.collate_fn, folder)
    # DataLoader refuses these assignments, as they would come too late for its sampler; here nothing changes.
    loader.__dict__ |= {
        "dataset": timed, "collate_fn": timed, "batch_sampler": _NumberedBatches(loader.batch_sampler),
    }  # fmt: skip


@contextlib.contextmanager
def _timed_pinning(seconds: list[float]) -> Iterator[None]:
    """Times the loader's pin thread, which looks the function up in its module for every batch."""
    from torch.utils.data._utils import pin_memory as module

    pin: Callable[..., Any] = module.pin_memory

    def timed(*given: Any, **named: Any) -> Any:
        start = time.perf_counter()
        made = pin(*given, **named)
        seconds.append(time.perf_counter() - start)
        return made

    module.pin_memory = timed
    try:
        yield
    finally:
        module.pin_memory = pin


class _Profile(torch.profiler.profile):
    """Starting takes it a while; loader workers that got ahead meanwhile would hide the usual waiting."""

    def prepare_trace(self) -> None:
        with _workers_stopped():
            super().prepare_trace()

    def start_trace(self) -> None:
        with _workers_stopped():
            super().start_trace()


@contextlib.contextmanager
def _workers_stopped() -> Iterator[None]:
    workers = psutil.Process().children(recursive=True)
    for worker in workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.suspend()
    try:
        yield
    finally:
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.resume()


def _write(ready: Any, path: str) -> None:
    part = f"{path.removesuffix('.json.gz').removesuffix('.json')}.part.json{'.gz' * path.endswith('.gz')}"
    ready.export_chrome_trace(part)
    os.replace(part, path)


def _mark(name: str, named_range: object) -> contextlib.AbstractContextManager[Any]:
    """Names a phase in the trace."""
    return record_function(name) if name in _MARKED else contextlib.nullcontext()
