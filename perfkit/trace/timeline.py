"""The timeline of a trace: rows for threads, streams and copies over the whole recording.

The number of bars is limited, whatever the size of the trace: one step has all its events, and elsewhere
short events that begin in the same cell of time share a bar, so that no time is left out.
"""

import itertools
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct

from perfkit.errors import TraceError
from perfkit.show.units import clean
from perfkit.trace.intervals import Ints
from perfkit.trace.table import COPIES, KERNELS, Kind, Trace, nest

_SHOWN = [kind for kind in Kind if Kind.OTHER < kind < Kind.STEP]
_COLOURS = {kind: kind.name.lower() for kind in _SHOWN}
_COLOURS |= {Kind.COLLECTIVE: "communication", Kind.OTHER: "several kinds"}
MOST = 120_000
"""Bars of a timeline: about 25 bytes each in a page, which stays below 5 MB."""


class Bar(Struct, frozen=True, kw_only=True):
    """One event, or several short ones. Times in µs, `start_us` from the beginning of the recording.

    `colour`: a part's name. `depth`: level of nesting. `place`: the user's `file.py:line` that led to it;
    empty if no stack was recorded. `events`: how many share the bar, with the name of the longest and the sum
    of their times, `busy_us`.
    """

    name: str
    start_us: float
    duration_us: float
    colour: str
    depth: int = 0
    place: str = ""
    events: int = 1
    busy_us: float = 0.0


class Lane(Struct, frozen=True, kw_only=True):
    """Rows of bars, each row in order of time. `kind`: "thread", "stream", "copies" or "worker"."""

    label: str
    kind: str
    bars: list[Bar]

    @property
    def levels(self) -> int:
        """How deep the bars are nested, from 1."""
        return 1 + max((bar.depth for bar in self.bars), default=0)


class Lanes(Struct, frozen=True, kw_only=True):
    """A recording. `step`: the one with all its events."""

    duration_us: float
    lanes: list[Lane]
    steps: list[Bar]
    step: int = 0


def lanes(trace: Trace, step: int = 0, most: int = MOST) -> Lanes:
    """The rows of the first rank.

    Args:
        trace: a loaded trace.
        step: position in the rank's steps: it has all its events, if these are at most half of `most`.
        most: bars in all.

    Raises:
        TraceError: no such step.
    """
    table, steps = trace.table, trace.steps
    count = int((trace.rank(steps.start) == 0).sum())
    if not -count <= step < count:
        raise TraceError(f"there is no step {step}", f"The trace has {count} steps, counted from 0")
    own = trace.rank(table.start) == 0
    zero, end = int(table.start[own].min()), int(table.end[own].max())
    rows = trace.rows(*_SHOWN)
    rows = rows[own[rows]]
    kind = table.kind[rows]
    group = np.select([np.isin(kind, KERNELS), np.isin(kind, COPIES)], [1, 2])
    track = (group << 32) + table.thread[rows]
    _, depth = nest(track, table.start[rows], table.end[rows], len(rows))
    order = np.lexsort((table.start[rows], depth, track))
    rows, row = rows[order], (track * (depth.max(initial=0) + 1) + depth)[order]
    window, cell = (int(steps.start[step]), int(steps.end[step])), 0
    inside = (table.start[rows] < window[1]) & (table.end[rows] > window[0])
    if inside.sum() > most // 2:
        inside[:] = False
    first = np.arange(len(rows))
    while len(first) > most and cell < end - zero:
        cell = 2 * cell or 1 + (end - zero) // (2 * most)
        first = _firsts(trace, rows, row, inside, cell)
    bars = zip(track[order][first].tolist(), _bars(trace, rows, depth[order], first, zero), strict=True)
    return Lanes(
        duration_us=(end - zero) / 1e3,
        lanes=[
            _lane(trace, number >> 32, number % (1 << 32), [bar for _, bar in group])
            for number, group in itertools.groupby(bars, key=operator.itemgetter(0))
        ],
        steps=[
            Bar(
                name=clean(name.replace("ProfilerStep#", "step "), 60),
                start_us=(start - zero) / 1e3,
                duration_us=(end - start) / 1e3,
                colour="other",
            )
            for name, start, end in zip(
                steps.names[:count], steps.start.tolist(), steps.end.tolist(), strict=False
            )
        ],
        step=step % count,
    )


def _firsts(trace: Trace, rows: Ints, row: Ints, inside: Any, cell: int) -> Ints:
    """Positions of the first event of each bar.

    Events shorter than `cell` ns, outside of the step, share a bar with those of their row that begin in the
    same cell. No other event of the row lies between them: it would be at least a cell long, or of the step.
    """
    start, short = trace.table.start[rows], (trace.duration(rows) < cell) & ~inside
    joins = short[1:] & short[:-1] & (np.diff(start // cell) == 0) & (np.diff(row) == 0)
    return np.flatnonzero(np.concatenate(([True], ~joins)))


def _bars(trace: Trace, rows: Ints, depth: Ints, first: Ints, zero: int) -> Iterator[Bar]:
    """A bar for each of the first events and those up to the next one."""
    table, duration = trace.table, trace.duration(rows)
    events, kind = np.diff(np.append(first, len(rows))), table.kind[rows]
    by_length = np.lexsort((duration, np.repeat(np.arange(len(first)), events)))
    longest = rows[by_length[first + events - 1]]
    calls = np.where(trace.launch[longest] >= 0, trace.launch[longest], longest)
    ops = np.where(table.kind[longest] == Kind.CPU_OP, longest, trace.op[longest])
    names, places = table.name[longest], np.where(events == 1, trace.frames(calls, ops), -1)
    used = {*names.tolist(), *places.tolist()} - {-1}
    texts = {code: clean(trace.texts.each[code], 120) for code in used}
    start = table.start[rows[first]]
    columns = (
        names,
        (start - zero) / 1e3,
        (np.maximum.reduceat(table.end[rows], first) - start) / 1e3,
        np.where(np.minimum.reduceat(kind, first) == np.maximum.reduceat(kind, first), kind[first], 0),
        depth[first],
        places,
        events,
        np.add.reduceat(duration, first) / 1e3,
    )
    values = zip(*(column.tolist() for column in columns), strict=True)
    for name, at, length, part, level, place, count, busy in values:
        yield Bar(
            name=texts[name],
            start_us=at,
            duration_us=length,
            colour=_COLOURS[part],
            depth=level,
            place=texts.get(place, ""),
            events=count,
            busy_us=busy,
        )


def _lane(trace: Trace, group: int, thread: int, bars: list[Bar]) -> Lane:
    rank, pid, tid = trace.texts.each[thread]
    label = trace.threads.get((rank, str(pid), str(tid))) or f"thread {tid}"
    if group:
        gpu = "simulated GPU" if trace.files[0].head.simulated else "GPU"
        label = f"{gpu} {pid} stream {str(tid).removeprefix('stream ')}{' copies' if group == 2 else ''}"
    return Lane(label=clean(label, 60), kind=("thread", "stream", "copies")[group], bars=bars)
