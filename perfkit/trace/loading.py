"""What the loader did for each batch, joined to the steps that took them: supply against demand.

Times are taken in the workers themselves (see `profiling.TimedFetch`): two clock reads a sample and one short
line a batch. All processes of a machine share the monotonic clock they use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from perfkit.trace.model import Bar, Lane, Lanes


class Batch(Struct, frozen=True, kw_only=True):
    """One batch on its way, in order of delivery. Seconds; `start_s` is on the processes' shared clock.

    `transform_s` is the part of `fetch_s` spent in the data set's `transform`; None if it has none.
    `queued_s` is from collated to taken: waiting for its turn, and crossing (and pinning, where it is on).
    """

    number: int
    worker: int
    start_s: float
    fetch_s: float
    transform_s: float | None
    collate_s: float
    queued_s: float
    wait_s: float


class Span(NamedTuple):
    """A worker's time on one batch, taken or not, on the processes' shared clock."""

    number: int
    worker: int
    start_s: float
    fetched_s: float
    collated_s: float


class Loading(Struct, frozen=True, kw_only=True):
    """Supply and demand over the batches of a profile."""

    workers: int
    batches: list[Batch]
    """Those that the profiled steps took."""
    spans: list[Span]
    """All that were made meanwhile."""
    supply_samples_per_s: float
    """What the workers could deliver if never held up."""
    demand_samples_per_s: float
    """What the rest of the step would take if it never waited."""
    pin_s: float | None
    """Mean seconds to pin a batch, in the loader's pin thread; None where nothing is pinned."""

    @property
    def verdict(self) -> str:
        """Which side is short."""
        ratio = self.supply_samples_per_s / self.demand_samples_per_s
        if self.workers == 0:
            return "the loop itself fetches: every batch is waited for. Workers would fetch beside it"
        if ratio >= 1.1:
            return f"the workers could deliver {ratio:.1f}× what the step takes: more of them would not help"
        if ratio > 0.9:
            return "supply and demand are about equal: what slows either side shows at once"
        return f"the workers deliver {ratio:.0%} of what the step could take: the step waits for data"


def join(
    made: Iterable[Mapping[str, Any]], taken: Iterable[tuple[int, float, float]], batch_size: int,
    workers: int, marks: Sequence[float], pins: list[float],
) -> Loading | None:  # fmt: skip
    """Joins what workers noted with what the loop took; None if no batch is in both.

    Args:
        made: `number`, `worker`, `start`, `fetched`, `collated`, `transform` of batches, seconds.
        taken: number, asked for at, received at, of the batches that the loop took.
        batch_size: samples in a batch.
        workers: processes that fetch; 0 = the loop itself.
        marks: starts of the profiled steps, and the end of the last.
        pins: seconds each pinning took.
    """
    notes = {note["number"]: note for note in made}
    batches = [
        Batch(
            number=number, worker=note["worker"], start_s=note["start"],
            fetch_s=note["fetched"] - note["start"], transform_s=note["transform"],
            collate_s=note["collated"] - note["fetched"],
            queued_s=max(0.0, received - note["collated"]), wait_s=received - asked,
        )
        for number, asked, received in taken
        if (note := notes.get(number))
    ]  # fmt: skip
    if not batches:
        return None
    spans = [Span(*(n[key] for key in _SPAN)) for n in notes.values()]
    inside = sorted(span for span in spans if span.collated_s > marks[0] and span.start_s < marks[-1])
    cost = float(np.mean([b.fetch_s + b.collate_s for b in batches]))
    busy = max((marks[-1] - marks[0] - sum(b.wait_s for b in batches)) / len(batches), 1e-9)
    return Loading(
        workers=workers, batches=batches, spans=inside,
        supply_samples_per_s=max(1, workers) * batch_size / max(cost, 1e-9),
        demand_samples_per_s=batch_size / busy, pin_s=float(np.mean(pins)) if pins else None,
    )  # fmt: skip


def lanes(loading: Loading, window: Lanes, start_s: float) -> Lanes:
    """A timeline's window with a row for each worker on top.

    Args:
        loading: what the workers did.
        window: a step's rows.
        start_s: where the window starts on the processes' clock.
    """
    rows = []
    for worker in sorted({span.worker for span in loading.spans}):
        bars = [bar for span in loading.spans if span.worker == worker for bar in _bars(span, start_s)]
        inside = [bar for bar in bars if -bar.duration_us < bar.start_us < window.duration_us]
        rows.append(Lane(label="loop" if worker < 0 else f"worker {worker}", kind="worker", bars=inside))
    return Lanes(
        name=window.name, start_us=window.start_us, duration_us=window.duration_us,
        lanes=[*rows, *window.lanes], phases=window.phases, omitted=window.omitted,
    )  # fmt: skip


def _bars(span: Span, zero: float) -> list[Bar]:
    times = (("fetch", span.start_s, span.fetched_s), ("collate", span.fetched_s, span.collated_s))
    return [
        Bar(
            name=f"batch {span.number}: {part}", start_us=(start - zero) * 1e6, colour=part, depth=0,
            duration_us=(end - start) * 1e6,
        )
        for part, start, end in times
    ]  # fmt: skip


_SPAN = ("number", "worker", "start", "fetched", "collated")
