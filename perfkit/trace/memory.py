"""Memory over time from `[memory]` events: allocated, reserved, the peak and what it consists of."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from perfkit.trace.columns import Args, Kind
from perfkit.trace.intervals import Ints
from perfkit.trace.link import Links
from perfkit.trace.tables import group

POINTS = 500
OWNERS = 20


def memory(links: Links) -> dict[str, Any] | None:
    """A curve and its peak per device; None if the profiler ran without `profile_memory`."""
    rows = links.columns.rows(Kind.MEMORY)
    if not len(rows):
        return None
    events = links.columns.memory
    codes = np.array([event.device_type % 256 * 4096 + event.device_id % 4096 for event in events], np.int64)
    kinds, of_row = np.unique(codes, return_inverse=True)
    devices = []
    for number, (kind, index) in enumerate(divmod(code, 4096) for code in kinds.tolist()):
        mine = np.flatnonzero(of_row == number)
        mine = mine[np.argsort(links.columns.start[rows[mine]], kind="stable")]
        name = "cpu" if kind == 0 else f"cuda:{index}" if kind == 1 else f"device type {kind}:{index}"
        devices.append({"device": name, **_device(links, rows[mine], [events[i] for i in mine.tolist()])})
    return {"devices": devices}


def _device(links: Links, rows: Ints, events: list[Args]) -> dict[str, Any]:
    """Without running totals in the file (older torch, CPU) the curve is relative to its start."""
    change = np.array([a.change for a in events], np.float64)
    totals = np.array([max(a.allocated, 0) for a in events], np.float64)
    reserved = np.array([max(a.reserved, 0) for a in events], np.float64)
    absolute = bool(totals.any())
    level = totals if absolute else np.cumsum(change)
    peak = int(level.argmax())
    shown = _thin(level)
    start = links.columns.start[rows]
    return {
        "relative": not absolute,
        "peak_allocated_bytes": float(level[peak]) if absolute else None,
        "peak_increase_bytes": None if absolute else max(float(level[peak]), 0.0),
        "peak_reserved_bytes": float(reserved.max()) if reserved.any() else None,
        "peak_at_us": float(start[peak] / 1e3),
        "time_us": (start[shown] / 1e3).tolist(),
        "allocated_bytes": level[shown].tolist(),
        "reserved_bytes": reserved[shown].tolist() if reserved.any() else None,
        "owners_at_peak": _owners(links, rows[: peak + 1], events[: peak + 1]),
    }


def _thin(level: np.ndarray[Any, np.dtype[np.float64]]) -> Ints:
    """At most `POINTS` points of a curve: the highest of each stretch, so that no peak is lost."""
    if len(level) <= POINTS:
        return np.arange(len(level))
    edges = np.linspace(0, len(level), POINTS + 1).astype(np.int64)
    return np.array([a + int(level[a:b].argmax()) for a, b in pairwise(edges.tolist())])


def _owners(links: Links, rows: Ints, events: list[Args]) -> list[dict[str, Any]] | None:
    """Operators whose blocks are allocated at the peak, by bytes; None if the file has no addresses."""
    alive: dict[int, int] = {}
    for position, event in enumerate(events):
        if event.address < 0:
            return None
        if event.change > 0:
            alive[event.address] = position
        else:
            alive.pop(event.address, None)
    at = np.array(list(alive.values()), np.int64)
    held = np.array([events[i].change for i in at.tolist()], np.float64)
    groups = group(links.op_names(links.ops.innermost(rows[at])))
    owners = sorted(zip(groups.keys, groups.sum(held), groups.count(), strict=True), key=lambda row: -row[1])
    return [{"operator": name, "bytes": size, "blocks": count} for name, size, count in owners[:OWNERS]]
