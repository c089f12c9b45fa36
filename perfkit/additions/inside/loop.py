"""Observes a loop in a cell with `%%watch`, in its own process, without changing any setting."""

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.optim import optimizer
from torch.utils.data import dataloader

from perfkit.additions.shared.tensors import samples_of
from perfkit.results import stats
from perfkit.show import units
from perfkit.show.document import Content, Notice, Table

_NOTABLE = 0.2  # of the steps: a longer wait gets a hint
_FIRST = 2  # steps that the figures leave out if there are more: caches, compilation, starting workers


@dataclass
class LoopStep:
    """From one step of the first optimizer to its next step; the first begins with the first batch."""

    seconds: float = 0.0
    waited: float = 0.0  # seconds of it spent waiting for batches
    samples: int = 0
    evaluated: bool = False  # whether there was an evaluation in it, whose batches do not count
    on_device: bool = False  # whether `seconds` are the device's, which may work while the host waits


class _Batches:
    """The batches that were fetched with gradients enabled since the last step.

    The batches of a data set are for training if it was read in the first step, or if it had the last batch
    before any other step. All others are for an evaluation.
    """

    def __init__(self) -> None:
        self.fetched: list[tuple[int, float, int]] = []  # the data set, the wait for the batch, its samples
        self._trained_on = set[int]()

    def count(self, step: LoopStep, is_first: bool) -> None:
        """Assigns the batches to the step that has ended."""
        sure = self.fetched if is_first else self.fetched[-1:]
        self._trained_on.update(data_set for data_set, *_ in sure)
        for data_set, waited, samples in self.fetched:
            if data_set in self._trained_on:
                step.waited += waited
                step.samples += samples
            else:
                step.evaluated = True
        self.fetched.clear()


class _Observer:
    """What a loop in this thread does: it fetches batches, and its first optimizer ends each step."""

    def __init__(self) -> None:
        self.steps = list[LoopStep]()
        self.ends = list[torch.Event]()  # of the steps, by the device's clock
        self._now = LoopStep()
        self._since: float | None = None  # when the step under way began
        self._batches = _Batches()
        self._optimizer: Any = None
        self._thread = threading.current_thread()

    def fetch(self, plain: Any, iterator: Any) -> Any:
        if threading.current_thread() is not self._thread:
            return plain(iterator)
        start = time.perf_counter()
        self._since = start if self._since is None else self._since
        if not torch.is_grad_enabled():
            self._now.evaluated = True
            return plain(iterator)
        batch = plain(iterator)
        waited = time.perf_counter() - start
        self._batches.fetched.append((id(iterator._dataset), waited, samples_of(batch, None)))
        return batch

    def stepped(self, which: Any, *_: Any) -> None:
        self._optimizer = self._optimizer or which
        if self._since is None or which is not self._optimizer:
            return
        end = time.perf_counter()
        self._now.seconds = end - self._since
        self._batches.count(self._now, is_first=not self.steps)
        self.steps.append(self._now)
        self._now = LoopStep()
        self._since = end
        if torch.cuda.is_initialized():
            self.ends.append(torch.Event("cuda", enable_timing=True))
            self.ends[-1].record()


@contextlib.contextmanager
def observed() -> Iterator[list[LoopStep]]:
    """Records the steps of a loop over a `DataLoader` while it is active, and leaves everything as before."""
    observer = _Observer()
    base: Any = dataloader._BaseDataLoaderIter
    plain = base.__next__
    handle = optimizer.register_optimizer_step_post_hook(observer.stepped)
    base.__next__ = lambda iterator: observer.fetch(plain, iterator)
    try:
        yield observer.steps
    finally:
        base.__next__ = plain
        handle.remove()
        with contextlib.suppress(RuntimeError):  # after a CUDA error, which the loop has raised already
            _by_the_device(observer.steps, observer.ends)


def _by_the_device(steps: Sequence[LoopStep], ends: Sequence[torch.Event]) -> None:
    """Gives steps the device's own times, except the first. The host's times are those of launching."""
    if not ends:
        return
    ends[-1].synchronize()
    timed = steps[len(steps) - len(ends) + 1 :]
    for step, (before, after) in zip(timed, itertools.pairwise(ends), strict=True):
        step.seconds = before.elapsed_time(after) / 1e3
        step.on_device = True


def contents(steps: Sequence[LoopStep]) -> list[Content]:
    """Shows the steps of an observed loop."""
    if not steps:
        return [Notice("No step was seen. A step is a batch of a DataLoader, then a step of an optimizer.")]
    counted, left_out = _counted(steps)
    is_on_device = counted[-1].on_device
    each = np.array([step.seconds for step in counted])
    waiting = sum(step.waited for step in counted) / each.sum()
    rows = [
        ["samples/s", units.number(sum(step.samples for step in counted) / each.sum() or None)],
        ["step (median)", units.duration_interval(stats.median(each))],
        ["the host waits for data" if is_on_device else "waiting for data", units.percent(waiting)],
        ["steps", str(len(steps))],
    ]
    contents: list[Content] = [Table(("quantity", "value"), rows, "The loop", left_out)]
    if waiting > _NOTABLE and not is_on_device:  # a GPU may be busy meanwhile
        words = f"{units.percent(waiting)} of a step waits for data"
        contents.append(f"{words}: give the DataLoader workers, or more of them (num_workers=2).")
    return contents


def _counted(steps: Sequence[LoopStep]) -> tuple[Sequence[LoopStep], str]:
    """The steps that the figures are of, and a sentence that says which others are left out."""
    if len(steps) <= _FIRST:
        return steps, ""
    later = steps[_FIRST:]
    plain = [step for step in later if not step.evaluated]
    if not plain or len(plain) == len(later):
        return later, f"The first {_FIRST} steps are left out."
    return plain, f"The first {_FIRST} steps, and those with an evaluation in them, are left out."
