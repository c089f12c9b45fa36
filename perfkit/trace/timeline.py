"""The timeline of one step: rows for threads, streams and copies, with the longest events of it."""

import numpy as np
from msgspec import Struct

from perfkit.errors import TraceError
from perfkit.show.units import clean
from perfkit.trace.intervals import Ints
from perfkit.trace.rank import COPIES, KERNELS, Forest, Kind, Rank, Trace

_COLOURS = {kind: kind.name.lower() for kind in Kind if Kind.OTHER < kind < Kind.STEP}
_COLOURS[Kind.COLLECTIVE] = "communication"
MOST = 20_000
"""Bars of a timeline, so that its page stays below 5 MB whatever the size of the trace."""


class Bar(Struct, frozen=True, kw_only=True, array_like=True):
    """One event. `start_us` from the window's start; `depth`: level of nesting; `colour`: a part's name.

    `place`: the user's `file.py:line` that led to it; empty where no stack was recorded.
    """

    name: str
    start_us: float
    duration_us: float
    colour: str
    depth: int = 0
    place: str = ""


class Lane(Struct, frozen=True, kw_only=True):
    """A row, its bars in order of time. `kind`: "thread", "stream", "copies" or "worker"."""

    label: str
    kind: str
    bars: list[Bar]

    @property
    def levels(self) -> int:
        """How deep the bars are nested, from 1."""
        return 1 + max((bar.depth for bar in self.bars), default=0)


class Lanes(Struct, frozen=True, kw_only=True):
    """A window of the trace. `omitted`: shorter events left out; `phases`: forward, backward, optimizer."""

    name: str
    start_us: float
    duration_us: float
    lanes: list[Lane]
    phases: list[Bar]
    omitted: int


def lanes(trace: Trace, step: int = 0, most: int = MOST) -> Lanes:
    """The rows of a step of the first rank, the longest events of it.

    Args:
        trace: a loaded trace.
        step: position in the rank's steps.
        most: bars in all; shorter events are left out, and counted.

    Raises:
        TraceError: no such step.
    """
    rank = trace.ranks[0]
    table, steps = rank.table, rank.steps
    if not -len(steps.names) <= step < len(steps.names):
        raise TraceError(
            f"there is no step {step}", f"The trace has {len(steps.names)} steps, counted from 0"
        )
    start, end = int(steps.start[step]), int(steps.end[step])
    rows = rank.rows(*_COLOURS)
    rows = rows[(table.start[rows] < end) & (table.end[rows] > start)]
    shown = rows[np.sort(np.argsort(-rank.duration(rows), kind="stable")[:most])]
    kinds, threads = table.kind[shown], table.thread[shown]
    groups = np.select([np.isin(kinds, KERNELS), np.isin(kinds, COPIES)], [1, 2])
    return Lanes(
        name=steps.names[step],
        start_us=start / 1e3,
        duration_us=(end - start) / 1e3,
        lanes=[
            _lane(rank, group, thread, shown[(groups == group) & (threads == thread)], start)
            for group, thread in sorted({*zip(groups.tolist(), threads.tolist(), strict=True)})
        ],
        phases=_phases(rank, rows, start, end),
        omitted=len(rows) - len(shown),
    )


def _lane(rank: Rank, group: int, thread: int, rows: Ints, zero: int) -> Lane:
    pid, tid = map(str, rank.texts.each[thread])
    label = rank.threads.get((pid, tid)) or f"thread {tid}"
    if group:
        gpu = "simulated GPU" if rank.file.head.simulated else "GPU"
        label = f"{gpu} {pid} stream {tid.removeprefix('stream ')}{' copies' if group == 2 else ''}"
    forest, each = Forest(rank.table, rows), rank.texts.each
    events = rank.table[forest.rows]
    calls = rank.launch[forest.rows] if group else forest.rows
    ops = np.where(events.kind == Kind.CPU_OP, forest.rows, rank.op[forest.rows])
    columns = (
        events.name,
        events.start - zero,
        events.end - events.start,
        events.kind,
        forest.depth,
        rank.frames(calls, ops),
    )
    bars = [
        Bar(
            name=clean(each[name], 120),
            start_us=start / 1e3,
            duration_us=length / 1e3,
            colour=_COLOURS[kind],
            depth=depth,
            place=clean(each[line], 120) if line >= 0 else "",
        )
        for name, start, length, kind, depth, line in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]
    return Lane(label=clean(label, 60), kind=("thread", "stream", "copies")[group], bars=bars)


def _phases(rank: Rank, rows: Ints, start: int, end: int) -> list[Bar]:
    """Forward, backward, optimizer on the host: from the optimizer's own mark and autograd's operators."""
    table = rank.table

    def extent(pattern: str) -> tuple[int, int] | None:
        marks = rank.matching(host, pattern)
        return (int(table.start[marks].min()), int(table.end[marks].max())) if len(marks) else None

    host = rows[np.isin(table.kind[rows], (Kind.CPU_OP, Kind.ANNOTATION, Kind.DATALOADER))]
    host = host[(table.start[host] >= start) & (table.end[host] <= end)]
    phases = {
        "backward": extent(r"^autograd::engine::evaluate_function|Backward\d*$"),
        "optimizer": extent("^Optimizer.step#"),
    }
    until = next((phase[0] for phase in phases.values() if phase), None)
    if until is not None:
        loaded = table.end[host[table.kind[host] == Kind.DATALOADER]]
        phases["forward"] = int(loaded[loaded <= until].max(initial=start)), until
    return [
        Bar(
            name=name, start_us=(phase[0] - start) / 1e3, duration_us=(phase[1] - phase[0]) / 1e3, colour=name
        )
        for name, phase in phases.items()
        if phase
    ]
