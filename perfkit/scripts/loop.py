"""A loop observed in its own process: cells with `%%watch`.

Nothing is set from outside here: model and loader exist already, so there is no other side to compare with.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.optim import optimizer
from torch.utils.data import dataloader

from perfkit.results import stats
from perfkit.scripts.outputs import clock
from perfkit.scripts.script import Step, Steps, size
from perfkit.show import units
from perfkit.show.document import Content, Notice, Table

_FIRST = 2
"""Steps that the figures leave out where there are others: caches, compilation, workers that start."""


@contextlib.contextmanager
def observed() -> Iterator[list[Step]]:
    """Notes the steps of a loop over a `DataLoader` while the context lasts; afterwards all is as before."""
    steps = list[Step]()
    counted = Steps(steps.extend)
    base: Any = dataloader._BaseDataLoaderIter
    plain, here = base.__next__, threading.current_thread()

    def fetch(iterator: Any) -> Any:
        if threading.current_thread() is not here:
            return plain(iterator)
        counted.begin()
        start = clock()
        batch = plain(iterator)
        counted.now.waited += clock() - start
        samples, tokens = size(batch)
        counted.now.samples += samples
        counted.now.tokens += tokens
        return batch

    def stepped(which: Any, *_: Any) -> None:
        if counted.began_at:
            counted.updated(which)

    handle = optimizer.register_optimizer_step_post_hook(stepped)
    base.__next__ = fetch
    try:
        yield steps
    finally:
        base.__next__ = plain
        handle.remove()
        if steps and torch.cuda.is_initialized():  # what a GPU still has to do
            start = clock()
            torch.cuda.synchronize()
            steps[-1].seconds += clock() - start


def contents(steps: Sequence[Step]) -> list[Content]:
    """The steps of a loop that was observed."""
    if not steps:
        return [Notice("Fewer than two steps were seen: batches of a loader, then an optimizer step.")]
    counted = steps[_FIRST:] or steps
    each = np.array([step.seconds for step in counted])
    samples, tokens, waited = (
        sum(getattr(step, name) for step in counted) / each.sum() for name in ("samples", "tokens", "waited")
    )
    rows = [
        ["samples/s", units.number(samples)],
        *([["tokens/s", units.number(tokens)]] if tokens else []),
        ["step (median)", units.duration_interval(stats.median(each))],
        ["waiting for data", units.percent(waited)],
        ["steps", str(len(steps))],
    ]
    note = f"The first {_FIRST} steps are left out." * (len(counted) < len(steps))
    return [Table(("what", "how much"), rows, "The loop", note)]
