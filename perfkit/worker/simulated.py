"""The measured process beside a simulated GPU: the real loader and the real copies, and a device's queue."""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

import torch

from perfkit.recipe import Recipe
from perfkit.results.run import Mechanism
from perfkit.simulate.gpus import Gpu
from perfkit.simulate.queue import Planned
from perfkit.simulate.replay import Replay
from perfkit.worker import checks, loader, messages
from perfkit.worker.harness import Device, Harness, Progress
from perfkit.worker.observe import ObservedStep
from perfkit.worker.reports import ProfileReport

_OF_THE_LOADER = (
    "workers", "persistent_workers", "prefetch_factor", "infinite_sampler", "batched_fetch", "uint8_copy",
    "cpu_threads",
)  # fmt: skip
"""Switches whose effect can be seen here, as their objects are real."""


class SimulatedDevice(Device):
    """The queue's own time, and the memory of the plan."""

    def __init__(self, replay: Replay, planned: Planned) -> None:
        super().__init__(replay.device)
        self._queue, self._planned = replay.queue, planned
        self._ends: list[float] = []

    def synchronize(self) -> None:
        """Waits until the queue is empty."""
        self._queue.synchronize()

    def mark(self) -> None:
        """Notes when what is queued now will be done."""
        self._ends.append(self._queue.ends())

    def take_marked(self) -> list[float]:
        """Seconds between successive marks, by the simulated device's clock."""
        ends, self._ends = self._ends, []
        return [after - before for before, after in itertools.pairwise(ends)]

    def reset_peak(self) -> None:
        """The plan's peak is that of every step."""

    def peak(self) -> tuple[int | None, int | None]:
        """Peak bytes of the plan: allocated and reserved."""
        return self._planned.peak_bytes, self._planned.reserved_bytes


class SimulatedHarness(Harness):
    """Runs a replay in blocks; it takes the place of a training."""

    def __init__(self, workload: Any, command: messages.Train, progress: Progress) -> None:
        assert command.planned
        self.planned, recipe = command.planned, Recipe.from_dict(command.recipe)
        if recipe.cpu_threads > 0:
            torch.set_num_threads(recipe.cpu_threads)
        self.replay = Replay(workload, recipe, self.planned.actions, self.planned.link, command.seed)
        if command.batch_times:
            loader.time_loader(getattr(self.replay.loader, "loader", self.replay.loader), command.batch_times)
        device = SimulatedDevice(self.replay, self.planned)
        super().__init__(self.replay, device=device, progress=progress)  # type: ignore[arg-type]

    def mechanisms(self) -> tuple[list[Mechanism], int]:
        """What the real loader shows of its switches, and the plan of the others; bytes of a sample."""
        batch = next(self.source)
        step = ObservedStep(self.replay, batch=batch)  # type: ignore[arg-type]
        step.iterator = getattr(self.replay.loader, "iterator", None) or self.source.iterator
        known = {proof.switch: proof for proof in self.planned.mechanisms}
        if not self.replay.recipe.device_dataset:
            known |= {proof.switch: proof for proof in checks.verify(step, _OF_THE_LOADER)}
        ordered = [known[switch] for switch in self.replay.recipe.to_dict() if switch in known]
        return ordered, checks.bytes_per_sample(batch)


def facts(sheet: Gpu) -> messages.DeviceFacts:
    """What the simulated GPU is."""
    return messages.DeviceFacts(
        torch.get_num_threads(), str(torch.__version__), 1, f"simulated {sheet.name}",
        bf16=sheet.architecture != "volta",
    )  # fmt: skip


def profile(harness: SimulatedHarness, command: messages.RecordProfile) -> ProfileReport:
    """Takes steps and keeps what the queue did in the recorded ones; the parent makes a trace of it."""
    replay = harness.replay
    plain = harness.block(harness.samples_per_step, settle=True)
    skipped = command.wait + command.warmup
    marks = []
    harness.source.stamps.clear()
    for step in range(skipped + command.active):
        if step == skipped:
            replay.queue.bars = []
        marks.append(time.perf_counter())
        replay.step(harness.batches)
        harness.progress("recording", step + 1, skipped + command.active)
    bars, replay.queue.bars = replay.queue.bars or [], None
    harness.device.synchronize()
    marks.append(time.perf_counter())
    taken = [stamp for stamp in harness.source.stamps if marks[skipped] <= stamp[2] <= marks[-1]]
    plain_step_s = statistics.median(plain.device_step_s or plain.step_s)
    return ProfileReport(plain_step_s, taken, marks[skipped:], [], bars)
