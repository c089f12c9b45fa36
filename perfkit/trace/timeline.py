"""The timeline of a trace: rows for threads, streams and copies over the whole recording.

The number of bars is limited, whatever the size of the trace: one step has all its events, and elsewhere
short events that begin in the same cell of time share a bar, so that no time is left out.
"""

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
    """A recording. `step`: the one with all its events. `phases`: forward, backward, optimizer of steps."""

    duration_us: float
    lanes: list[Lane]
    steps: list[Bar]
    step: int = 0
    phases: list[Bar] = []


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
    rows = trace.rows(*_SHOWN)
    rows = rows[own[rows]]
    zero, end, cell = int(table.start[own].min()), int(table.end[own].max()), 0
    kinds, threads = table.kind[rows], table.thread[rows]
    groups = np.select([np.isin(kinds, KERNELS), np.isin(kinds, COPIES)], [1, 2])
    tracks = [
        _Track(trace, group, thread, rows[(groups == group) & (threads == thread)])
        for group, thread in sorted({*zip(groups.tolist(), threads.tolist(), strict=True)})
    ]
    window = int(steps.start[step]), int(steps.end[step])
    if sum(track.inside(*window).sum() for track in tracks) > most // 2:
        window = zero, zero
    while cell < end - zero and sum(len(track.firsts(window, cell)) for track in tracks) > most:
        cell = 2 * cell or 1 + (end - zero) // (2 * most)
    return Lanes(
        duration_us=(end - zero) / 1e3,
        lanes=[track.lane(track.firsts(window, cell), zero) for track in tracks],
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
        phases=_phases(trace, zero),
    )


class _Track:
    """All events of a lane, by depth, then by time."""

    def __init__(self, trace: Trace, group: int, thread: int, rows: Ints) -> None:
        self._trace, self._group, self._thread = trace, group, thread
        table = trace.table
        _, depth = nest(table.thread[rows], table.start[rows], table.end[rows], len(rows))
        order = np.lexsort((table.start[rows], depth))
        self._rows, self._depth = rows[order], depth[order]
        self._start, self._end = table.start[self._rows], table.end[self._rows]

    def inside(self, start: int, end: int) -> Any:
        """Whether each event overlaps a window."""
        return (self._start < end) & (self._end > start)

    def firsts(self, window: tuple[int, int], cell: int) -> Ints:
        """Positions of the first event of each bar.

        Events shorter than `cell` ns, and outside the window, share a bar with those that begin in the same
        cell. No other event of the row can lie between them, as it would be at least a cell long.
        """
        if not cell:
            return np.arange(len(self._rows))
        short = (self._end - self._start < cell) & ~self.inside(*window)
        joins = short[1:] & short[:-1] & (np.diff(self._start // cell) == 0) & (np.diff(self._depth) == 0)
        joins &= (self._start[1:] < window[0]) == (self._start[:-1] < window[0])
        return np.flatnonzero(np.concatenate(([True], ~joins)))

    def lane(self, first: Ints, zero: int) -> Lane:
        """The lane with a bar for each of the first events and those up to the next one."""
        trace, group = self._trace, self._group
        duration, events = self._end - self._start, np.diff([*first.tolist(), len(self._rows)])
        by_length = np.lexsort((duration, np.repeat(np.arange(len(first)), events)))
        longest = self._rows[by_length[first + events - 1]]
        calls = trace.launch[longest] if group else longest
        ops = np.where(trace.table.kind[longest] == Kind.CPU_OP, longest, trace.op[longest])
        kind = trace.table.kind[self._rows]
        names, places = trace.table.name[longest], np.where(events == 1, trace.frames(calls, ops), -1)
        texts = {
            code: clean(trace.texts.each[code], 120) for code in {*names.tolist(), *places.tolist()} - {-1}
        }
        columns = (
            names,
            (self._start[first] - zero) / 1e3,
            (np.maximum.reduceat(self._end, first) - self._start[first]) / 1e3,
            np.where(np.minimum.reduceat(kind, first) == np.maximum.reduceat(kind, first), kind[first], 0),
            self._depth[first],
            places,
            events,
            np.add.reduceat(duration, first) / 1e3,
        )
        bars = [
            Bar(
                name=texts[name],
                start_us=start,
                duration_us=length,
                colour=_COLOURS[kind],
                depth=depth,
                place=texts.get(place, ""),
                events=count,
                busy_us=busy,
            )
            for name, start, length, kind, depth, place, count, busy in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ]
        return Lane(label=clean(self._label(), 60), kind=("thread", "stream", "copies")[group], bars=bars)

    def _label(self) -> str:
        _, pid, tid = self._trace.texts.each[self._thread]
        if not self._group:
            return self._trace.threads.get(self._thread) or f"thread {tid}"
        gpu = "simulated GPU" if self._trace.files[0].head.simulated else "GPU"
        return f"{gpu} {pid} stream {tid.removeprefix('stream ')}{' copies' if self._group == 2 else ''}"


def _phases(trace: Trace, zero: int) -> list[Bar]:
    """Forward, backward, optimizer of each step: from the optimizer's own mark and autograd's operators."""
    table, steps = trace.table, trace.steps
    host = trace.rows(Kind.CPU_OP, Kind.ANNOTATION)

    def extents(rows: Ints, until: Ints) -> tuple[Ints, Ints]:
        """First start and last end, in each step, of the rows that end in time; (end, start) without any."""
        step = np.searchsorted(steps.start, table.start[rows], "right") - 1
        whole = (step >= 0) & (table.end[rows] <= until[step])
        low, high = steps.end.copy(), steps.start.copy()
        np.minimum.at(low, step[whole], table.start[rows[whole]])
        np.maximum.at(high, step[whole], table.end[rows[whole]])
        return low, high

    backward = extents(trace.matching(host, r"^autograd::engine::evaluate_function|Backward\d*$"), steps.end)
    optimizer = extents(trace.matching(host, "^Optimizer.step#"), steps.end)
    until = np.where(backward[0] < backward[1], backward[0], optimizer[0])
    loaded = extents(trace.rows(Kind.DATALOADER), until)[1]
    forward = loaded, np.where(until < steps.end, until, loaded)
    return [
        Bar(name=name, start_us=(start - zero) / 1e3, duration_us=(end - start) / 1e3, colour=name)
        for each in range(len(steps.names))
        for name, phase in (("forward", forward), ("backward", backward), ("optimizer", optimizer))
        if (start := int(phase[0][each])) < (end := int(phase[1][each]))
    ]
