"""Everything that is read out of a trace: steps, device figures, idle time, communication."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from perfkit.trace import tables
from perfkit.trace.intervals import Floats, Ints, gaps, merge, partition, union, weighted
from perfkit.trace.model import Analysis, Health, Idle, Step, diagnose
from perfkit.trace.reader import Device
from perfkit.trace.table import KERNELS, LAYERS, WHOLE, Kind, Trace
from perfkit.trace.tables import WAITS, tensor_core

PARTS = (*LAYERS, "other")
_HOST_PARTS = ("communication", "dataloader", "cpu_op", "other")
_ALLOCATES = (
    r"^(cuda|hip|cuMem)(Malloc|Free|HostAlloc|HostMalloc|HostRegister|HostUnregister|Alloc|Create|Map|Unmap)"
)


def analyse(trace: Trace | str | Path) -> Analysis:
    """Everything of a trace, or of a file; a mean is over all steps."""
    if not isinstance(trace, Trace):
        trace = Trace(trace)
    steps, health, has_device = trace.steps, [*check(trace)], len(trace.device) > 0
    spoiled = {figure for problem in health for figure in problem.spoils}
    known = () if "mean_us" in spoiled else PARTS if has_device else _HOST_PARTS

    def parts(us: Floats) -> dict[str, float | None]:
        values = zip(PARTS, us.tolist(), strict=False)
        return {part: value if part in known else None for part, value in values}

    duration, count = (steps.end - steps.start) / 1e3, len(steps.names) or 1
    shares = partition(trace.layers, steps.start, steps.end)
    hidden = np.array([steps.common(layer) for layer in trace.layers])
    rank = trace.file.head.distributedInfo.get("rank") or 0
    figures = {
        "mean_step_us": float(duration.mean()) if len(duration) else None,
        "idle": _idle(trace) if has_device and len(duration) else [],
        **_use(trace),
    }
    figures |= {name: [] if name == "idle" else None for name in spoiled & figures.keys()}
    analysis = Analysis(
        files=[str(trace.file.path)],
        device={**_device(trace), "ranks": [rank]},
        health=health,
        steps=tables.structs(
            Step,
            name=steps.names,
            rank=[rank] * len(duration),
            start_us=steps.start / 1e3,
            duration_us=duration,
            breakdown_us=[parts(row) for row in shares.T / 1e3],
        ),
        mean_us=parts(shares.sum(axis=1) / 1e3 / count),
        exposed_and_hidden_us=parts(hidden / 1e3 / count),
        operators=tables.operators(trace),
        kernels=tables.kernels(trace),
        transfers=tables.transfers(trace, count),
        syncs=tables.syncs(trace, count) if has_device else [],
        communication=_communication(trace, count),
        **figures,
    )
    return msgspec.structs.replace(analysis, diagnosis=diagnose(analysis))


def _use(trace: Trace) -> dict[str, Any]:
    """How well the device is used during the steps S; None for what is not recorded.

    Utilisation: |K∩S| / |S|. SM efficiency: Σ min(blocks/SM, 1)·d, overlaps summed and capped at 1.
    Occupancy: a mean weighted by duration. Tensor Cores: shares of kernel time by `yes`, `no`, `unknown`.
    """
    steps, kernels = trace.steps, trace.table[trace.rows(*KERNELS)]
    time = steps.within(kernels.start, kernels.end)
    kernels, time = kernels[time > 0], time[time > 0]

    def share(rows: Ints) -> float | None:
        known = len(trace.device) and steps.total
        return steps.common(trace.union(rows)) / steps.total if known else None

    efficiency = occupancy = None
    if len(sized := kernels[kernels.blocks > 0]):
        zero = sized.start.min()  # floats hold nanoseconds only near zero
        times, area = weighted(sized.start - zero, sized.end - zero, sized.blocks)
        busy = np.diff(np.interp([steps.start - zero, steps.end - zero], times, area), axis=0).sum()
        efficiency = float(busy / steps.total)
    if (measured := ~np.isnan(kernels.occupancy)).any():
        occupancy = float(np.average(kernels.occupancy[measured], weights=time[measured]))
    cores = dict.fromkeys(("yes", "no", "unknown"), 0.0)
    per_name = np.bincount(kernels.name, time)
    for name in np.flatnonzero(per_name).tolist():
        cores[tensor_core(trace.texts.each[name])] += float(per_name[name])
    return {
        "gpu_utilization": share(trace.rows(*KERNELS)),
        "gpu_utilization_with_copies": share(trace.device),
        "est_sm_efficiency": efficiency,
        "est_achieved_occupancy": occupancy,
        "tensor_core": {answer: ns / int(time.sum()) for answer, ns in cores.items()} if len(time) else None,
    }


def _device(trace: Trace) -> dict[str, Any]:
    """The device's description."""
    head, has_device = trace.file.head, len(trace.device) > 0
    gpu = next(iter(head.deviceProperties), Device())
    kind = "rocm" if len(trace.matching(trace.calls, "^hip")) else "cuda"
    known = has_device and kind == "cuda" and None not in (gpu.computeMajor, gpu.computeMinor)
    return {
        "kind": kind if has_device else "cpu",
        "name": gpu.name,
        "compute_capability": f"{gpu.computeMajor}.{gpu.computeMinor}" if known else None,
        "reason": None if has_device else "no accelerator in this trace",
        "simulated": head.simulated,
    }


def _idle(trace: Trace) -> list[Idle]:
    """Divides each gap in the device's activity among causes, in order of priority: what the host was doing.

    `launch` is host code of any kind before the step's last device event; what remains after that event is
    `end_of_step`. `queued` is a gap before device work that had been launched before the gap began: latency
    of the device between kernels, not of the host.
    """
    steps, calls, table, busy = trace.steps, trace.calls, trace.table, trace.union(trace.device)
    waits = trace.matching(calls, WAITS)
    host = {
        "data": trace.rows(Kind.DATALOADER),
        "allocator": trace.matching(calls, _ALLOCATES),
        "gc": trace.matching(trace.rows(Kind.PYTHON), r"^Python GC$|gc\.collect>$"),
        "copy": np.setdiff1d(trace.matching(calls, "(?i)memcpy"), waits),
        "synchronisation": waits,
    }
    last = np.searchsorted(busy.end, steps.end, "right")
    last_end = np.clip(np.concatenate((steps.start[:1], busy.end))[last], steps.start, steps.end)
    between = merge(steps.end[:-1], steps.start[1:])
    idle = gaps(union(busy, between), steps.start[0], steps.end[-1])
    device = trace.device[np.argsort(table.start[trace.device], kind="stable")]
    launch = np.append(trace.launch[device], -1)[np.searchsorted(table.start[device], idle.end)]
    queued = (launch >= 0) & (table.start[launch] <= idle.start)
    rest = partition([*map(trace.union, host.values()), merge(steps.start, last_end)], idle.start, idle.end)
    total = np.append((idle.end - idle.start)[queued].sum(), rest[:, ~queued].sum(axis=1))
    rows = tables.structs(
        Idle,
        cause=("queued", *host, "launch", "end_of_step"),
        total_us=total / 1e3,
        us_per_step=total / 1e3 / len(steps.names),
        share_of_step=total / steps.total,
    )
    return sorted((row for row in rows if row.total_us), key=lambda row: -row.total_us)


def _communication(trace: Trace, steps: int) -> dict[str, Any] | None:
    """Device time of collectives per step; None if there was no communication at all.

    Exposed: what collective kernels add to the union of all other kernels. Without device collectives (CPU,
    gloo) the times are None: the host's marks show when a call was made, not when data moved.
    """
    collectives, length = trace.rows(Kind.COLLECTIVE), trace.steps.common
    if not len(collectives) + len(trace.rows(Kind.COMMUNICATION)):
        return None
    total = exposed = None
    if len(collectives):
        total = length(trace.union(collectives)) / 1e3 / steps
        exposed = (length(trace.union(trace.rows(*KERNELS))) - length(trace.layers[0])) / 1e3 / steps
    world = trace.file.head.distributedInfo
    return {
        "backend": world.get("backend"),
        "world_size": world.get("world_size"),
        "total_us_per_step": total,
        "exposed_us_per_step": exposed,
    }


# ---------------------------------------------------------------- health

_DEVICE = [
    *("breakdown_us", "mean_us", "exposed_and_hidden_us", "idle", "gpu_utilization", "tensor_core"),
    *("gpu_utilization_with_copies", "est_sm_efficiency", "est_achieved_occupancy"),
]
"""Figures that need every event of the device."""
_FEW = 0.01
"""A share of launches without a kernel that the edges of the recording explain."""


def check(trace: Trace) -> Iterator[Health]:
    """Problems of a trace; `spoils` names the figures that the analysis then sets to None."""
    if trace.file.head.simulated:
        facts = "".join(f"; {name}: {fact[:200]}" for name, fact in trace.file.head.simulated.items())
        message = f"this trace is simulated: no kernel ran, its times are predicted{facts}"
        yield Health("simulated", "info", message)
    if trace.file.truncated:
        message = "the file is cut off or damaged: an unknown number of events is missing"
        yield Health("truncated", "error", message, ["mean_step_us", *_DEVICE])
    if trace.file.dropped:
        message = f"left out {trace.file.dropped} events that are damaged or have impossible values"
        yield Health("bad_events", "warning", message)
    marks = len(trace.rows(Kind.STEP))
    if not marks:
        message = f"no ProfilerStep marks: '{WHOLE}' stands for one step; call profiler.step() to get steps"
        yield Health("no_steps", "info", message)
    elif left := marks - len(trace.steps.names):
        message = f"left out {left} of {marks} steps, which repeat or lie inside others"
        yield Health("duplicate_steps", "warning", message)
    yield from _launches(trace)


def _launches(trace: Trace) -> Iterator[Health]:
    start, ids, tied = trace.table.start, trace.table.correlation, trace.launched
    launching = trace.matching(trace.calls, "^(?!.*(Graph|HostFunc)).*Launch")
    launching = launching[ids[launching] >= 0]
    without = launching[~np.isin(ids[launching], ids[trace.device])]
    if len(without) and not len(trace.device):
        message = "a GPU was used but no GPU event was recorded; profile in a fresh process (pytorch#175790)"
        yield Health("no_gpu_events", "error", message, _DEVICE)
    elif len(without):
        many = len(without) > _FEW * len(launching)
        message = f"{len(without)} of {len(launching)} launches have no kernel in the trace; profile once, "
        message += "in a fresh process, after more warm-up steps of the schedule (pytorch#192021)"
        yield Health("dropped_kernels", "error" if many else "warning", message, _DEVICE if many else [])
    early = int((start[tied] < start[trace.launch[tied]]).sum())
    if early:
        message = f"{early} of {len(tied)} device events start before their launch"
        yield Health("early_kernels", "warning", message, ["idle"] if early > _FEW * len(tied) else [])
