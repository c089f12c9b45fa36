"""The timeline of one step: rows for threads, streams and copies, and the data that its page draws."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from perfkit.errors import TraceError
from perfkit.show.units import clean
from perfkit.trace.columns import Columns, Kind
from perfkit.trace.intervals import Ints
from perfkit.trace.link import CallForest
from perfkit.trace.model import Bar, Lane, Lanes
from perfkit.trace.rank import Rank, Trace
from perfkit.trace.steps import is_collective

_COLOURS = {
    Kind.KERNEL: "kernel",
    Kind.MEMCPY: "memcpy",
    Kind.MEMSET: "memset",
    Kind.COMMUNICATION: "communication",
    Kind.RUNTIME: "runtime",
    Kind.LOADER: "dataloader",
    Kind.CPU_OP: "cpu_op",
    Kind.ANNOTATION: "annotation",
}
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
            f"there is no rank {rank}", f"The trace has {len(trace.ranks)} file(s), counted from 0"
        )
    chosen = trace.ranks[rank]
    at = _position(chosen, step)
    start, end = int(chosen.steps.start[at]), int(chosen.steps.end[at])
    columns = chosen.columns
    rows = columns.rows(*_COLOURS)
    rows = rows[(columns.start[rows] < end) & (columns.end[rows] > start)]
    longest = np.argsort(-columns.duration(rows), kind="stable")[: max(limit, 0)]
    shown = rows[np.sort(longest)]
    return Lanes(
        name=chosen.steps.names[at],
        start_us=start / 1e3,
        duration_us=(end - start) / 1e3,
        lanes=[_lane(chosen, *lane, zero=start) for lane in _grouped(chosen, shown)],
        phases=_phases(columns, start, end),
        omitted=len(rows) - len(shown),
    )


def _position(rank: Rank, step: int | str) -> int:
    names = rank.steps.names
    at = names.index(step) if step in names else step if isinstance(step, int) else len(names)
    if not -len(names) <= at < len(names):
        raise TraceError(f"there is no step {step!r}", f"Steps: {', '.join(names[:8]) or 'none'}")
    return at


def _grouped(rank: Rank, rows: Ints) -> Iterator[tuple[str, str, Ints]]:
    """Label, kind and rows of each lane: threads first, then streams, then copies of each device."""
    columns = rank.columns
    kinds = columns.kind[rows]
    stream, copies = kinds == Kind.KERNEL, np.isin(kinds, (Kind.MEMCPY, Kind.MEMSET))
    gpu = "simulated GPU" if rank.simulated else "GPU"
    for mask, kind in ((~stream & ~copies, "thread"), (stream, "stream"), (copies, "copies")):
        for thread in np.unique(columns.thread[rows[mask]]).tolist():
            pid, tid = columns.threads[thread]
            label = columns.labels.get((pid, tid)) or f"thread {tid}"
            if kind != "thread":
                label = f"{gpu} {pid} stream {tid.removeprefix('stream ')}"
            yield label + " copies" * (kind == "copies"), kind, rows[mask & (columns.thread[rows] == thread)]


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
    return _COLOURS[kind]


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


# ---------------------------------------------------------------- the page


@cache
def script() -> str:
    """The script that draws a timeline."""
    return Path(__file__).with_name("timeline.js").read_text(encoding="utf-8")


def height(window: Lanes) -> int:
    """Pixels of a frame that shows all rows, and what is above and below them."""
    return 270 + sum(15 * levels(lane) + 7 for lane in window.lanes)


def levels(lane: Lane) -> int:
    """How deep the bars of a lane are nested, from 1."""
    return 1 + max((bar.depth for bar in lane.bars), default=0)


def data(window: Lanes, colours: dict[str, str]) -> dict[str, Any]:
    """What the script draws: for each row starts and durations in µs, colours and names by number."""
    parts = list(colours)
    names: dict[str, int] = {}
    places: dict[str, int] = {}
    lanes: list[dict[str, Any]] = []
    for lane in window.lanes:
        rows: list[dict[str, list[float]]] = [{key: [] for key in "sdcnp"} for _ in range(levels(lane))]
        for bar in sorted(lane.bars, key=lambda bar: bar.start_us):
            row, place = rows[bar.depth], clean(bar.place, 120)
            row["s"].append(round(bar.start_us, 3))
            row["d"].append(round(bar.duration_us, 3))
            row["c"].append(parts.index(bar.colour))
            row["n"].append(names.setdefault(clean(bar.name, 120), len(names)))
            row["p"].append(places.setdefault(place, len(places)) if place else -1)
        lanes.append({"label": clean(lane.label, 60), "kind": lane.kind, "rows": rows})
    return {
        "name": clean(window.name, 60),
        "duration_us": window.duration_us,
        "omitted": window.omitted,
        "parts": colours,
        "names": list(names),
        "places": list(places),
        "lanes": lanes,
        "phases": msgspec.to_builtins(window.phases),
    }
