"""Measuring one training, in its own process: warm-up, blocks, clocks. Raw numbers come out.

Runs in the child. The clock is an argument, so that a test can say what time it is.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import torch
from torch import distributed

from perfkit.errors import RunFailed
from perfkit.program.train import Training, epochs, mean_over_ranks
from perfkit.results import stats
from perfkit.results.run import Mechanism
from perfkit.worker import checks, observe
from perfkit.worker.messages import Block

Clock = Callable[[], float]
Progress = Callable[[str, int, int], None]

_MIN_WARMUP_STEPS = 3
_MAX_WARMUP_STEPS = 200
_WAITS = 0.1
"""From this share of a step spent waiting on, the loader's queue counts as empty."""
_MAX_SETTLING = 3
"""So many times the prefetched batches are trained on at most before a loader's pace counts as steady, and
beyond a block's own steps before it ends with a queue that is not as full as at its start."""


class Source:
    """Host batches without end; knows how long each `next` took.

    Everything that reads ahead (a device prefetcher, say) reads from here, so a step's wait is the waiting
    that happened during it.
    """

    def __init__(self, loader: Any, clock: Clock) -> None:
        self._batches = epochs(loader)
        self._clock = clock
        self._waited = 0.0
        self.stamps: list[tuple[int, float, float]] = []
        """Of each batch taken: its number from 0, asked for at, received at."""
        self._taken = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        start = self._clock()
        batch = next(self._batches)
        end = self._clock()
        self._waited += end - start
        self.stamps.append((self._taken, start, end))
        self._taken += 1
        return batch

    @property
    def iterator(self) -> Any:
        """The loader's own iterator, where worker processes hang; None before the first batch."""
        return getattr(self._batches, "gi_yieldfrom", None)

    def ready(self) -> int:
        """Batches that lie ready in the queue of the loader's workers; 0 where that cannot be known."""
        with contextlib.suppress(AttributeError, NotImplementedError):  # macOS cannot tell
            return int(self.iterator._data_queue.qsize())
        return 0

    def take_waited(self) -> float:
        """Seconds waited since the last call."""
        waited, self._waited = self._waited, 0.0
        return waited


class Device:
    """What the harness asks of a device: to finish, its own clock, its memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._marks: list[torch.cuda.Event] = []

    def synchronize(self) -> None:
        """Waits until the device has nothing left to do; a CPU never has."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    def mark(self) -> None:
        """Notes a step end on the device's own time line (CUDA only)."""
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
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            try:
                with open("/proc/self/clear_refs", "w") as file:
                    file.write("5")
            except OSError:
                pass  # not Linux, or not allowed: the peak is then that of the whole process

    def peak(self) -> tuple[int | None, int | None]:
        """Peak bytes since the last reset: allocated and reserved on CUDA; this process on a CPU."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device), torch.cuda.max_memory_reserved(self.device)
        if self.device.type == "mps":
            return torch.mps.current_allocated_memory(), None
        return _peak_rss(), None


def _peak_rss() -> int | None:
    try:
        with open("/proc/self/status") as file:
            line = next(line for line in file if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        pass
    try:
        import resource
        import sys
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class Harness:
    """Drives a `Training` in blocks and writes down what the clock says."""

    def __init__(
        self,
        training: Training,
        clock: Clock = time.perf_counter,
        device: Device | None = None,
        progress: Progress = lambda phase, done, total: None,
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
        self.first_graphs = 0
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
        taken, done = Block(0, 0.0), False
        while not self._agreed(done):
            block, _ = self._run(self.batches, window, "warm-up")
            taken += block
            spent = taken.seconds >= seconds or len(taken.step_s) >= _MAX_WARMUP_STEPS
            done = spent or stats.steady(np.array(taken.step_s), window)
        return taken

    def _agreed(self, decision: bool) -> bool:
        """What rank 0 has decided: ranks that took different numbers of steps would wait for ever."""
        if self.training.recipe.ranks == 1:
            return decision
        said = torch.tensor([float(decision)], device=self.training.device)
        distributed.broadcast(said, 0)
        return bool(said.item())

    def block(self, samples: int, settle: bool = False, queues: int = 1) -> Block:
        """One measured block of at least this many samples.

        On a CPU it goes on, within limits, until the loader's queue is as full as when it started. Else it
        would hold the steps of some batches but not the making of as many, which takes the model's cores.

        Args:
            samples: how many, rounded up to whole steps and, with workers, to one batch of each.
            settle: this side was idle: drop what was prefetched meanwhile, take a step, then measure.
            queues: with workers, at least so many times the batches that their queue holds.
        """
        if settle:
            self.settle()
        before, steps = self.source.ready(), self.steps_for(samples, queues)
        most = steps + (_MAX_SETTLING * self._prefetched_steps if self.training.device.type == "cpu" else 0)
        beyond: list[int] = []

        def crossed() -> bool:
            beyond.append(self.source.ready() - before)
            return beyond[-1] * beyond[0] <= 0

        block, _ = self._run(self.batches, steps, "measuring", most, crossed)
        return block

    def steps_for(self, samples: int, queues: int = 1) -> int:
        """Steps of a block: whole ones, and a multiple of the workers, as these deliver in turns."""
        recipe = self.training.recipe
        steps = max(self._whole_steps(samples), queues * self._prefetched_steps)
        return math.ceil(steps / recipe.workers) * recipe.workers if recipe.workers > 1 else steps

    def _whole_steps(self, samples: int) -> int:
        return max(1, math.ceil(samples / self.samples_per_step))

    @property
    def _prefetched(self) -> int:
        """Batches that the loader's queue holds."""
        return self.training.recipe.workers * self.training.recipe.prefetch_factor

    @property
    def _prefetched_steps(self) -> int:
        return math.ceil(self._prefetched / self.training.recipe.accumulation)

    def settle(self) -> None:
        """Gets rid of what was prefetched while this side was idle, and back to how it trains without end.

        Beside an accelerator those batches are dropped. On a CPU they are trained on: dropping would leave
        workers that refill the queue at full speed on the model's cores, which in a steady run they do not.
        Then steps are taken until the queue is empty and they wait, or until it is as full again as workers
        that keep up leave it: batches that still lie there would make a slow loader look fast.
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
        """The same steps on one batch that is already on the device, without a loader."""
        if self._held is None:
            batch = next(self.source)
            self._held = tuple(part.to(self.training.device) for part in batch)
        batches = self.training.batches(itertools.repeat(self._held))
        block, _ = self._run(batches, self._whole_steps(samples), "ceiling")
        return block

    def count_samples(self, steps: int) -> int:
        """Learns a step's samples from the first `steps`, where no recipe tells; returns a sample's bytes."""
        batches = max(1, len(self.source.stamps) // steps)
        batch = next(self.source)
        self.samples_per_step = len(batch[0]) * batches
        return checks.bytes_per_sample(batch)

    def mechanisms(self) -> tuple[list[Mechanism], int]:
        """The proof of every switch, and the bytes a sample has in a batch of the loader."""
        step = observe.observe_step(
            self.training, self.source, self.source.iterator, first_graphs=self.first_graphs
        )
        return checks.verify(step), checks.bytes_per_sample(step.batch)

    def _run(
        self, batches: Any, steps: int, phase: str, most: int = 0, done: Callable[[], bool] = lambda: True
    ) -> tuple[Block, list[float]]:
        """So many steps, and then up to `most` of them until `done`."""
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
            self.progress(phase, len(losses), max(steps, len(losses)))
        self.device.synchronize()
        seconds, samples = self.clock() - start, len(losses) * self.samples_per_step
        block = Block(samples, seconds, step_s, data_wait_s, self.device.take_marked())
        return block, _finite(losses, self.training.recipe.ranks)


def wait_for_idle_loader(limit_s: float = 2.0, period_s: float = 0.04) -> None:
    """Waits until this process's children compute nothing, for at most `limit_s`.

    Loader workers go on after a block until their queue is full. On a CPU they would take cores from what is
    measured next: the ceiling, or the block of another process.
    """
    children = psutil.Process().children(recursive=True)

    def cpu_s() -> float:
        total = 0.0
        for child in children:
            with contextlib.suppress(psutil.Error):
                times = child.cpu_times()
                total += times.user + times.system
        return total

    until, spent = time.monotonic() + limit_s, cpu_s()
    while children and time.monotonic() < until:
        time.sleep(period_s)
        spent, before = cpu_s(), spent
        if spent <= before:
            break


def _finite(losses: list[torch.Tensor], ranks: int) -> list[float]:
    """The losses as numbers, means over the ranks; all must be finite."""
    if not losses:
        return []
    values: list[float] = (mean_over_ranks(losses) if ranks > 1 else torch.stack(losses).float()).tolist()
    for step, value in enumerate(values):
        if not math.isfinite(value):
            raise RunFailed(
                f"the loss became {value} ({step + 1} steps into a block)",
                "Lower the learning rate, or switch amp to bf16 (fp16 overflows without scaling)",
            )
    return values
