"""Measures the lanes of a training on a CPU, in its process, with stamps of its workers and parts."""

import contextlib
import itertools
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from perfkit.additions.lanes import stamps
from perfkit.additions.lanes.figures import Bar, DrawnSide
from perfkit.worker.procedure import Procedure
from perfkit.worker.session import WorkerSession

SETTLE, STAMPED = 6, 32
"""Steps until a newly started loader is ahead, and stamped steps, two of which are shown."""


class Parts:
    """Records the parts of steps: the wait for a batch, and the computation."""

    def __init__(self, is_loading: bool) -> None:
        self.bars = list[tuple[str, float, float, int]]()
        self._wait = "load" if is_loading else "wait"
        self.batch = -1

    @contextlib.contextmanager
    def note(self, name: str) -> Iterator[None]:
        """A context manager around a part, for `Training.phases`."""
        kind = {"data": self._wait, "copy": ""}.get(name, "compute")  # on a CPU nothing is copied
        if name == "data":
            self.batch += 1
        start = time.perf_counter()
        yield
        if kind:
            before, began, _, batch = self.bars[-1] if self.bars else ("", 0.0, 0.0, -1)
            if kind == before == "compute" and self.batch == batch:  # forward, backward, optimizer
                self.bars.pop()
                start = began
            self.bars.append((kind, start, time.perf_counter(), self.batch))

    def begins(self, batches: int) -> dict[int, float]:
        """When each step begins, if it has so many batches."""
        found = dict[int, float]()
        for kind, start, _, batch in self.bars:
            if kind in ("load", "wait") and batch % batches == 0:
                found[batch // batches] = start
        return found


def nearest(begins: Mapping[int, float], step_s: float | None, loads: Sequence[stamps.Stamp] = ()) -> int:
    """The number of the first of two steps that are both closest to `step_s`, or to the median if None.

    With `loads`, workers load in these two steps; on busy cores a worker can be ahead for as long.
    """
    lengths = {step: begins[step + 1] - begins[step] for step in sorted(begins)[SETTLE + 1 : -1]}
    wanted = step_s or statistics.median(lengths.values())
    off = {step: abs(length - wanted) for step, length in lengths.items()}
    firsts = [*off][:-1]
    with_load = [
        at for at in firsts if any(load.start < begins[at + 2] and load.end > begins[at] for load in loads)
    ]
    return min(with_load or firsts, key=lambda step: max(off[step], off[step + 1]))


def _rows(
    parts: Parts, loads: Iterable[tuple[stamps.Stamp, int]], start: float, end: float
) -> dict[str, list[Bar]]:
    """The bars of parts and of workers' batches, with their numbers, that are seen in a window."""
    rows: dict[str, list[Bar]] = {"host": [], "kernels": []}

    def add(row: str, kind: str, began: float, ended: float, batch: int, lane: int = 0) -> None:
        if began < end and ended > start:
            awaited = "data" if kind == "wait" else ""
            bar = Bar(1e3 * (began - start), 1e3 * (ended - start), kind, batch, lane, awaited)
            rows.setdefault(row, []).append(bar)

    for kind, began, ended, batch in parts.bars:
        add("kernels" if kind == "compute" else "host", kind, began, ended, batch)
    for stamp, batch in loads:
        add("worker", "load", stamp.start, stamp.end, batch, stamp.worker)
    return rows


def side(session: WorkerSession, title: str, step_s: float | None = None) -> Procedure:
    """Makes a `DrawnSide` of two steady steps of this process's training, those closest to `step_s`."""
    training = session.subject
    loader: Any = training.loader
    training.stop()
    loader._iterator = None  # the next iterator starts new workers, which are forked with the stamps
    workers = loader.num_workers
    parts = Parts(not workers)
    with stamps.noted() as stamped:
        training._program.source = itertools.chain.from_iterable(itertools.repeat(loader))
        with training.phases(parts.note):
            yield from session.take(SETTLE + STAMPED, "measuring")
        done = stamped.read()
    training.iterator = loader._iterator
    with training.on_cached_batch():
        cached = yield from session.take(6, "cached batch")
    begins = parts.begins(training.recipe.accumulation)
    first = nearest(begins, step_s, done)
    start, end = begins[first], begins[first + 2]
    loads = zip(done, stamps.numbers(done, workers, len(loader)), strict=True)
    rows = _rows(parts, loads, start, end)
    return DrawnSide(
        title=title,
        step_ms=500 * (end - start),
        rows=rows,
        middle_ms=1e3 * (begins[first + 1] - start),
        ceiling_ms=1e3 * statistics.median(cached.step_s),
        samples=training.samples_per_step,
        note="" if done or not workers else "workers that are not forked leave no stamps",
    )
