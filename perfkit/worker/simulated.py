"""The measured process beside a simulated GPU: the real loader and the real copies, and a device's queue."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from typing import Any

import torch

from perfkit import workloads
from perfkit.program import rules
from perfkit.program.recipe import Recipe
from perfkit.results.run import Mechanism
from perfkit.simulate.gpus import Gpu
from perfkit.simulate.queue import Link, Planned
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


def describe(
    workload: Any, command: messages.Describe, options: dict[str, Any], sheet: Gpu
) -> messages.Description:
    """What a workload offers, and what the simulated GPU is."""
    facts = messages.DeviceFacts(
        torch.get_num_threads(), str(torch.__version__), 1, f"simulated {sheet.name}",
        bf16=sheet.architecture != "volta",
    )  # fmt: skip
    return messages.Description(
        workloads.reference(command.workload), options, sorted(rules.offers(workload)), facts,
        workloads.convolves(workload),
    )  # fmt: skip


def train(workload: Any, command: messages.Train, progress: Progress) -> tuple[Harness, messages.Trained]:
    """A replay that is checked and warm."""
    planned = command.planned
    assert planned
    recipe = Recipe.from_dict(command.recipe)
    if recipe.cpu_threads > 0:
        torch.set_num_threads(recipe.cpu_threads)
    link = Link(pinned=planned.link_gbs * 1e9, pageable=planned.pageable_gbs * 1e9)
    replay = Replay(workload, recipe, planned.actions, link, command.seed)
    if command.batch_times:
        loader.time_loader(getattr(replay.loader, "loader", replay.loader), command.batch_times)
    harness = Harness(replay, device=SimulatedDevice(replay, planned), progress=progress)  # type: ignore[arg-type]
    startup_s = time.time() - command.started
    first, _ = harness.first_steps(command.loss_steps)
    batch = next(harness.source)
    mechanisms = _mechanisms(replay, planned, batch, harness)
    warm = harness.warm_up(command.warmup_s)
    return harness, messages.Trained(
        recipe=recipe.to_dict(), startup_s=startup_s, first=first, warm=warm, losses=[],
        mechanisms=mechanisms, batch_bytes_per_sample=checks.bytes_per_sample(batch),
        samples_per_step=harness.samples_per_step, compiled=False,
        compile_counters=messages.CompileCounters(0, 0, 0, 0), data_on_device=recipe.device_dataset,
        batch_norm=False, weights="", malloc=os.environ.get("GLIBC_TUNABLES", ""),
        wait_policy=os.environ.get("OMP_WAIT_POLICY", ""),
    )  # fmt: skip


def profile(harness: Harness, command: messages.RecordProfile) -> ProfileReport:
    """Takes steps and keeps what the queue did in the recorded ones; the parent makes a trace of it."""
    replay = harness.training
    assert isinstance(replay, Replay)
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


def _mechanisms(replay: Replay, planned: Planned, batch: Any, harness: Harness) -> list[Mechanism]:
    """What the real loader shows of its switches, and the plan of the others."""
    step = ObservedStep(replay, batch=batch)  # type: ignore[arg-type]
    step.iterator = getattr(replay.loader, "iterator", None) or harness.source.iterator
    known = {proof.switch: proof for proof in planned.mechanisms}
    if not replay.recipe.device_dataset:
        known |= {proof.switch: proof for proof in checks.verify(step, _OF_THE_LOADER)}
    return [known[switch] for switch in replay.recipe.to_dict() if switch in known]
