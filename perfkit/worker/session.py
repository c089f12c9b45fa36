"""The inside of a measuring process: one training, and the questions that it answers."""

import functools
import os
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from perfkit import rules, workloads
from perfkit.recipe import Recipe, switches
from perfkit.results.run import Communication, Mechanism
from perfkit.worker import device, kernels, loader, memory, messages, parity, syncs
from perfkit.worker.checks import READERS, bytes_per_sample, verify
from perfkit.worker.harness import Harness, losses
from perfkit.worker.messages import Block, CompileCounters, DeviceFacts, Peak, Trained
from perfkit.worker.observe import observe_step
from perfkit.worker.procedure import Job, Procedure, Steps
from perfkit.worker.reports import KernelReport, MemoryReport, ParityReport, ProfileReport, SyncReport
from perfkit.worker.training import Training, distributed_model, is_compiled

_PROGRESS_INTERVAL_S = 0.1


def serve(connection: Connection) -> None:
    """Answers questions until the parent has no more."""
    session = Session(connection)
    while True:
        try:
            question = messages.decode_question(connection.recv_bytes())
        except EOFError:
            return
        answer = getattr(session, question.name)(**question.arguments)
        connection.send_bytes(messages.encode(messages.Answer(answer)))


class Session:
    """One training, and what can be asked of it: every public method is a question."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._started = time.time() - getattr(sys.modules.get("perfkit.worker.preload"), "IMPORT_S", 0.0)
        """When a process that imports everything itself would have started."""
        self._last_progress = 0.0
        self._reported = 0
        """Steps of the block under way that the parent knows."""
        self._workload: Any = None
        self._device: torch.device
        self._harness: Harness

    def describe(
        self, workload: str, preset: str, options: dict[str, Any], device: str
    ) -> messages.Description:
        """Loads a workload."""
        complete = workloads.options_for(workloads.find(workload), preset, options)
        self._workload, self._device = workloads.load(workload, complete), torch.device(device)
        return messages.Description(
            workloads.reference(workload),
            complete,
            sorted(rules.offers(self._workload)),
            self._facts(),
            workloads.convolves(self._workload),
        )

    def train(
        self, recipe: dict[str, Any], seed: int, loss_steps: int, warmup_s: float, batch_times: str = ""
    ) -> Trained:
        """Builds a training, takes its first steps, checks its switches and warms up.

        Args:
            recipe: every switch.
            seed: of weights and order.
            loss_steps: first steps, whose losses are kept.
            warmup_s: the most that the warm-up may take.
            batch_times: a folder in which the loader's workers record the times of their batches.
        """
        self._progress("building", 0, 1)
        if "LOCAL_WORLD_SIZE" in os.environ:
            torch.set_num_threads(max(1, torch.get_num_threads() // int(os.environ["LOCAL_WORLD_SIZE"])))
        training = Training(Recipe.from_dict(recipe), self._workload, self._device, seed, on_loader=(
            functools.partial(loader.time_loader, folder=batch_times) if batch_times else _as_it_is
        ))  # fmt: skip
        self._harness = harness = Harness(training, progress=self._on_steps)
        first = harness.first_steps(loss_steps)
        view = observe_step(training, harness.first_graphs)
        proofs = verify(view, wanted(training.recipe))
        warm: Steps = harness.run(harness.procedure.warm_up(warmup_s))
        device.reset_peak(training.device)
        return Trained(
            recipe=training.recipe.to_dict(),
            startup_s=training.built_at - self._started,
            first=Block(**first.block()),
            warm=Block(**warm.block()),
            losses=losses(first.plain),
            mechanisms=[Mechanism(**proof) for proof in proofs],
            batch_bytes_per_sample=bytes_per_sample(view.batch),
            samples_per_step=training.samples_per_step,
            compiled=is_compiled(training.model),
            compile_counters=CompileCounters(**device.compile_counters()),
            batch_norm=any("BatchNorm" in type(part).__name__ for part in training.model.modules()),
            weights=getattr(self._workload, "weights", ""),
        )

    def block(self, samples: int, seconds: float = 0.0, settle: bool = True, queues: int = 1) -> Block:
        """Measures steps of at least this many samples; see `Procedure.block`."""
        return self._block(self._procedure.block(samples, seconds, settle, queues))

    def ceiling(self, samples: int) -> Block:
        """Measures steps on a batch that is already on the device."""
        return self._block(self._procedure.held(samples))

    def peak(self) -> Peak:
        """The peak memory since the warm-up."""
        recompiles = device.compile_counters()["graphs"] - self._harness.first_graphs
        return Peak(*device.peak_bytes(self._harness.device), recompiles)

    def communication(self, samples: int) -> Communication:
        """Measures what averaging gradients between the ranks costs."""
        ddp = distributed_model(self._harness.training.model)
        return Communication(**self._harness.run(self._procedure.communication(samples, ddp)))

    def memory(self) -> MemoryReport:
        """Accounts for the memory of a step."""
        return memory.measure(self._harness.training)

    def kernels(self) -> KernelReport:
        """Measures the device's roofs and the work of a step."""
        return kernels.measure(self._harness)

    def profile(self, **settings: Any) -> ProfileReport:
        """Records some steps with the profiler into a trace file; see `Procedure.profile`."""
        feed, pins = self._harness.training.feed, list[float]()
        self._harness.run(self._procedure.settle())
        feed.stamps.clear()
        with loader.timed_pinning(pins):
            report = self._harness.run(self._procedure.profile(**settings))
        start, *_, end = report["marks"]
        taken = [stamp for stamp in feed.stamps if start <= stamp[2] <= end]
        return ProfileReport(**{**report, "taken": taken, "pins": pins})

    def syncs(self, steps: int) -> SyncReport:
        """Finds copies and waits between host and device."""
        return syncs.report(self._harness.training, steps)

    def parity(self, recipe: dict[str, Any], exactness: str, seed: int, steps: int) -> ParityReport:
        """Compares a recipe with the plain program; `exactness` is `bitwise`, or anything for a tolerance."""
        self._progress("comparing losses and outputs", 0, 1)
        return parity.check(self._workload, Recipe.from_dict(recipe), self._device, exactness, seed, steps)

    def _facts(self) -> DeviceFacts:
        return DeviceFacts(**device.facts(self._device))

    @property
    def _procedure(self) -> Procedure:
        return self._harness.procedure

    def _block(self, job: Job) -> Block:
        steps: Steps = self._harness.run(job)
        return Block(**steps.block())

    def _on_steps(self, phase: str, done: int, total: int, step_s: Sequence[float]) -> None:
        self._progress(phase, done, total, step_s, self._harness.samples_per_step)

    def _progress(
        self, phase: str, done: int, total: int, step_s: Sequence[float] = (), samples_per_step: int = 0
    ) -> None:
        now = time.monotonic()
        if done == total or now - self._last_progress >= _PROGRESS_INTERVAL_S:
            self._last_progress = now
            recent = step_s[self._reported if len(step_s) > self._reported else 0 :]
            mean = sum(recent) / len(recent) if recent else None
            self._reported = 0 if done == total else len(step_s)
            event = messages.Progress(phase, done, total, mean, samples_per_step)
            self._connection.send_bytes(messages.encode(event))


def wanted(recipe: Recipe) -> dict[str, Any]:
    """The switches that must be seen in effect: without those that have none beside the others."""
    values = recipe.to_dict()
    idle = {
        name
        for name, switch in switches().items()
        if switch.idle_when and values[switch.idle_when[0]] == switch.idle_when[1]
    }
    if recipe.device_prefetch:
        idle.add("non_blocking")  # the prefetcher's own copies never block
    return {name: value for name, value in values.items() if name in READERS and name not in idle}


def _as_it_is(_: Any) -> None:
    """Leaves a loader alone."""
