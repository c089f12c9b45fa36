"""Records some steps of one training with the profiler. Their times are never used as a throughput."""

from __future__ import annotations

import contextlib
import os
import statistics
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function, schedule

from perfkit.worker import observe
from perfkit.worker.harness import Harness
from perfkit.worker.loader import timed_pinning, workers_stopped
from perfkit.worker.reports import ProfileReport

_COMPARED = 8
"""Unprofiled steps taken first, at least, to estimate the profiler's overhead."""
_MARKED = ("copy", "forward", "backward", "optimizer")


def profile(
    harness: Harness, path: str, wait: int, warmup: int, active: int, shapes: bool, memory: bool, stacks: bool
) -> ProfileReport:
    """Takes steps with and without the profiler, and writes a trace of the active ones for each rank."""
    if rank := int(os.environ.get("RANK", "0")):
        path = path.replace(".json", f".rank{rank}.json")
    plain = harness.block(max(_COMPARED, active) * harness.samples_per_step, settle=True)
    device = [ProfilerActivity.CUDA] if harness.training.device.type == "cuda" else []
    profiler = _Profile(
        activities=[ProfilerActivity.CPU, *device],
        schedule=schedule(wait=wait, warmup=warmup, active=active, repeat=1),
        record_shapes=shapes, profile_memory=memory, with_stack=stacks,
        on_trace_ready=lambda recorded: _write(recorded, path),
    )  # fmt: skip
    total = wait + warmup + active
    harness.source.stamps.clear()
    marks, pins = [], list[float]()
    with observe.phases(_mark), timed_pinning(pins), profiler:
        for step in range(total):
            marks.append(harness.clock())
            harness.training.step(harness.batches)
            if step == total - 1:
                harness.device.synchronize()
                marks.append(harness.clock())  # the profiler now writes the trace, which is no training
            profiler.step()
            harness.progress("profiling", step + 1, total)
    first = wait + warmup
    received = [stamp for stamp in harness.source.stamps if marks[first] <= stamp[2] <= marks[-1]]
    plain_step_s = statistics.median(plain.device_step_s or plain.step_s)
    return ProfileReport(plain_step_s, received, marks[first:], pins)


class _Profile(torch.profiler.profile):
    """It takes a while to start; loader workers that got ahead meanwhile would hide the usual waiting."""

    def prepare_trace(self) -> None:
        with workers_stopped():
            super().prepare_trace()

    def start_trace(self) -> None:
        with workers_stopped():
            super().start_trace()


def _write(recorded: Any, path: str) -> None:
    part = f"{path.removesuffix('.json.gz').removesuffix('.json')}.part.json{'.gz' * path.endswith('.gz')}"
    recorded.export_chrome_trace(part)
    os.replace(part, path)


def _mark(name: str, named_range: object) -> contextlib.AbstractContextManager[Any]:
    """Names a phase in the trace."""
    return record_function(name) if name in _MARKED else contextlib.nullcontext()
