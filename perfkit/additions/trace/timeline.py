"""The timeline of a trace: rows for threads, streams and copies, opened at one step.

Of a long recording, the events are shown that are nearest to the step.
"""

from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from perfkit.additions.intervals import Ints
from perfkit.additions.trace import data
from perfkit.additions.trace.events import Kind
from perfkit.additions.trace.formats import TraceError
from perfkit.additions.trace.table import Trace, take
from perfkit.show import style
from perfkit.show.document import Interactive
from perfkit.show.style import Look
from perfkit.show.units import clean

MOST = 100_000
"""Bars of a timeline: at most 35 bytes each in a page, which stays below 4 MB."""
PARTS = ("other", *(kind.name.lower() for kind in Kind if kind))
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


class Lane(Struct, frozen=True, kw_only=True):
    """Rows of bars by depth of nesting. `kind`: "thread", "stream" or "copies".

    A row has columns, in order of time: starts and durations in ns, and numbers of the name, the part and the
    place among `texts`, `PARTS` and `texts`.
    """

    label: str
    kind: str
    rows: list[list[list[int]]]


class TimelineLanes(Struct, frozen=True, kw_only=True):
    """What is shown of a recording, from when to when in ns, and how many events are not.

    `step`: at which of `steps` it is opened.
    """

    start: int
    end: int
    left_out: int
    step: int
    steps: tuple[list[int], list[int], list[str]]
    """Starts and durations in ns, and names, of those that are shown whole."""
    lanes: list[Lane]
    texts: list[str]
    """Names, and places: the user's `file.py:line` that led to an event; the first one is empty."""


def lanes(trace: Trace, step: int = 0, most: int = MOST) -> TimelineLanes:
    """The rows of a trace, opened at the step in this position; of more than `most` events the nearest ones.

    Raises:
        TraceError: there is no such step.
    """
    table, steps, count = trace.table, trace.steps, len(trace.steps.names)
    if not -count <= step < count:
        raise TraceError(f"there is no step {step}", f"The trace has {count} steps, counted from 0")
    opened, closed, last = int(steps.start[step]), int(steps.end[step]), int(table.end.max())
    is_shown = (table.kind > Kind.OTHER) & (table.kind < Kind.STEP)
    rows, reach = np.flatnonzero(is_shown), last
    left_out = max(len(rows) - most, 0)
    if left_out:
        away = np.maximum(opened - table.end[rows], table.start[rows] - closed).clip(min=0)
        is_host = table.kind[rows] > Kind.MEMSET
        nearest = np.lexsort((-trace.duration(rows), is_host, away))[:most]
        rows, reach = np.sort(rows[nearest]), int(away[nearest[-1]])
    start, end = max(opened - reach, 0), min(closed + reach, last)
    whole = np.flatnonzero((steps.start >= start) & (steps.end <= end))
    rows = rows[np.argsort(table.start[rows], kind="stable")]
    texts, bars = _bars(trace, rows)
    track, depth, above = trace.track[rows], np.zeros(len(rows), np.int64), trace.parent[rows]
    while (above >= 0).any():
        depth += (above >= 0) & is_shown[above]
        above = take(trace.parent, above)
    names = [clean(steps.names[at].replace("ProfilerStep#", "step "), 60) for at in whole]
    return TimelineLanes(
        start=start,
        end=end,
        left_out=left_out,
        step=int(np.searchsorted(whole, step % count)),
        steps=(steps.start[whole].tolist(), (steps.end - steps.start)[whole].tolist(), names),
        lanes=[
            _lane(trace, each, bars[:, track == each], depth[track == each])
            for each in np.unique(track).tolist()
        ],
        texts=texts,
    )


def _bars(trace: Trace, rows: Ints) -> tuple[list[str], Ints]:
    """The texts, and the columns of a lane's rows, int64[5, N]."""
    kind, places = trace.table.kind[rows], trace.frame[rows]
    codes = np.concatenate(([-1], trace.table.name[rows], places))
    distinct, numbers = np.unique(codes, return_inverse=True)
    name, place = numbers[1:].reshape(2, -1)
    part = np.where(kind == Kind.COLLECTIVE, Kind.COMMUNICATION, kind)
    texts = ["", *(clean(trace.texts[code], 120) for code in distinct[1:].tolist())]
    return texts, np.stack((trace.table.start[rows], trace.duration(rows), name, part, place))


def _lane(trace: Trace, track: int, bars: Ints, depth: Ints) -> Lane:
    """The lane of a track: its bars int64[5, N], and the depth of each."""
    group, thread = divmod(track, 1 << 32)
    pid, tid = trace.texts[thread]
    label = trace.threads.get((str(pid), str(tid))) or f"thread {tid}"
    if group:
        gpu = "simulated GPU" if trace.simulated else "GPU"
        label = f"{gpu} {pid} stream {str(tid).removeprefix('stream ')}{' copies' if group == 2 else ''}"
    rows = [bars[:, depth == level].tolist() for level in range(depth.max() + 1)]
    return Lane(label=clean(label, 60), kind=("thread", "stream", "copies")[group], rows=rows)


def interactive(window: TimelineLanes) -> Interactive:
    """The timeline of a recording to zoom and pan in, opened at its step."""
    colours = [LOOKS.get(part, OTHER).colour for part in PARTS]
    used = sorted({number for lane in window.lanes for row in lane.rows for number in row[3]})
    words = [_WORDS.get(part, part) for part in PARTS]
    legend = {words[number]: colours[number] for number in used}
    shown = {**msgspec.to_builtins(window), "parts": words, "colours": colours}
    name = window.steps[2][window.step]
    markup = data.filled("timeline.jinja", legend=legend, name=name, data=shown)
    script = Path(__file__).with_name("timeline.js").read_text(encoding="utf-8")
    height = 270 + sum(15 * len(lane.rows) + 7 for lane in window.lanes)
    return Interactive(f"Timeline of {name}", markup, script, height)
