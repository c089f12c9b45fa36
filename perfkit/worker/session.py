"""The main loop of a measuring process: one training, and the questions that it answers."""

import math
import sys
import time
from collections.abc import Generator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from perfkit import lookup, rules, workloads
from perfkit.errors import RunFailed
from perfkit.process import Answer
from perfkit.recipe import Recipe
from perfkit.worker import checks
from perfkit.worker.messages import Description, TrainingReport
from perfkit.worker.procedure import MeasuredStep, Procedure, Procedures, drive
from perfkit.worker.training import Training, loss_values

UNTIMED_FIRST = 3  # steps on a cached batch that do not count: some batches may have been fetched ahead


def serve(connection: Connection) -> None:
    """Answers questions until the parent closes the connection."""
    session = WorkerSession(connection)
    while True:
        try:
            question = connection.recv()
        except EOFError:
            return
        answer = session.answer(question.name, question.arguments)
        if isinstance(answer, Generator):
            answer = drive(answer, lambda: session.subject.step())
        connection.send(Answer(answer, question.number))


class WorkerSession(Procedures):
    """One training of perfkit's own program, and the questions about it."""

    workload: Any
    device: torch.device
    subject: Training

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.send)
        self._startup_s = getattr(sys.modules.get("perfkit.worker.preload"), "IMPORT_S", 0.0)
        """The start-up time so far, including the imports that a zygote did for this process."""

    def call(self, reference: str, arguments: Sequence[Any]) -> Any:
        return lookup.load(reference)(*arguments)

    def describe(
        self, workload: str, preset: str, options: dict[str, Any], device: str, code: str | None = None
    ) -> Description:
        """Loads a workload; if `code` is given, the workload's code must have this digest."""
        began = time.time()
        arguments = workloads.options_for(workloads.find(workload), preset, options)
        self.workload = workloads.load(workload, arguments)
        workloads.require_unchanged(workload, code)
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.device.index is not None:
            torch.accelerator.set_device_index(self.device.index)  # without this, GPU 0 gets a context, too
        offers = sorted(rules.offers(self.workload))
        convolves = workloads.convolves(self.workload)
        self._startup_s += time.time() - began
        return Description(arguments, offers, checks.facts(self.device), convolves)

    def train(self, recipe: Recipe, seed: int, loss_steps: int, warmup_s: float) -> Procedure:
        """Builds a training, takes its first steps, checks its switches and warms up; reports on it.

        The losses of the first `loss_steps` steps are stored. The warm-up takes at most `warmup_s`.
        """
        self.report("building")
        began = time.time()
        training = Training(recipe, self.workload, self.device, seed)
        self.subject = training
        self.first_graphs = checks.compile_counters().graphs
        first = yield from self.take(loss_steps, "first steps", early=[training.first])
        _, view = training.observed_step()
        proofs = checks.verify(view, recipe.to_dict())
        sample_bytes = checks.bytes_per_sample(view.batch)
        del view  # frees the batch and what was computed from it
        warm = yield from self.warm_up(warmup_s)
        return TrainingReport(
            recipe=recipe.to_dict(),
            startup_s=self._startup_s + training.built_at - began,
            warmup=first.timed() + warm.timed(),
            losses=loss_values(first.steps),
            mechanisms=proofs,
            batch_bytes_per_sample=sample_bytes,
            samples_per_step=training.samples_per_step,
            compile_counters=checks.compile_counters(),
        )

    def cached_batch(self, samples: int, seconds: float) -> Procedure:
        """A slice on one batch that is already on the device, without the loader."""
        with self.subject.on_cached_batch():
            yield from self.take(UNTIMED_FIRST, "cached batch")
            return (yield from self.take(self.steps_for(samples, seconds), "cached batch")).timed()

    def require_training(self, steps: Sequence[MeasuredStep]) -> None:
        for value in loss_values(steps):
            if not math.isfinite(value):
                remedy = "Lower the learning rate, or switch amp to bf16 (fp16 overflows without scaling)"
                raise RunFailed(f"the loss became {value}", remedy)
