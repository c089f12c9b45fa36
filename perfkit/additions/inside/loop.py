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

from perfkit.additions.shared.tensors import size
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


@contextlib.contextmanager
def observed() -> Iterator[list[LoopStep]]:
    """Records the steps of a loop over a `DataLoader` while it is active, and leaves everything as before."""
    steps, now, ends, batches = list[LoopStep](), LoopStep(), list[torch.Event](), _Batches()
    first: Any = None
    since: float | None = None
    base: Any = dataloader._BaseDataLoaderIter
    plain, here = base.__next__, threading.current_thread()

    def fetch(iterator: Any) -> Any:
        nonlocal since
        if threading.current_thread() is not here:
            return plain(iterator)
        start = time.perf_counter()
        since = start if since is None else since
        if not torch.is_grad_enabled():
            now.evaluated = True
            return plain(iterator)
        batch = plain(iterator)
        batches.fetched.append((id(iterator._dataset), time.perf_counter() - start, size(batch)))
        return batch

    def stepped(which: Any, *_: Any) -> None:
        nonlocal since, now, first
        first = first or which
        if since is not None and which is first:
            end = time.perf_counter()
            now.seconds = end - since
            batches.count(now, is_first=not steps)
            steps.append(now)
            since, now = end, LoopStep()
            if torch.cuda.is_initialized():
                ends.append(torch.Event("cuda", enable_timing=True))
                ends[-1].record()

    handle = optimizer.register_optimizer_step_post_hook(stepped)
    base.__next__ = fetch
    try:
        yield steps
    finally:
        base.__next__ = plain
        handle.remove()
        with contextlib.suppress(RuntimeError):  # after a CUDA error, which the loop has raised already
            _by_the_device(steps, ends)


def _by_the_device(steps: Sequence[LoopStep], ends: Sequence[torch.Event]) -> None:
    """Gives steps the device's own times, except the first. The host's times are those of launching."""
    if not ends:
        return
    ends[-1].synchronize()
    timed = steps[len(steps) - len(ends) + 1 :]
    for step, (before, after) in zip(timed, itertools.pairwise(ends), strict=True):
        step.seconds = before.elapsed_time(after) / 1e3


def contents(steps: Sequence[LoopStep]) -> list[Content]:
    """Shows the steps of an observed loop."""
    if not steps:
        return [Notice("No step was seen. A step is a batch of a DataLoader, then a step of an optimizer.")]
    counted = [step for step in steps[_FIRST:] if not step.evaluated] or steps[_FIRST:] or steps
    each = np.array([step.seconds for step in counted])
    waiting = sum(step.waited for step in counted) / each.sum()
    rows = [
        ["samples/s", units.number(sum(step.samples for step in counted) / each.sum() or None)],
        ["step (median)", units.duration_interval(stats.median(each))],
        ["waiting for data", units.percent(waiting)],
        ["steps", str(len(steps))],
    ]
    left_out = f"The first {_FIRST} steps, and those with an evaluation in them, are left out."
    note = left_out if len(counted) < len(steps) else ""
    contents: list[Content] = [Table(("quantity", "value"), rows, "The loop", note)]
    if waiting > _NOTABLE:
        words = f"{units.percent(waiting)} of a step waits for data"
        contents.append(f"{words}: give the DataLoader workers, or more of them (num_workers=2).")
    return contents
