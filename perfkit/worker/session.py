"""The inside of a measuring process: one training, and the questions that it answers."""

import math
import statistics
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from perfkit import registry, rules, workloads
from perfkit.errors import RunFailed
from perfkit.process import Answer
from perfkit.recipe import Recipe
from perfkit.results.schema import Communication
from perfkit.worker import checks
from perfkit.worker.messages import Description, Trained
from perfkit.worker.procedure import Job, Procedures, Step, drive
from perfkit.worker.timeline import timeline
from perfkit.worker.training import Training, losses

ROUNDS = 5
SMALL = 1 << 12
"""Bytes of the collective whose time is the latency."""


def serve(connection: Connection) -> None:
    """Answers questions until the parent has no more."""
    session = Session(connection)
    while True:
        try:
            asked = connection.recv()
        except EOFError:
            return
        answer = session.answer(asked.name, asked.arguments)
        if isinstance(answer, Generator):
            answer = drive(answer, lambda: session.subject.step())
        connection.send(Answer(answer, asked.number))


class Session(Procedures):
    """One training of perfkit's own program, and what can be asked of it."""

    workload: Any
    device: torch.device
    subject: Training

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.send)
        self._startup_s = getattr(sys.modules.get("perfkit.worker.preload"), "IMPORT_S", 0.0)
        """What a process that imports and loads everything itself has spent until now."""

    def call(self, place: str, arguments: Sequence[Any]) -> Any:
        """The result of a function at `module:name`."""
        return registry.load(place)(*arguments)

    def describe(self, workload: str, preset: str, options: dict[str, Any], device: str) -> Description:
        """Loads a workload."""
        began = time.time()
        complete = workloads.options_for(workloads.find(workload), preset, options)
        self.workload, self.device = workloads.load(workload, complete), torch.device(device)
        if self.device.type == "cuda" and self.device.index is not None:
            torch.accelerator.set_device_index(self.device.index)  # else a context opens on GPU 0 as well
        offers, convolves = sorted(rules.offers(self.workload)), workloads.convolves(self.workload)
        self._startup_s += time.time() - began
        return Description(complete, offers, checks.facts(self.device), convolves)

    def train(self, recipe: Recipe, seed: int, loss_steps: int, warmup_s: float) -> Job:
        """`Trained`: builds a training, takes its first steps, checks its switches and warms up.

        The losses of `loss_steps` are kept; the warm-up takes `warmup_s` at most.
        """
        self.report("building")
        began = time.time()
        if recipe.ranks > 1:
            torch.set_num_threads(max(1, torch.get_num_threads() // recipe.ranks))
        self.subject = training = Training(recipe, self.workload, self.device, seed)
        self.first_graphs = checks.compile_counters().graphs
        first = yield from self.take(loss_steps, "first steps", early=[training.first])
        training.observed_step()
        proofs = checks.verify(training, recipe.to_dict())
        sample_bytes = checks.bytes_per_sample(training.batch)
        training.batch = training.inputs = training.outputs = None  # their memory is not kept
        warm = yield from self.warm_up(warmup_s)
        return Trained(
            recipe=recipe.to_dict(),
            startup_s=self._startup_s + training.built_at - began,
            warmup=first.block() + warm.block(),
            losses=losses(first.plain),
            mechanisms=proofs,
            batch_bytes_per_sample=sample_bytes,
            samples_per_step=training.samples_per_step,
            compile_counters=checks.compile_counters(),
        )

    def check(self, steps: Sequence[Step]) -> None:
        for value in losses(steps):
            if not math.isfinite(value):
                remedy = "Lower the learning rate, or switch amp to bf16 (fp16 overflows without scaling)"
                raise RunFailed(f"the loss became {value}", remedy)

    def communication(self, samples: int) -> Job:
        """What averaging gradients between the ranks costs: steps with it and without, a collective alone.

        The exposed time is the difference of the two steps, which needs no profiler and holds for gloo and
        NCCL alike; the rest of the collective's own time was hidden behind the computation. Steps without it
        let the weights of the ranks drift apart; they get those of rank 0 again.
        """
        recipe, model = self.subject.recipe, checks.distributed_model(self.subject.model)
        assert model
        with_it, without, steps = list[float](), list[float](), self.steps_for(samples)
        for _ in range(ROUNDS):
            with_it.append((yield from self.take(steps, "ranks")).mean_s)
            with without_averaging():
                without.append((yield from self.take(steps, "ranks")).mean_s)
        for value in model.state_dict().values():
            distributed.broadcast(value, 0)
        gradients = sum(p.nbytes for p in model.parameters() if p.requires_grad)
        compute_s = statistics.median(without)
        rank_compute_s: list[Any] = [None] * recipe.ranks
        distributed.all_gather_object(rank_compute_s, compute_s)
        return Communication(
            bytes_per_step=gradients,
            step_s=statistics.median(with_it),
            compute_s=compute_s,
            alone_s=_reduce_s(gradients, self.subject.device),
            rank_compute_s=rank_compute_s,
            start_s=_reduce_s(SMALL, self.subject.device),
        )


def without_averaging() -> AbstractContextManager[Any]:
    """Keeps gradients on their rank, also where the program itself says when they are averaged."""
    never = property(lambda model: False, lambda model, value: None)
    return mock.patch.object(DistributedDataParallel, "require_backward_grad_sync", never, create=True)


def _reduce_s(size: int, device: torch.device) -> float:
    """Median seconds of a collective of so many bytes, with nothing else running, by the device's clock."""
    tensor, ends = torch.zeros(size // 4, device=device), timeline(device)
    for _ in range(1 + ROUNDS):
        distributed.all_reduce(tensor)
        ends.mark()
    return statistics.median(ends.step_s()[1:])  # the first one waits for the other ranks
