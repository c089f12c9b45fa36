"""The timeline of a trace: rows for threads, streams and copies over the whole recording.

The number of bars is limited, whatever the size of the trace: one step has all its events, and elsewhere
short events that begin in the same cell of time share a bar, so that no time is left out.
"""

import itertools
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from perfkit.additions.trace import data
from perfkit.additions.trace.events import Kind
from perfkit.additions.trace.formats import TraceError
from perfkit.additions.trace.intervals import Ints
from perfkit.additions.trace.table import Trace, take
from perfkit.show import style
from perfkit.show.document import Interactive
from perfkit.show.style import Look
from perfkit.show.units import clean

MOST = 100_000
"""Bars of a timeline: at most 45 bytes each in a page, which stays below 5 MB."""
PARTS = ("several kinds", *(kind.name.lower() for kind in Kind if kind))
"""What a bar shows: a kind by its number."""
_WORDS = data.table("words")["part"]
OTHER = Look(_WORDS["other"], "#bbbbbb")
LOOKS = {
    "kernel": style.COMPUTES._replace(label=_WORDS["kernel"]),
    "memcpy": style.COPIES._replace(label=_WORDS["memcpy"]),
    "memset": Look(_WORDS["memset"], style.GREY, "xx"),
    "communication": Look(_WORDS["communication"], style.VERMILLION, "\\\\"),
    "runtime": style.LAUNCHES._replace(label=_WORDS["runtime"], hatch="--"),
    "dataloader": style.WAITS._replace(label=_WORDS["dataloader"]),
    "cpu_op": Look(_WORDS["cpu_op"], style.YELLOW, ".."),
}
Columns = list[list[int]]
"""Bars in order of time: starts, durations and busy times in ns, then events, and
numbers of the name, the part and the place among `texts`, `PARTS` and `texts`.

A bar of one event has no busy time; one of several has the name of the longest and the sum of their times.
"""


class Lane(Struct, frozen=True, kw_only=True):
    """Rows of bars by depth of nesting. `kind`: "thread", "stream" or "copies"."""

    label: str
    kind: str
    rows: list[Columns]


class Lanes(Struct, frozen=True, kw_only=True):
    """A recording of so many ns. `step`: the one with all its events."""

    duration: int
    step: int
    steps: tuple[list[int], list[int], list[str]]
    """Starts and durations in ns, and names."""
    lanes: list[Lane]
    texts: list[str]
    """Names, and places: the user's `file.py:line` that led to an event; the first one is empty."""


def lanes(trace: Trace, step: int = 0, most: int = MOST) -> Lanes:
    """The rows of a loaded trace.

    Args:
        trace: a loaded trace.
        step: position among the steps: it has all its events, if these are at most half of `most`.
        most: bars in all.

    Raises:
        TraceError: no such step.
    """
    table, steps = trace.table, trace.steps
    count = len(steps.names)
    if not -count <= step < count:
        raise TraceError(f"there is no step {step}", f"The trace has {count} steps, counted from 0")
    step %= count
    length = int(table.end.max())
    is_shown = (table.kind > Kind.OTHER) & (table.kind < Kind.STEP)
    rows = np.flatnonzero(is_shown)
    depth, above = np.zeros(len(rows), np.int64), trace.parent[rows]
    while (above >= 0).any():
        depth += (above >= 0) & is_shown[above]
        above = take(trace.parent, above)
    order = np.lexsort((table.start[rows], depth, trace.track[rows]))
    rows, row = rows[order], (trace.track[rows] * (depth.max(initial=0) + 1) + depth)[order]
    inside = (table.start[rows] < steps.end[step]) & (table.end[rows] > steps.start[step])
    if inside.sum() > most // 2:
        inside[:] = False
    first, cell = np.arange(len(rows)), 0
    while len(first) > most and cell < length:
        cell = 2 * cell or 1 + length // (2 * most)
        # Events shorter than a cell, outside of the step, share a bar with those of their row that begin in
        # the same cell. No other event of the row lies between: it would be a cell long, or of the step.
        short = (trace.duration(rows) < cell) & ~inside
        joins = short[1:] & short[:-1] & (np.diff(table.start[rows] // cell) == 0) & (np.diff(row) == 0)
        first = np.flatnonzero(np.concatenate(([True], ~joins)))
    bars, texts = _bars(trace, rows, first)
    begins = np.flatnonzero(np.diff(row[first], prepend=-1))
    tracks, each = trace.track[rows[first[begins]]].tolist(), np.split(bars, begins[1:], axis=1)
    names = [clean(name.replace("ProfilerStep#", "step "), 60) for name in steps.names]
    return Lanes(
        duration=length,
        step=step,
        steps=(steps.start.tolist(), (steps.end - steps.start).tolist(), names),
        lanes=[
            _lane(trace, track, [columns.tolist() for _, columns in group])
            for track, group in itertools.groupby(zip(tracks, each, strict=False), lambda pair: pair[0])
        ],
        texts=texts,
    )


def _bars(trace: Trace, rows: Ints, first: Ints) -> tuple[Ints, list[str]]:
    """Bars that begin with these rows, int64[7, N], and the texts."""
    table, duration = trace.table, trace.duration(rows)
    events, kind = np.diff(np.append(first, len(rows))), table.kind[rows]
    by_length = np.lexsort((duration, np.repeat(np.arange(len(first)), events)))
    longest = rows[by_length[first + events - 1]]
    places = np.where(events == 1, trace.frame[longest], -1)
    codes, numbers = np.unique(np.concatenate(([-1], table.name[longest], places)), return_inverse=True)
    name, place = numbers[1:].reshape(2, -1)
    is_one_kind = np.minimum.reduceat(kind, first) == np.maximum.reduceat(kind, first)
    part = np.where(kind == Kind.COLLECTIVE, Kind.COMMUNICATION, kind)[first]
    start = table.start[rows[first]]
    length = np.maximum.reduceat(table.end[rows], first) - start
    busy = np.where(events > 1, np.add.reduceat(duration, first), 0)
    columns = start, length, busy, events, name, np.where(is_one_kind, part, 0), place
    return np.stack(columns), ["", *(clean(trace.texts[code], 120) for code in codes[1:].tolist())]


def _lane(trace: Trace, track: int, rows: list[Columns]) -> Lane:
    group, thread = divmod(track, 1 << 32)
    pid, tid = trace.texts[thread]
    label = trace.threads.get((str(pid), str(tid))) or f"thread {tid}"
    if group:
        gpu = "simulated GPU" if trace.simulated else "GPU"
        label = f"{gpu} {pid} stream {str(tid).removeprefix('stream ')}{' copies' if group == 2 else ''}"
    return Lane(label=clean(label, 60), kind=("thread", "stream", "copies")[group], rows=rows)


def interactive(window: Lanes) -> Interactive:
    """The timeline of a recording to zoom and pan in, opened at its step."""
    colours = [LOOKS.get(part, OTHER).colour for part in PARTS]
    used = sorted({number for lane in window.lanes for row in lane.rows for number in row[5]})
    words = [_WORDS.get(part, part) for part in PARTS]
    legend = {words[number]: colours[number] for number in used}
    shown = {**msgspec.to_builtins(window), "parts": words, "colours": colours}
    name = window.steps[2][window.step]
    markup = data.filled("timeline.jinja", legend=legend, name=name, data=shown)
    script = Path(__file__).with_name("timeline.js").read_text(encoding="utf-8")
    height = 270 + sum(15 * len(lane.rows) + 7 for lane in window.lanes)
    return Interactive(f"Timeline of {name}", markup, script, height)
