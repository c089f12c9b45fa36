"""A loop observed in its own process: cells with `%%watch`.

Nothing is set from outside here: model and loader exist already, so there is no other side to compare with.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.optim import optimizer
from torch.utils.data import dataloader

from perfkit.results import stats
from perfkit.scripts.script import Step, first_tensor, size
from perfkit.show import units
from perfkit.show.document import Content, Notice, Table

_FIRST = 2
"""Steps that the figures leave out where there are others: caches, compilation, workers that start."""


class Tracked:
    """The steps of a loop, each from the request for its first batch to its end by `clock`, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.steps: list[Step] = []
        self._now: Step | None = None
        self._since = 0.0

    def fetch(self, fetch: Callable[[], Any]) -> Any:
        """Fetches a batch of the step under way, which begins with the request for its first one."""
        start = self._clock()
        batch = fetch()
        if self._now is None:
            self._now, self._since = Step(), start
        self._now.waited += self._clock() - start
        samples, tokens = size(first_tensor(batch))
        self._now.samples += samples
        self._now.tokens += tokens
        return batch

    def end(self) -> None:
        if self._now:
            self.steps.append(self._now.ended(self._clock() - self._since))
            self._now = None

    def finish(self) -> None:
        """The loop is over: the last step includes what a GPU still has to do."""
        start = self._clock()
        if self.steps and torch.cuda.is_initialized():
            torch.cuda.synchronize()
            self.steps[-1].seconds += self._clock() - start


def contents(result: Tracked) -> list[Content]:
    """The steps of a loop that was observed."""
    if not result.steps:
        return [Notice("No step was seen: no batch of a loader was followed by an optimizer step.")]
    left_out = _FIRST if len(result.steps) > 2 * _FIRST else 0
    counted = result.steps[left_out:]
    seconds = sum(step.seconds for step in counted)
    rows = [
        ["samples/s", units.number(sum(step.samples for step in counted) / seconds or None)],
        ["tokens/s", units.number(sum(step.tokens for step in counted) / seconds or None)],
        ["step (median)", units.duration_interval(stats.median(np.array([s.seconds for s in counted])))],
        ["waiting for data", units.percent(sum(step.waited for step in counted) / seconds)],
        ["steps", str(len(result.steps))],
    ]
    note = f"The first {left_out} steps are left out." if left_out else ""
    return [Table(("what", "how much"), rows, "The loop", note)]


@contextlib.contextmanager
def observed() -> Iterator[Tracked]:
    """Notes the steps of any loop over a `DataLoader` while the context lasts; afterwards all is as before.

    A step ends with the step of an optimizer; what is fetched between two of them belongs to the second.
    """
    tracked = Tracked()
    base: Any = dataloader._BaseDataLoaderIter
    plain, here = base.__next__, threading.current_thread()
    first: list[Any] = []

    def fetch(iterator: Any) -> Any:
        if threading.current_thread() is not here:
            return plain(iterator)
        return tracked.fetch(lambda: plain(iterator))

    def stepped(which: Any, *_: Any) -> None:
        first[:] = first or [which]
        if which is first[0]:  # with several optimizers, the first one ends a step
            tracked.end()

    handle = optimizer.register_optimizer_step_post_hook(stepped)
    base.__next__ = fetch
    try:
        yield tracked
    finally:
        base.__next__ = plain
        handle.remove()
        tracked.finish()
