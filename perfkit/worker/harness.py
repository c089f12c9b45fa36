"""Measures the training program in its own process: takes its steps, and knows what a procedure must know.

The clock is an argument, so that a test can control the time.
"""

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from perfkit.errors import RunFailed
from perfkit.ranks import mean_over_ranks
from perfkit.worker.device import compile_counters
from perfkit.worker.procedure import Job, Procedure, Steps, drive, world
from perfkit.worker.training import Training

Progress = Callable[[str, int, int, Sequence[float]], None]
"""Called with the phase, what is done of a total, and the seconds of the steps so far."""


@dataclass(frozen=True)
class Step:
    """One optimizer step."""

    seconds: float
    waited: float
    samples: int
    loss: torch.Tensor
    marks: frozenset[str] = frozenset()


class Harness:
    """Pulls the steps of a training.

    Args:
        training: not started yet.
        clock: gives seconds.
        progress: told of each step.
    """

    def __init__(
        self,
        training: Training,
        clock: Callable[[], float] = time.perf_counter,
        progress: Progress = lambda phase, done, total, step_s: None,
    ) -> None:
        self.training = training
        self.first_graphs = 0
        """Graphs that torch.compile had made after the first step."""
        recipe = training.recipe
        self.samples_per_step = training.samples_per_step
        self.batches_per_step = float(recipe.accumulation)
        self.workers = recipe.workers
        self.prefetched = recipe.workers * recipe.prefetch_factor
        self._clock = clock
        self.procedure = Procedure(self, progress, clock)

    # ------------------------------------------------------------ what a procedure asks

    @property
    def device(self) -> torch.device:
        """Where it trains."""
        return self.training.device

    @property
    def iterator(self) -> Any:
        """The loader's iterator."""
        return self.training.iterator

    def hold(self) -> AbstractContextManager[None]:
        """Trains on one batch that is on the device."""
        return self.training.hold()

    def phases(self) -> AbstractContextManager[None]:
        """Names the wait for a batch; the program names the other parts itself."""
        return self.training.phases(lambda name: contextlib.nullcontext())

    def note(self, text: str) -> None:
        """The program's steps have nothing else in them."""

    def check(self, steps: Sequence[Step]) -> None:
        """Requires losses that are finite.

        Raises:
            RunFailed: a loss is not.
        """
        for number, value in enumerate(losses(steps), 1):
            if not math.isfinite(value):
                raise RunFailed(
                    f"the loss became {value} ({number} steps into a block)",
                    "Lower the learning rate, or switch amp to bf16 (fp16 overflows without scaling)",
                )

    # ------------------------------------------------------------ measuring

    def run(self, job: Job) -> Any:
        """The answer of a procedure."""
        return drive(job, self.step)

    def step(self) -> Step:
        """Takes one step."""
        start = self._clock()
        loss = self.training.step()
        seconds = self._clock() - start
        return Step(seconds, self.training.feed.take_waited(), self.samples_per_step, loss)

    def first_steps(self, count: int) -> Steps:
        """The first steps of the training, whose losses are those of the exported script."""
        first: Steps = self.run(self.procedure.take(1, "first step"))
        self.first_graphs = compile_counters()["graphs"]
        more: Steps = self.run(self.procedure.take(count - 1, "first steps"))
        return first + more


def losses(steps: Sequence[Step]) -> list[float]:
    """The losses of steps as numbers, averaged over the ranks."""
    if not steps:
        return []
    stacked = torch.stack([step.loss for step in steps]).float()
    values: list[float] = (mean_over_ranks(stacked) if world() > 1 else stacked).tolist()
    return values
