"""Memory over time from `[memory]` events: allocated, reserved, the peak and its owners."""

from itertools import pairwise
from typing import Any

import numpy as np

from perfkit.trace.columns import Kind
from perfkit.trace.intervals import Floats, Ints
from perfkit.trace.link import Links
from perfkit.trace.tables import group

POINTS = 500
OWNERS = 20


def memory(links: Links) -> dict[str, Any] | None:
    """A curve and its peak per device; None if the profiler ran without `profile_memory`."""
    rows, events = links.columns.rows(Kind.MEMORY), links.columns.memory
    if not len(rows):
        return None
    order = np.argsort(links.columns.start[rows], kind="stable")
    rows, events = rows[order], events[order]
    devices = []
    for kind, index in np.unique(events[:, :2], axis=0).tolist():
        mine = (events[:, 0] == kind) & (events[:, 1] == index)
        name = "cpu" if kind == 0 else f"cuda:{index}" if kind == 1 else f"device type {kind}:{index}"
        devices.append({"device": name, **_device(links, rows[mine], events[mine])})
    return {"devices": devices}


def _device(links: Links, rows: Ints, events: Ints) -> dict[str, Any]:
    """Without running totals in the file (older torch, CPU) the curve is relative to its start."""
    change, address = events[:, 2], events[:, 3]
    totals, reserved = np.maximum(events[:, 4:], 0).astype(np.float64).T
    absolute = bool(totals.any())
    level = totals if absolute else np.cumsum(change.astype(np.float64))
    peak = int(level.argmax())
    shown = _thinned(level)
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
        "owners_at_peak": _owners(links, rows[: peak + 1], change[: peak + 1], address[: peak + 1]),
    }


def _thinned(level: Floats) -> Ints:
    """At most `POINTS` points of a curve: the highest of each stretch, so that no peak is lost."""
    if len(level) <= POINTS:
        return np.arange(len(level))
    edges = np.linspace(0, len(level), POINTS + 1).astype(np.int64)
    return np.array([start + int(level[start:end].argmax()) for start, end in pairwise(edges.tolist())])


def _owners(links: Links, rows: Ints, change: Ints, address: Ints) -> list[dict[str, Any]] | None:
    """Operators whose blocks are allocated at the peak, by bytes; None if the file has no addresses."""
    if (address < 0).any():
        return None
    alive: dict[int, int] = {}
    for position, (place, growth) in enumerate(zip(address.tolist(), change.tolist(), strict=True)):
        if growth > 0:
            alive[place] = position
        else:
            alive.pop(place, None)
    at = np.array(list(alive.values()), np.int64)
    groups = group(links.op_names(links.ops.innermost(rows[at])))
    sizes = groups.sum(change[at].astype(np.float64))
    owners = sorted(zip(groups.keys, sizes, groups.count(), strict=True), key=lambda row: -row[1])
    return [{"operator": name, "bytes": size, "blocks": count} for name, size, count in owners[:OWNERS]]
