"""Why the device was idle: idle time within steps, divided exactly among causes."""

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from perfkit.trace.columns import Columns, Kind
from perfkit.trace.intervals import Ints, Spans, gaps, merge, partition, union
from perfkit.trace.link import Links
from perfkit.trace.model import Idle
from perfkit.trace.rank import Rank
from perfkit.trace.steps import Activity, Steps
from perfkit.trace.tables import is_wait

# In order of priority: what the host did while the device had nothing to do.
CAUSES = ("queued", "data", "allocator", "gc", "copy", "synchronisation", "launch", "end_of_step")
_ALLOCATES = re.compile(
    r"^(cuda|hip|cuMem)(Malloc|Free|HostAlloc|HostMalloc|HostRegister|HostUnregister|Alloc|Create|Map|Unmap)"
)


def idle(ranks: Sequence[Rank], steps: int) -> list[Idle]:
    """All causes with any time, over the ranks, the longest first; `steps` of all ranks together."""
    sums = np.array([_sums(rank.links, rank.steps, rank.activity) for rank in ranks])
    whole = sum(rank.steps.total for rank in ranks)
    rows = [
        Idle(
            cause=cause, total_us=total / 1e3, us_per_step=total / 1e3 / steps,
            share_of_step=total / whole, gaps=count, longest_us=longest / 1e3,
        )
        for cause, total, count, longest in zip(
            CAUSES, *sums[:, :2].sum(axis=0).tolist(), sums[:, 2].max(axis=0).tolist(), strict=True
        )
        if total
    ]  # fmt: skip
    return sorted(rows, key=lambda row: -row.total_us)


def _sums(links: Links, steps: Steps, act: Activity) -> tuple[Ints, Ints, Ints]:
    """Divides each gap in the device's activity among the causes, by what the host was doing.

    `launch` is host code of any kind before the step's last device event; what remains after that event is
    `end_of_step`. `queued` is a gap before device work that had been launched before the gap began: latency
    of the device between kernels, not of the host. A gap is counted for the cause with the largest part.

    Returns:
        int64[8] each, per cause over all steps: total ns, number of gaps, longest in ns.
    """
    columns = links.columns
    ends = np.searchsorted(act.device.end, steps.end, "right") - 1
    last = np.clip(act.device.end[ends], steps.start, steps.end) if act.device.total else steps.start
    last = np.where(ends >= 0, last, steps.start)
    start, end = _gaps(act.device, steps)
    queued = _queued(links, start, end)
    rest = partition([*_layers(columns), merge(steps.start, last)], start, end)
    shares = np.concatenate(([np.where(queued, end - start, 0)], np.where(queued, 0, rest)))
    cause = shares.argmax(axis=0)
    longest = np.zeros(len(CAUSES), np.int64)
    np.maximum.at(longest, cause, shares.max(axis=0, initial=0))
    return shares.sum(axis=1), np.bincount(cause, minlength=len(CAUSES)), longest


def _gaps(device: Spans, steps: Steps) -> tuple[Ints, Ints]:
    """The steps minus the device's activity: gap starts and ends, ns."""
    if not steps.names:
        return steps.start, steps.end
    between = merge(steps.end[:-1], steps.start[1:])
    return gaps(union((device, between)), int(steps.start[0]), int(steps.end[-1]))


def _queued(links: Links, start: Ints, end: Ints) -> npt.NDArray[np.bool_]:
    """Whether the device event that ends a gap had been launched before the gap began."""
    columns = links.columns
    order = np.argsort(columns.start[links.device], kind="stable")
    if not len(order):
        return np.zeros(len(start), bool)
    begins = columns.start[links.device[order]]
    at = np.searchsorted(begins, end, "left")
    launch = links.launch[order][np.minimum(at, len(order) - 1)]
    return (at < len(order)) & (launch >= 0) & (columns.start[launch] <= start)


def _layers(columns: Columns) -> list[Spans]:
    """What the host did, for each cause but `queued` and the last two."""
    calls, python = columns.rows(Kind.RUNTIME), columns.rows(Kind.PYTHON)
    layers = (
        columns.rows(Kind.LOADER),
        columns.named(calls, lambda text: _ALLOCATES.match(text) is not None),
        columns.named(python, lambda text: text == "Python GC" or text.endswith("gc.collect>")),
        columns.named(calls, lambda text: "memcpy" in text[:99].lower() and not is_wait(text)),
        columns.named(calls, is_wait),
    )
    return [columns.union(rows) for rows in layers]
