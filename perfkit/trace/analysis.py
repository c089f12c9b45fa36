"""Everything that is read out of a trace: steps, device figures, idle time, memory."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from perfkit.trace import tables
from perfkit.trace.diagnosis import check
from perfkit.trace.intervals import Floats, Ints, gaps, merge, partition, union, weighted
from perfkit.trace.model import Analysis, Idle, Step
from perfkit.trace.rank import KERNELS, Kind, Paths, Rank, Trace, load
from perfkit.trace.reader import Device
from perfkit.trace.tables import WAITS, tensor_core

PARTS = ("kernel", "memcpy", "memset", "communication", "runtime", "dataloader", "cpu_op", "other")
DEVICE_PARTS = PARTS[:3] + PARTS[4:5]
CAUSES = ("queued", "data", "allocator", "gc", "copy", "synchronisation", "launch", "end_of_step")
"""Of idle time, in order of priority: what the host did while the device had nothing to do."""
_ALLOCATES = (
    r"^(cuda|hip|cuMem)(Malloc|Free|HostAlloc|HostMalloc|HostRegister|HostUnregister|Alloc|Create|Map|Unmap)"
)
_POINTS = 500


def analyse(trace: Trace | Paths) -> Analysis:
    """Everything of a trace; several ranks are added up, and a mean is over all steps of all ranks."""
    ranks = (trace if isinstance(trace, Trace) else load(trace)).ranks
    health = [problem for rank in ranks for problem in check(rank)]
    spoiled = {figure for problem in health for figure in problem.spoils}
    has_device = any(len(rank.device) for rank in ranks)

    def parts(name: str, values: Floats) -> dict[str, float | None]:
        return {
            part: None if name in spoiled or (part in DEVICE_PARTS and not has_device) else value
            for part, value in zip(PARTS, values.tolist(), strict=False)
        }

    steps, exposed, hidden = list[Step](), np.zeros(8), np.zeros(7)
    totals: Counter[str] = Counter()
    for rank, number in zip(ranks, _numbers(ranks), strict=True):
        start, end = rank.steps.start, rank.steps.end
        shares = partition(rank.layers, start, end)
        exposed += shares.sum(axis=1) / 1e3
        hidden += np.array([rank.steps.length(layer) for layer in rank.layers]) / 1e3
        steps += tables.structs(
            Step,
            name=rank.steps.names,
            rank=[number] * len(start),
            start_us=start / 1e3,
            duration_us=(end - start) / 1e3,
            breakdown_us=[parts("breakdown_us", row / 1e3) for row in shares.T],
        )
        totals.update(_device_sums(rank) if has_device else {})
    count = len(steps) or 1
    figures = {
        "mean_step_us": float(np.mean([step.duration_us for step in steps])) if steps else None,
        "gpu_utilization": _ratio(totals, "busy", "step"),
        "est_sm_efficiency": _ratio(totals, "sm", "step"),
        "est_achieved_occupancy": _ratio(totals, "occupancy", "occupancy_time"),
        "tensor_core": _tensor_cores(totals),
    }
    copies = None if "gpu_utilization" in spoiled else _ratio(totals, "with_copies", "step")
    return Analysis(
        files=[rank.path for rank in ranks],
        device={**_device(ranks, has_device), "gpu_utilization_with_copies": copies},
        health=health,
        steps=steps,
        mean_us=parts("mean_us" if steps else "", exposed / count),
        exposed_and_hidden_us=parts("exposed_and_hidden_us", hidden / count),
        **{name: None if name in spoiled else figure for name, figure in figures.items()},  # type: ignore[arg-type]
        operators=tables.operators(ranks, has_device),
        kernels=tables.kernels(ranks),
        transfers=tables.transfers(ranks, count),
        syncs=tables.syncs(ranks, count) if has_device else [],
        idle=_idle(ranks, count) if has_device and steps and "idle" not in spoiled else [],
        communication=_communication(ranks, count),
        memory=_memory(ranks[0]),
    )


def _numbers(ranks: Sequence[Rank]) -> list[int]:
    named = [rank.file.head.distributedInfo.rank for rank in ranks]
    return [at if number is None else number for at, number in enumerate(named)]


def _ratio(totals: Counter[str], part: str, entire: str) -> float | None:
    return totals[part] / totals[entire] if part in totals and totals[entire] else None


def _tensor_cores(totals: Counter[str]) -> dict[str, float] | None:
    """Shares of kernel time within the steps; None without kernels."""
    time = {answer: float(totals[answer]) for answer in ("yes", "no", "unknown")}
    return {answer: ns / sum(time.values()) for answer, ns in time.items()} if any(time.values()) else None


def _device(ranks: Sequence[Rank], has_device: bool) -> dict[str, Any]:
    """The device's description, and figures beside the main ones."""
    first, head = ranks[0], ranks[0].file.head
    used = sorted({index for rank in ranks for index in rank.table.gpu[rank.device].tolist() if index >= 0})
    index = used[0] if used else 0
    gpu = next((device for device in head.deviceProperties if device.id == index), Device())
    kind = "rocm" if len(first.matching(first.calls, "^hip")) else "cuda"
    known = kind == "cuda" and None not in (gpu.computeMajor, gpu.computeMinor)
    loaders = {code for rank in ranks for code in rank.table.name[rank.rows(Kind.DATALOADER)].tolist()}
    return {
        "kind": kind if has_device else "cpu",
        "name": gpu.name,
        "compute_capability": f"{gpu.computeMajor}.{gpu.computeMinor}" if has_device and known else None,
        "multiprocessors": gpu.numSms,
        "memory_bytes": gpu.totalGlobalMem,
        "used": used,
        "loaders": sorted(first.texts.each[code] for code in loaders),
        "ranks": _numbers(ranks),
        "reason": None if has_device else "no accelerator in this trace",
        "launch": _launches(first),
        "simulated": head.simulated,
    }


def _device_sums(rank: Rank) -> dict[str, float]:
    """Sums over the steps S in ns, to be added up over ranks before any ratio; absent: not recorded.

    `busy` |K∩S|, `with_copies`, `sm` Σ min(blocks/SM, 1)·d (overlaps summed, capped at 1),
    `occupancy` Σ OCC·d and its `occupancy_time` Σ d, Tensor Core time by `yes`, `no`, `unknown`.
    """
    steps, kernels = rank.steps, rank.table[rank.rows(*KERNELS)]
    sums: Counter[str] = Counter(
        step=steps.total,
        busy=steps.length(rank.busy(*KERNELS)),
        with_copies=steps.length(rank.union(rank.device)),
    )
    time = merge(steps.start, steps.end).within(kernels.start, kernels.end)
    if len(sized := kernels[kernels.blocks > 0]):
        zero = sized.start.min()  # floats hold nanoseconds only near zero
        times, area = weighted(sized.start - zero, sized.end - zero, sized.blocks)
        sums["sm"] = np.diff(np.interp([steps.start - zero, steps.end - zero], times, area), axis=0).sum()
    measured = ~np.isnan(kernels.occupancy)
    if measured.any():
        sums["occupancy"] = (kernels.occupancy * time)[measured].sum()
        sums["occupancy_time"] = time[measured].sum()
    per_name = np.bincount(kernels.name, time)
    for name in np.flatnonzero(per_name).tolist():
        sums[tensor_core(rank.texts.each[name])] += per_name[name]
    return {key: float(value) for key, value in sums.items()}


def _launches(rank: Rank) -> dict[str, Any] | None:
    """Launch delay (launch start to kernel start, µs) and how many kernels wait in the queue."""
    rows = rank.launched[np.isin(rank.table.kind[rank.launched], KERNELS)]
    if not len(rows):
        return None
    kernel, call = rank.table[rows], rank.table[rank.launch[rows]]
    moments = np.concatenate((call.start, kernel.start))
    order = np.argsort(moments, kind="stable")
    queue = np.cumsum(np.repeat([1, -1], len(rows))[order])[:-1]
    spans = np.diff(moments[order])
    return {
        "kernels": len(rows),
        "delay_median_us": float(np.median(np.maximum(kernel.start - call.start, 0)) / 1e3),
        "queue_mean": float((queue * spans).sum() / spans.sum()) if spans.sum() else None,
        "kernels_shorter_than_launch": float((kernel.end - kernel.start < call.end - call.start).mean()),
    }


def _idle(ranks: Sequence[Rank], steps: int) -> list[Idle]:
    """All causes with any time, over the ranks, the longest first; `steps` of all ranks together."""
    total = np.sum([_idle_sums(rank) for rank in ranks], axis=0)
    rows = tables.structs(
        Idle,
        cause=CAUSES,
        total_us=total / 1e3,
        us_per_step=total / 1e3 / steps,
        share_of_step=total / sum(rank.steps.total for rank in ranks),
    )
    return sorted((row for row in rows if row.total_us), key=lambda row: -row.total_us)


def _idle_sums(rank: Rank) -> Ints:
    """Divides each gap in the device's activity among the causes, by what the host was doing; ns of each.

    `launch` is host code of any kind before the step's last device event; what remains after that event is
    `end_of_step`. `queued` is a gap before device work that had been launched before the gap began: latency
    of the device between kernels, not of the host.
    """
    steps, calls, busy = rank.steps, rank.calls, rank.union(rank.device)
    waits = rank.matching(calls, WAITS)
    host = (
        rank.rows(Kind.DATALOADER),
        rank.matching(calls, _ALLOCATES),
        rank.matching(rank.rows(Kind.PYTHON), r"^Python GC$|gc\.collect>$"),
        np.setdiff1d(rank.matching(calls, "(?i)memcpy"), waits),
        waits,
    )
    last = np.searchsorted(busy.end, steps.end, "right")
    last_end = np.clip(np.concatenate((steps.start[:1], busy.end))[last], steps.start, steps.end)
    start, end = gaps(union((busy, merge(steps.end[:-1], steps.start[1:]))), steps.start[0], steps.end[-1])
    queued = _queued(rank, start, end)
    rest = partition([*map(rank.union, host), merge(steps.start, last_end)], start, end)
    return np.concatenate(([(end - start)[queued].sum()], rest[:, ~queued].sum(axis=1)))


def _queued(rank: Rank, start: Ints, end: Ints) -> Any:
    """Whether the device event that ends a gap had been launched before the gap began."""
    table, order = rank.table, np.argsort(rank.table.start[rank.device], kind="stable")
    device = rank.device[order]
    at = np.searchsorted(table.start[device], end)
    launch = np.concatenate((rank.launch[device], [-1]))[at]
    return (launch >= 0) & (table.start[launch] <= start)


def _communication(ranks: Sequence[Rank], steps: int) -> dict[str, Any] | None:
    """Device time of collectives per step; None if there was no communication at all.

    Exposed: what collective kernels add to the union of all other kernels. Without device collectives (CPU,
    gloo) the times are None: the host's marks show when a call was made, not when data moved.
    """
    if not any(len(rank.rows(Kind.COLLECTIVE, Kind.COMMUNICATION)) for rank in ranks):
        return None
    total = exposed = None
    if recorded := [rank for rank in ranks if len(rank.rows(Kind.COLLECTIVE))]:
        total = sum(rank.steps.length(rank.busy(Kind.COLLECTIVE)) for rank in recorded) / 1e3 / steps
        either = sum(rank.steps.length(rank.busy(*KERNELS)) for rank in recorded)
        exposed = (either - sum(rank.steps.length(rank.layers[0]) for rank in recorded)) / 1e3 / steps
    return {
        "backend": ranks[0].file.head.distributedInfo.backend,
        "world_size": ranks[0].file.head.distributedInfo.world_size,
        "total_us_per_step": total,
        "exposed_us_per_step": exposed,
        "overlapped_us_per_step": None if total is None or exposed is None else total - exposed,
        "waiting_us_per_step": _waiting(ranks, steps),
    }


def _waiting(ranks: Sequence[Rank], steps: int) -> float | None:
    """A collective moves data only once the last rank has joined: the rest of its time is waiting.

    The k-th collective of every rank is the same one; the shortest of them is the transfer. None with
    one rank, or where the ranks recorded different collectives.
    """
    tables = [np.sort(rank.table[rank.rows(Kind.COLLECTIVE)], order="start", kind="stable") for rank in ranks]
    names = [table["name"].tolist() for table in tables]
    if len(ranks) < 2 or not names[0] or any(other != names[0] for other in names):
        return None
    times = np.stack([table["end"] - table["start"] for table in tables])
    return float((times - times.min(axis=0)).sum() / 1e3 / steps)


def _memory(rank: Rank) -> dict[str, Any] | None:
    """Memory over time by device, from `[memory]` events; None if they were not recorded."""
    time = rank.table.start[rank.rows(Kind.MEMORY)]
    if not len(time):
        return None
    order = np.argsort(time, kind="stable")
    time, events = time[order] / 1e3, rank.memory[order]
    devices = []
    for kind, index in np.unique(events[:, :2], axis=0).tolist():
        here = (events[:, 0] == kind) & (events[:, 1] == index)
        name = "cpu" if kind == 0 else f"cuda:{index}" if kind == 1 else f"device type {kind}:{index}"
        devices.append({"device": name, **_curve(time[here], events[here, 2:])})
    return {"devices": devices}


def _curve(time: Floats, events: Ints) -> dict[str, Any]:
    """Without running totals in the file (older torch, CPU) the curve is relative to its start."""
    totals, reserved = np.maximum(events[:, 1:], 0).astype(np.float64).T
    relative = not totals.any()
    level = np.cumsum(events[:, 0].astype(np.float64)) if relative else totals
    top, shown = int(level.argmax()), np.arange(len(level))
    if len(level) > _POINTS:  # the highest of each stretch, so that no peak is lost
        edges = np.linspace(0, len(level), _POINTS + 1).astype(np.int64).tolist()
        shown = np.array([low + int(level[low:high].argmax()) for low, high in pairwise(edges)])
    return {
        "relative": relative,
        "peak_allocated_bytes": None if relative else float(level[top]),
        "peak_increase_bytes": max(float(level[top]), 0.0) if relative else None,
        "peak_reserved_bytes": float(reserved.max()) if reserved.any() else None,
        "peak_at_us": float(time[top]),
        "time_us": time[shown].tolist(),
        "allocated_bytes": level[shown].tolist(),
        "reserved_bytes": reserved[shown].tolist() if reserved.any() else None,
    }
