"""Measures one training in its own process: warm-up, blocks, clocks. It returns raw values.

The clock is an argument, so that a test can control the time.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import distributed

from perfkit.errors import RunFailed
from perfkit.old_train import Training
from perfkit.parts import mean_over_ranks
from perfkit.results import stats
from perfkit.results.run import Mechanism
from perfkit.worker import checks, observe
from perfkit.worker.device import peak_bytes, reset_peak
from perfkit.worker.loader import Source
from perfkit.worker.messages import Block

Clock = Callable[[], float]
Progress = Callable[..., None]
"""Called with the phase, and what is done of a total; in a block also with its steps so far, in seconds, and
the samples of a step."""

_MIN_WARMUP_STEPS = 3
_MAX_WARMUP_STEPS = 200
_WAITS = 0.1
"""The queue counts as empty once a step waits for more than this fraction of its time."""
_MAX_SETTLING = 3
"""In multiples of the prefetched batches: the most steps before a loader's pace counts as steady, and by
which a block is extended until its queue is as full as at the start."""


class Device:
    """What is measured on a device itself: when it has finished, its own clock, its memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._marks: list[torch.cuda.Event] = []

    def synchronize(self) -> None:
        """Waits until the device has finished its work; a CPU always has."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    def mark(self) -> None:
        """Records the end of a step on the device's own timeline (CUDA only)."""
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)

    def take_marked(self) -> list[float]:
        """Seconds between successive marks, by the device's clock; call after `synchronize`."""
        marks, self._marks = self._marks, []
        return [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(marks)]

    def reset_peak(self) -> None:
        """Starts a new memory peak."""
        reset_peak(self.device)

    def peak(self) -> tuple[int | None, int | None]:
        """Peak bytes since the last reset: allocated and reserved on CUDA; this process on a CPU."""
        return peak_bytes(self.device)


class Harness:
    """Runs a `Training` in blocks and records their times."""

    def __init__(
        self,
        training: Training,
        clock: Clock = time.perf_counter,
        device: Device | None = None,
        progress: Progress = lambda *about: None,
    ) -> None:
        self.training = training
        self.clock = clock
        self.device = device or Device(training.device)
        self.progress = progress
        self.source = Source(training.loader, clock)
        self.batches = training.batches(self.source)
        recipe = training.recipe
        self.samples_per_step = recipe.batch_size * recipe.accumulation * recipe.ranks
        """Of all ranks."""
        self._prefetched = recipe.workers * recipe.prefetch_factor
        """Batches that the loader's queue holds."""
        self._prefetched_steps = math.ceil(self._prefetched / recipe.accumulation)
        self.first_graphs = 0
        self._step_s = math.inf
        """A step of the end of the warm-up."""
        self._held: Any = None

    def first_steps(self, count: int) -> tuple[Block, list[float]]:
        """The first steps of the training, whose losses are those of the exported script.

        Raises:
            RunFailed: a loss is not finite.
        """
        block, losses = self._run(self.batches, 1, "first step")
        self.first_graphs = observe.compile_counters().graphs
        more, others = self._run(self.batches, count - 1, "first steps")
        return block + more, losses + others

    def warm_up(self, seconds: float) -> Block:
        """Steps until their time is steady, or until the budget is spent."""
        workers = self.training.recipe.workers
        window = max(_MIN_WARMUP_STEPS, workers)
        warm, done = Block(0, 0.0), False
        while not self._agreed(done):
            block, _ = self._run(self.batches, window, "warm-up")
            warm += block
            spent = warm.seconds >= seconds or len(warm.step_s) >= _MAX_WARMUP_STEPS
            done = spent or stats.steady(np.array(warm.step_s), window)
        self._step_s = self._of_rank_0(float(np.median(warm.step_s[-window:])))
        return warm

    def _of_rank_0(self, value: float) -> float:
        """The value of rank 0: after different numbers of steps, ranks would wait for ever."""
        if self.training.recipe.ranks == 1:
            return value
        shared = torch.tensor([value], device=self.training.device)
        distributed.broadcast(shared, 0)
        return float(shared.item())

    def _agreed(self, decision: bool) -> bool:
        return bool(self._of_rank_0(float(decision)))

    def block(self, samples: int, seconds: float = 0.0, settle: bool = False, queues: int = 1) -> Block:
        """Measures one block of at least this many samples, for at least some seconds.

        On a CPU it continues, within limits, until the loader's queue is as full as at the start. Otherwise
        it would contain the steps on some batches without the work of loading as many, which competes with
        the model for the cores.

        Args:
            samples: how many, rounded up to whole steps and, with workers, to one batch of each.
            seconds: how long, judged by the steps of the warm-up.
            settle: this process was idle: first use up what was prefetched meanwhile.
            queues: with workers, on a CPU, at least this many times the batches that their queue holds;
                if 0, the queue is left as it is. With an accelerator it is empty at the start, and the
                loader's pace shows at once.
        """
        on_cpu = self.training.device.type == "cpu"
        if settle and (queues or not on_cpu):
            self.settle()
        before, steps = self.source.ready(), self.steps_for(samples, seconds, queues if on_cpu else 0)
        most = steps + (_MAX_SETTLING * self._prefetched_steps if on_cpu and queues else 0)
        surplus: list[int] = []

        def is_as_full() -> bool:
            surplus.append(self.source.ready() - before)
            return surplus[-1] * surplus[0] <= 0

        block, _ = self._run(self.batches, steps, "measuring", most, is_as_full)
        return block

    def steps_for(self, samples: int, seconds: float = 0.0, queues: int = 1) -> int:
        """Steps of a block: a multiple of the number of workers, which deliver one batch each per round."""
        recipe = self.training.recipe
        lasting = math.ceil(seconds / self._step_s)
        steps = max(self._whole_steps(samples), lasting, queues * self._prefetched_steps)
        return math.ceil(steps / recipe.workers) * recipe.workers if recipe.workers > 1 else steps

    def _whole_steps(self, samples: int) -> int:
        return max(1, math.ceil(samples / self.samples_per_step))

    def settle(self) -> None:
        """Uses up what was prefetched while this process was idle, until it trains as in a long run.

        With an accelerator those batches are dropped. On a CPU they are trained on: after dropping them, the
        workers would refill the queue at full speed on the model's cores, which they do not in a steady run.
        Then steps are taken until the queue is empty and they wait, or until it is as full as workers that
        keep up leave it: batches left over from the pause would make a slow loader look fast.
        """
        recipe = self.training.recipe
        if self.training.device.type != "cpu":
            for _ in range(self._prefetched):
                next(self.source)
            self._run(self.batches, 2, "settling")
            return
        self._run(self.batches, self._prefetched_steps, "settling")
        for _ in range(_MAX_SETTLING * self._prefetched_steps + 1):
            block, _ = self._run(self.batches, 1, "settling")
            waits = block.data_wait_s[0] > _WAITS * block.step_s[0]
            if self._agreed(waits or self.source.ready() > self._prefetched - recipe.workers):
                break

    def ceiling(self, samples: int) -> Block:
        """Measures steps on one batch that is already on the device, without a loader."""
        if self._held is None:
            batch = next(self.source)
            self._held = tuple(part.to(self.training.device) for part in batch)
        batches = self.training.batches(itertools.repeat(self._held))
        block, _ = self._run(batches, self._whole_steps(samples), "ceiling")
        return block

    def mechanisms(self) -> tuple[list[Mechanism], int]:
        """The check of every switch, and the bytes of a sample in a batch of the loader."""
        step = observe.observe_step(self.training, self.source, self.first_graphs)
        return checks.verify(step), checks.bytes_per_sample(step.batch)

    def _run(
        self, batches: Any, steps: int, phase: str, most: int = 0, done: Callable[[], bool] = lambda: True
    ) -> tuple[Block, list[float]]:
        """Runs `steps` steps, then continues until `done()` or `most` steps."""
        step_s, data_wait_s, losses = list[float](), list[float](), list[torch.Tensor]()
        self.device.synchronize()
        self.source.take_waited()
        start = before = self.clock()
        self.device.mark()
        while len(losses) < steps or (len(losses) < most and not self._agreed(done())):
            losses.append(self.training.step(batches))
            self.device.mark()
            now = self.clock()
            step_s.append(now - before)
            data_wait_s.append(self.source.take_waited())
            before = now
            self.progress(phase, len(losses), max(steps, len(losses)), step_s, self.samples_per_step)
        self.device.synchronize()
        seconds, samples = self.clock() - start, len(losses) * self.samples_per_step
        block = Block(samples, seconds, step_s, data_wait_s, self.device.take_marked())
        return block, _finite(losses, self.training.recipe.ranks)


def _finite(losses: list[torch.Tensor], ranks: int) -> list[float]:
    """The losses as numbers, averaged over the ranks; all must be finite. A simulated GPU has none."""
    if not losses or losses[0].is_meta:
        return []
    values: list[float] = (mean_over_ranks(losses) if ranks > 1 else torch.stack(losses).float()).tolist()
    for step, value in enumerate(values):
        if not math.isfinite(value):
            raise RunFailed(
                f"the loss became {value} ({step + 1} steps into a block)",
                "Lower the learning rate, or switch amp to bf16 (fp16 overflows without scaling)",
            )
    return values
