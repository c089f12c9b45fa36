"""The inside of a measuring process: one training, and the questions that it answers."""

import os
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from perfkit import rules, workloads
from perfkit.old_train import Training
from perfkit.recipe import Recipe
from perfkit.results.run import Communication
from perfkit.worker import (
    collectives,
    device,
    kernels,
    loader,
    memory,
    messages,
    observe,
    parity,
    profiler,
    syncs,
)
from perfkit.worker.harness import Harness
from perfkit.worker.messages import Block, DeviceFacts, Peak, Trained
from perfkit.worker.reports import KernelReport, MemoryReport, ParityReport, ProfileReport, SyncReport

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
        training = Training(self._workload, Recipe.from_dict(recipe), self._device, seed)
        if batch_times:
            loader.time_loader(training.loader, batch_times)
        self._harness = harness = Harness(training, progress=self._progress)
        startup_s = time.time() - self._started
        first, losses = harness.first_steps(loss_steps)
        mechanisms, batch_bytes = harness.mechanisms()
        warm = harness.warm_up(warmup_s)
        harness.device.reset_peak()
        return Trained(
            recipe=training.recipe.to_dict(),
            startup_s=startup_s,
            first=first,
            warm=warm,
            losses=losses,
            mechanisms=mechanisms,
            batch_bytes_per_sample=batch_bytes,
            samples_per_step=harness.samples_per_step,
            compiled=observe.is_compiled(training.model),
            compile_counters=observe.compile_counters(),
            data_on_device=observe.is_resident(training.loader),
            batch_norm=any("BatchNorm" in type(part).__name__ for part in training.model.modules()),
            weights=getattr(self._workload, "weights", ""),
            wait_policy=os.environ.get("OMP_WAIT_POLICY", ""),
        )

    def block(self, samples: int, seconds: float = 0.0, settle: bool = True, queues: int = 1) -> Block:
        """Measures steps of at least this many samples, for at least some seconds.

        Args:
            samples: how many.
            seconds: how long, judged by the steps of the warm-up.
            settle: first use up what was prefetched while this process was idle.
            queues: with workers, on a CPU: at least this many times the batches that their queue holds; if 0,
                the queue is left as it is.
        """
        block = self._harness.block(samples, seconds, settle, queues)
        loader.wait_for_idle_loader()
        return block

    def ceiling(self, samples: int) -> Block:
        """Measures steps on a batch that is already on the device."""
        return self._harness.ceiling(samples)

    def peak(self) -> Peak:
        """The peak memory since the warm-up."""
        recompiles = observe.compile_counters().graphs - self._harness.first_graphs
        return Peak(*self._harness.device.peak(), recompiles)

    def communication(self, samples: int) -> Communication:
        """Measures what averaging gradients between the ranks costs."""
        return collectives.measure(self._harness, samples)

    def memory(self) -> MemoryReport:
        """Accounts for the memory of a step."""
        return memory.measure(self._harness)

    def kernels(self) -> KernelReport:
        """Measures the device's roofs and the work of a step."""
        return kernels.measure(self._harness)

    def profile(self, **command: Any) -> ProfileReport:
        """Records some steps with the profiler into a trace file."""
        return profiler.profile(self._harness, **command)

    def syncs(self, steps: int) -> SyncReport:
        """Finds copies and waits between host and device."""
        return syncs.report(self._harness, steps)

    def parity(self, recipe: dict[str, Any], exactness: str, seed: int, steps: int) -> ParityReport:
        """Compares a recipe with the plain program; `exactness` is `bitwise`, or anything for a tolerance."""
        self._progress("comparing losses and outputs", 0, 1)
        return parity.check(self._workload, Recipe.from_dict(recipe), self._device, exactness, seed, steps)

    def _facts(self) -> DeviceFacts:
        return DeviceFacts(**device.facts(self._device))

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
