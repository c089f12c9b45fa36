"""Reads lanes from a trace: two of its steady steps. Device work belongs to the step of its launch."""

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from perfkit.additions.lanes.figures import Bar, DrawnSide
from perfkit.additions.shared.intervals import merge
from perfkit.additions.trace.events import KERNELS, Kind
from perfkit.additions.trace.formats import TraceError
from perfkit.additions.trace.table import Trace

_LEAST = 0.003  # of the steps: smaller gaps between bars of one batch are filled
_LEAST_OF_KERNELS = 0.0003  # the same for device kernels: there are hundreds, and their gaps add up
_MANY = 8  # times _LEAST: shorter launches between two waits for a full queue count as waits


def of_trace(path: str | Path, title: str, first: int = 1) -> DrawnSide:
    """Two steps of a recorded trace from `first` on; earlier steps may wait for work that was not recorded.

    Raises:
        TraceError: the trace has too few steps.
    """
    trace = Trace(path)
    begins = trace.steps.start
    if len(begins) < first + 2:
        what = f"{Path(path).name} has {len(begins)} steps, and lanes need {first + 2}"
        raise TraceError(what, "Record more steps, such as active=3")
    start, end = int(begins[first]), int(trace.steps.end[first + 1])
    rows = {"worker": _workers(trace, start, end), "host": [], "copy": [], "kernels": []}
    loads = _kind_of_fetch(trace)
    rows["host"] += _bars(trace, (Kind.DATALOADER,), loads, (start, end)) + _blocked(trace, start, end)
    rows["copy"] += _bars(trace, (Kind.MEMCPY,), "copy", (start, end))
    rows["kernels"] += _bars(trace, KERNELS if len(trace.device) else (Kind.CPU_OP,), "compute", (start, end))
    shown = {name: bars for name, bars in rows.items() if bars}
    note = "simulated" if trace.simulated else ""
    return DrawnSide(title=title, step_ms=(end - start) / 2e6, rows=shown, note=note)


def _kind_of_fetch(trace: Trace) -> str:
    """The kind of a fetch: without workers the host loads, with workers it waits."""
    names = (trace.texts[code] for code in set(trace.table.name[trace.rows(Kind.DATALOADER)].tolist()))
    return "load" if any("SingleProcess" in name for name in names) else "wait"


def _bars(trace: Trace, kinds: tuple[Kind, ...], what: str, window: tuple[int, int]) -> list[Bar]:
    """The events of some kinds as bars. Events of one step that nearly touch are joined."""
    rows = trace.rows(*kinds)
    begins, ends = trace.table.start[rows], trace.table.end[rows]
    launches = trace.launch[rows]
    at = np.where(launches >= 0, trace.table.start[launches], begins)
    steps = np.searchsorted(np.sort(trace.table.start[trace.rows(Kind.STEP)]), at, side="right") - 1
    start, end = window
    bars = []
    least = _LEAST_OF_KERNELS if what == "compute" and len(trace.device) else _LEAST
    for step in sorted(set(steps.tolist())):
        chosen = (steps == step) & (begins < end) & (ends > start)
        spans = merge(begins[chosen], ends[chosen], round(least * (end - start)))
        for began, ended in spans.pairs():
            number = step if step >= 0 else None  # launched before the recording
            awaited = "data" if what == "wait" else ""
            bars.append(Bar((began - start) / 1e6, (ended - start) / 1e6, what, number, words=awaited))
    return bars


def _blocked(trace: Trace, start: int, end: int) -> list[Bar]:
    """Launches and long calls. In a long call the host waits, or it is ahead and the driver's queue is full.

    A wait is for a copy from unpinned memory, for the loss scaler, or for something unknown.
    """
    calls = trace.table[trace.calls]
    least = round(_LEAST * (end - start))
    is_long = calls.end - calls.start > least
    with_copy = trace.launch[trace.matching(trace.device, "Pageable")]  # the driver first copies it itself
    only_queue = np.setdiff1d(trace.matching(trace.calls, "Launch|MemcpyAsync"), with_copy)
    is_ahead = is_long & np.isin(trace.calls, only_queue)
    awaited = _awaited(trace)
    long = list[tuple[str, str, float, float]]()
    for of in np.unique(awaited).tolist():
        chosen = is_long & ~is_ahead & (awaited == of)
        long += [("wait", of, *span) for span in merge(calls.start[chosen], calls.end[chosen], least).pairs()]
    ahead = merge(calls.start[is_ahead], calls.end[is_ahead], _MANY * least).pairs()
    long += [("ahead", "", *span) for span in ahead]
    launches = [
        ("launch", "", first, last)
        for first, last in merge(calls.start[~is_long], calls.end[~is_long], least).pairs()
        if not any(began <= first and last <= ended for _, _, began, ended in long)
    ]
    return [
        Bar((began - start) / 1e6, (ended - start) / 1e6, kind, words=of)
        for kind, of, began, ended in [*long, *launches]
        if began < end and ended > start
    ]


def _awaited(trace: Trace) -> npt.NDArray[np.str_]:
    """What each runtime call waits for, if it waits: `copy`, `scaler`, or empty if that is unknown."""
    calls = trace.calls
    awaited = np.full(len(calls), "", "U6")
    awaited[np.isin(calls, trace.launch[trace.matching(trace.device, "Pageable -> Device")])] = "copy"
    reads = trace.matching(trace.ops, "::(item|_local_scalar_dense)$")
    checks = trace.matching(trace.ops, "_amp_foreach_non_finite_check")  # the scaler reads after these
    begins = np.sort(trace.table.start[np.setdiff1d(trace.ops, reads)])
    before = np.searchsorted(begins, trace.table.start[calls])  # operators that do not read
    after_check = np.searchsorted(begins, trace.table.start[checks], side="right")
    awaited[np.isin(trace.op[calls], reads) & np.isin(before, after_check)] = "scaler"
    return awaited


def _workers(trace: Trace, start: int, end: int) -> list[Bar]:
    """The loads of simulated workers. An event's name has the batch's number, its thread the worker's."""
    table = trace.table
    bars = []
    for row in trace.rows(Kind.WORKER).tolist():
        began, ended = int(table.start[row]), int(table.end[row])
        batch = re.fullmatch(r"batch (\d{1,9})", trace.texts[table.name[row]])
        _, worker = trace.texts[table.thread[row]]
        if batch and isinstance(worker, int) and began < end and ended > start:
            bars.append(Bar((began - start) / 1e6, (ended - start) / 1e6, "load", int(batch[1]), worker))
    return bars
