"""The inside of a measuring process: one training, and the questions that it answers."""

import os
import sys
import time
from collections.abc import Generator
from multiprocessing.connection import Connection
from typing import Any

import torch

from perfkit import rules, workloads
from perfkit.recipe import Recipe, switches
from perfkit.worker import device, kernels, memory, messages, parity
from perfkit.worker.checks import bytes_per_sample, verify
from perfkit.worker.device import facts
from perfkit.worker.messages import Progress, Trained
from perfkit.worker.procedure import CommonQuestions, Job, Procedure, drive
from perfkit.worker.training import Training, distributed_model, losses, observe_step


def serve(connection: Connection) -> None:
    """Answers questions until the parent has no more."""
    session = Session(connection)
    while True:
        try:
            question = messages.decode_question(connection.recv_bytes())
        except EOFError:
            return
        answer = getattr(session, question.name)(**question.arguments)
        if isinstance(answer, Generator):
            answer = drive(answer, lambda: session._training.step())
        connection.send_bytes(messages.encode(messages.Answer(answer)))


class Session(CommonQuestions):
    """One training of perfkit's own program, and what can be asked of it."""

    _workload: Any
    _device: torch.device
    _training: Training

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._started = time.time() - getattr(sys.modules.get("perfkit.worker.preload"), "IMPORT_S", 0.0)
        """When a process that imports everything itself would have started."""

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
            facts(self._device),
            workloads.convolves(self._workload),
        )

    def train(self, recipe: dict[str, Any], seed: int, loss_steps: int, warmup_s: float) -> Job:
        """`Trained`: builds a training, takes its first steps, checks its switches and warms up.

        Args:
            recipe: every switch.
            seed: of weights and order.
            loss_steps: first steps, whose losses are kept.
            warmup_s: the most that the warm-up may take.
        """
        self._report(Progress("building", 0, 1))
        if "LOCAL_WORLD_SIZE" in os.environ:
            torch.set_num_threads(max(1, torch.get_num_threads() // int(os.environ["LOCAL_WORLD_SIZE"])))
        chosen = Recipe.from_dict(recipe)
        training = Training(chosen, self._workload, self._device, seed)
        self._training, self._procedure = training, Procedure(training, self._report)
        self._first_graphs = device.compile_counters().graphs
        first = yield from self._procedure.first_steps([training.first], loss_steps)
        view = observe_step(training, self._first_graphs)
        proofs = verify(view, wanted(chosen))
        warm = yield from self._procedure.warm_up(warmup_s)
        device.reset_peak(training.device)
        return Trained(
            recipe=recipe,
            startup_s=training.built_at - self._started,
            first=first.block(),
            warm=warm.block(),
            losses=losses(first.plain),
            mechanisms=proofs,
            batch_bytes_per_sample=bytes_per_sample(view.batch),
            samples_per_step=training.samples_per_step,
            compile_counters=device.compile_counters(),
            batch_norm=any("BatchNorm" in type(part).__name__ for part in training.model.modules()),
        )

    def communication(self, samples: int) -> Job:
        """Measures what averaging gradients between the ranks costs."""
        recipe, ddp = self._training.recipe, distributed_model(self._training.model)
        times = 1 if recipe.no_sync else recipe.accumulation
        return self._procedure.communication(samples, ddp, times)

    def memory(self) -> messages.MemoryReport:
        """Accounts for the memory of a step."""
        return memory.measure(self._training)

    def kernels(self) -> Job:
        """Measures the device's roofs and the work of a step."""
        step_s = (yield from self._procedure.take(8, "measuring")).mean_s
        return kernels.measure(self._training, step_s)

    def profile(self, **settings: Any) -> Job:
        yield from self._procedure.settle()
        return (yield from super().profile(**settings))

    def parity(self, recipe: dict[str, Any], exactness: str, seed: int, steps: int) -> messages.ParityReport:
        """Compares a recipe with the plain program; see `parity.check`."""
        self._report(Progress("comparing losses and outputs", 0, 1))
        return parity.check(self._workload, Recipe.from_dict(recipe), self._device, exactness, seed, steps)

    def _report(self, progress: Progress) -> None:
        self._connection.send_bytes(messages.encode(progress))


def wanted(recipe: Recipe) -> dict[str, Any]:
    """The switches that must be seen in effect: without those that have none beside the others."""
    values = recipe.to_dict()
    for name, switch in switches().items():
        if switch.idle_when and getattr(recipe, switch.idle_when[0]) == switch.idle_when[1]:
            del values[name]
    if recipe.device_prefetch:
        del values["non_blocking"]  # the prefetcher's own copies never block
    return values
