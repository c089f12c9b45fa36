"""Collectives: how much of their time overlaps with computation, and how long ranks wait for each other."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from perfkit.trace.columns import Kind
from perfkit.trace.intervals import Floats, Ints
from perfkit.trace.link import Links
from perfkit.trace.rank import Rank
from perfkit.trace.steps import is_collective
from perfkit.trace.tables import group


def communication(ranks: Sequence[Rank]) -> dict[str, Any] | None:
    """Over the ranks: exposed and overlapped device time, a row per collective, waiting for other ranks.

    Without device collectives (CPU, gloo) the times are None: the host's marks show when a call was made,
    not when data moved. None if there was no communication at all.
    """
    rows, links = [_rank(rank) for rank in ranks], [rank.links for rank in ranks]
    if not any(row["calls"] for row in rows):
        return None
    steps = sum(len(rank.steps.names) for rank in ranks) or 1
    step_us = sum(rank.steps.total for rank in ranks) / 1e3 / steps
    total, exposed = (_mean(rows, key, steps) for key in ("device_us", "exposed_us"))
    return {
        "backend": ranks[0].world.backend,
        "world_size": ranks[0].world.world_size,
        "total_us_per_step": total,
        "exposed_us_per_step": exposed,
        "overlapped_us_per_step": total - exposed if total is not None and exposed is not None else None,
        "exposed_share_of_step": exposed / step_us if exposed is not None and step_us else None,
        "waiting_us_per_step": _waiting(links, steps),
        "collectives": _collectives(links),
        "ranks": rows,
    }


def _mean(rows: list[dict[str, Any]], key: str, steps: int) -> float | None:
    """Per step, over the ranks that recorded it."""
    values = [row[key] for row in rows if row[key] is not None]
    return sum(values) / steps if values else None


def _rank(rank: Rank) -> dict[str, Any]:
    """Sums over the rank's steps. Exposed: what collective kernels add to the union of all other kernels."""
    calls, kernels = len(rank.links.columns.rows(Kind.COMMUNICATION)), len(_kernels(rank.links))
    act, steps = rank.activity, rank.steps
    exposed = steps.length(act.kernels) - steps.length(act.layers[0])
    return {
        "rank": rank.world.rank,
        "calls": max(calls, kernels),
        "device_us": steps.length(act.communication) / 1e3 if kernels else None,
        "exposed_us": exposed / 1e3 if kernels else None,
    }


def _kernels(links: Links) -> Ints:
    """Rows of collective kernels by start time."""
    rows = links.columns.named(links.columns.rows(Kind.KERNEL), is_collective)
    return rows[np.argsort(links.columns.start[rows], kind="stable")]


def _collectives(ranks: list[Links]) -> list[dict[str, Any]]:
    """By name: device time where it was recorded, else the host's marks."""
    names, times = list[str](), list[Floats]()
    for links in ranks:
        rows = device if len(device := _kernels(links)) else links.columns.rows(Kind.COMMUNICATION)
        names += links.columns.texts(rows)
        times.append(links.columns.duration(rows) / 1e3)
    groups = group(names)
    table = zip(groups.sum(np.concatenate(times)), groups.keys, groups.count(), strict=True)
    return [{"name": name, "calls": n, "total_us": us} for us, name, n in sorted(table, reverse=True)]


def _waiting(ranks: list[Links], steps: int) -> float | None:
    """A collective moves data only once the last rank has joined: the rest of its time is waiting.

    The k-th collective of every rank is the same one; the shortest of them is the transfer. None with
    one rank, or where the ranks recorded different collectives.
    """
    rows = [_kernels(links) for links in ranks]
    names = [links.columns.texts(mine) for links, mine in zip(ranks, rows, strict=True)]
    if len(ranks) < 2 or not names[0] or any(other != names[0] for other in names):
        return None
    times = np.stack([links.columns.duration(mine) for links, mine in zip(ranks, rows, strict=True)])
    return float((times - times.min(axis=0)).sum() / 1e3 / steps)
