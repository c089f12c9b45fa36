"""The data of a timeline: rows for threads, streams and copies, with the bars of one step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np

from perfkit.errors import TraceError
from perfkit.trace.columns import Columns, Kind
from perfkit.trace.intervals import Ints
from perfkit.trace.link import CallForest
from perfkit.trace.model import Bar, Lane, Lanes
from perfkit.trace.rank import Rank, Trace
from perfkit.trace.steps import is_collective

_CLASS = {
    Kind.KERNEL: "kernel", Kind.MEMCPY: "memcpy", Kind.MEMSET: "memset", Kind.COMMUNICATION: "communication",
    Kind.RUNTIME: "runtime", Kind.LOADER: "dataloader", Kind.CPU_OP: "cpu_op", Kind.ANNOTATION: "annotation",
}  # fmt: skip
_BACKWARD = re.compile(r"^autograd::engine::evaluate_function|Backward\d*$")


def lanes(trace: Trace, step: int | str = 0, rank: int = 0, limit: int = 4000) -> Lanes:
    """The rows of one step, the longest `limit` events of it, each row in order of time.

    Args:
        trace: a loaded trace.
        step: position in the rank's steps, or a name ("ProfilerStep#7").
        rank: position in the list of files.
        limit: most bars in all.

    Raises:
        TraceError: no such step or rank.
    """
    if not 0 <= rank < len(trace.ranks):
        raise TraceError(
            f"there is no rank {rank}", f"The trace has {len(trace.ranks)} file(s), counted from 0."
        )
    chosen = trace.ranks[rank]
    at = _position(chosen, step)
    start, end = int(chosen.steps.start[at]), int(chosen.steps.end[at])
    columns = chosen.columns
    rows = columns.rows(*_CLASS)
    rows = rows[(columns.start[rows] < end) & (columns.end[rows] > start)]
    longest = np.argsort(-columns.duration(rows), kind="stable")[: max(limit, 0)]
    shown = rows[np.sort(longest)]
    return Lanes(
        name=chosen.steps.names[at], start_us=start / 1e3, duration_us=(end - start) / 1e3,
        lanes=[_lane(chosen, *lane, zero=start) for lane in _grouped(columns, shown, chosen)],
        phases=_phases(columns, start, end), omitted=len(rows) - len(shown),
    )  # fmt: skip


def _position(rank: Rank, step: int | str) -> int:
    names = rank.steps.names
    at = names.index(step) if step in names else step if isinstance(step, int) else len(names)
    if not -len(names) <= at < len(names):
        raise TraceError(f"there is no step {step!r}", f"Steps: {', '.join(names[:8]) or 'none'}.")
    return at


def _grouped(columns: Columns, rows: Ints, rank: Rank) -> Iterator[tuple[str, str, Ints]]:
    """Label, kind and rows of each lane: threads first, then streams, then copies of each device."""
    kinds = columns.kind[rows]
    stream, copies = kinds == Kind.KERNEL, np.isin(kinds, (Kind.MEMCPY, Kind.MEMSET))
    for mask, kind in ((~stream & ~copies, "thread"), (stream, "stream"), (copies, "copies")):
        for thread in np.unique(columns.thread[rows[mask]]).tolist():
            pid, tid = columns.threads[thread]
            simulated = "simulated " if rank.simulated else ""
            label = (
                f"{simulated}GPU {pid} stream {tid.removeprefix('stream ')}{' copies' * (kind == 'copies')}"
            )
            if kind == "thread":
                label = columns.labels.get((pid, tid)) or f"thread {tid}"
            yield label, kind, rows[mask & (columns.thread[rows] == thread)]


def _lane(rank: Rank, label: str, kind: str, rows: Ints, zero: int) -> Lane:
    columns, forest = rank.columns, CallForest(rank.columns, rows)
    start, end = columns.start[forest.rows], columns.end[forest.rows]
    order = zip(*(column.tolist() for column in (forest.rows, start, end, forest.depth)), strict=True)
    frames = rank.links.frames(forest.rows)
    bars = [
        _bar(columns.names[columns.name[row]], begin, finish, zero, _colour(columns, row), depth, frame or "")
        for (row, begin, finish, depth), frame in zip(order, frames, strict=True)
    ]
    return Lane(label=label, kind=kind, bars=bars)


def _colour(columns: Columns, row: int) -> str:
    kind = Kind(columns.kind[row])
    if kind == Kind.KERNEL and is_collective(columns.names[columns.name[row]]):
        return "communication"
    return _CLASS[kind]


def _phases(columns: Columns, start: int, end: int) -> list[Bar]:
    """Forward, backward, optimizer on the host: from the optimizer's own mark and autograd's operators."""
    rows = columns.rows(Kind.CPU_OP, Kind.ANNOTATION, Kind.LOADER)
    rows = rows[(columns.start[rows] >= start) & (columns.end[rows] <= end)]

    def extent(test: Callable[[str], bool]) -> tuple[int, int] | None:
        mine = columns.named(rows, test)
        return (int(columns.start[mine].min()), int(columns.end[mine].max())) if len(mine) else None

    backward = extent(lambda text: _BACKWARD.search(text) is not None)
    update = extent(lambda text: text.startswith("Optimizer.step#"))
    loader = columns.end[rows[columns.kind[rows] == Kind.LOADER]]
    until = backward[0] if backward else update[0] if update else None
    before = loader[loader <= until] if until is not None else loader
    forward = (int(before.max()) if len(before) else start, until) if until is not None else None
    phases = (("forward", forward), ("backward", backward), ("optimizer", update))
    return [_bar(name, *span, start, name) for name, span in phases if span]


def _bar(name: str, start: int, end: int, zero: int, colour: str, depth: int = 0, place: str = "") -> Bar:
    """From times in ns on the trace's clock."""
    start_us, duration_us = (start - zero) / 1e3, (end - start) / 1e3
    return Bar(name=name, start_us=start_us, duration_us=duration_us, colour=colour, depth=depth, place=place)
