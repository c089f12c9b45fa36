"""The profiler on some steps of one training, in its own process. Their times are never a throughput."""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import torch
from torch.profiler import ProfilerActivity, record_function, schedule

from perfkit import train
from perfkit.measure import Harness

_COMPARED = 8
"""Steps without the profiler, just before, that its slow-down is told from; more if more are recorded."""


def profile(
    harness: Harness, path: str, wait: int, warmup: int, active: int, shapes: bool, memory: bool, stacks: bool
) -> dict[str, Any]:
    """Takes steps with and without the profiler, and writes the trace of the `active` ones."""
    plain = harness.block(max(_COMPARED, active) * harness.samples_per_step, settle=True)
    used = [ProfilerActivity.CUDA] if harness.training.device.type == "cuda" else []
    made = _Profile(
        activities=[ProfilerActivity.CPU, *used],
        schedule=schedule(wait=wait, warmup=warmup, active=active, repeat=1),
        record_shapes=shapes, profile_memory=memory, with_stack=stacks,
        on_trace_ready=lambda ready: _write(ready, path),
    )  # fmt: skip
    total = wait + warmup + active
    with _marked(harness.training), made:
        for step in range(total):
            harness.training.step(harness.batches)
            if step == total - 1:
                harness.device.synchronize()
            made.step()
            harness.progress("profiling", step + 1, total)
    return {"plain_step_s": statistics.median(plain.device_step_s or plain.step_s)}


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


@contextlib.contextmanager
def _marked(training: train.Training) -> Iterator[None]:
    """Names the phases in the trace; the program itself stays as it is."""
    places: tuple[tuple[Any, str, str], ...] = (
        (train, "forward", "forward"), (train, "to_device", "to_device"),
        (torch.Tensor, "backward", "backward"), (training, "update", "optimizer"),
    )  # fmt: skip
    before = [getattr(owner, name) for owner, name, _ in places]
    for (owner, name, mark), function in zip(places, before, strict=True):
        setattr(owner, name, _named(function, mark))
    try:
        yield
    finally:
        for (owner, name, _), function in zip(places, before, strict=True):
            setattr(owner, name, function)


def _named(function: Callable[..., Any], mark: str) -> Callable[..., Any]:
    def marked(*arguments: Any, **named: Any) -> Any:
        with record_function(mark):
            return function(*arguments, **named)

    return marked
