"""Everything that is read out of a trace: steps, device figures, idle time, tables, health."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from perfkit.additions.trace import model, names
from perfkit.additions.trace.diagnosis import UNKNOWN_DEVICE, diagnose
from perfkit.additions.trace.events import KERNELS, Kind
from perfkit.additions.trace.health import check
from perfkit.additions.trace.intervals import Floats, Ints, gaps, merge, partition, union, weighted
from perfkit.additions.trace.reader import Device
from perfkit.additions.trace.table import PARTS, Trace, take

_Row = TypeVar("_Row")
_OF_DEVICE = ("kernel", "memcpy", "memset")
"""Parts that are unknown where no device was recorded."""


def analyse(trace: Trace | str | Path) -> model.Analysis:
    """Everything of a trace, or of a file; a mean is over all steps."""
    if not isinstance(trace, Trace):
        trace = Trace(trace)
    shows = names.evidence(trace)
    steps, health, has_device = trace.steps, check(trace, shows), len(trace.device) > 0
    spoiled = {figure for problem in health for figure in problem.spoils}
    unknown = set() if has_device else {*_OF_DEVICE}
    if not has_device and not len(trace.calls):
        unknown.add("runtime")
    if "mean_us" in spoiled:
        unknown = {*PARTS}

    def parts(us: Floats) -> dict[str, float | None]:
        values = zip(PARTS, us.tolist(), strict=False)
        return {part: None if part in unknown else value for part, value in values}

    duration, count = (steps.end - steps.start) / 1e3, len(steps.names) or 1
    shares = partition(trace.layers, steps.start, steps.end)
    hidden = np.array([steps.common(layer) for layer in trace.layers])
    mean_us = parts(shares.sum(axis=1) / 1e3 / count)
    rank = trace.world.rank or 0
    figures = {
        "mean_step_us": float(duration.mean()) if len(duration) else None,
        "idle": _idle(trace) if has_device and len(duration) else [],
        **_use(trace),
    }
    figures |= {name: [] if name == "idle" else None for name in spoiled & figures.keys()}
    analysis = model.Analysis(
        files=[str(trace.file.path)],
        device={**_device(trace, shows, health), "ranks": [rank]},
        shows=shows,
        recorded_us=int(trace.table.end.max()) / 1e3,
        steps_are="whole recording" if steps.is_whole else "inferred" if steps.inferred else "marked",
        health=health,
        steps=structs(
            model.Step,
            name=steps.names,
            rank=[rank] * len(duration),
            start_us=(steps.start + trace.start) / 1e3,
            duration_us=duration,
            breakdown_us=[parts(row) for row in shares.T / 1e3],
        ),
        mean_us=mean_us,
        exposed_and_hidden_us=parts(hidden / 1e3 / count),
        operators=operators(trace),
        kernels=kernels(trace),
        transfers=transfers(trace, count),
        syncs=syncs(trace, count) if has_device else [],
        communication=_communication(trace, count, mean_us["communication"]),
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
        times, area = weighted(sized.start, sized.end, sized.blocks)
        busy = np.diff(np.interp([steps.start, steps.end], times, area), axis=0).sum()
        efficiency = float(busy / steps.total)
    if (measured := ~np.isnan(kernels.occupancy)).any():
        occupancy = float(np.average(kernels.occupancy[measured], weights=time[measured]))
    cores = dict.fromkeys(("yes", "no", "unknown"), 0.0)
    per_name = np.bincount(kernels.name, time)
    for name in np.flatnonzero(per_name).tolist():
        cores[names.tensor_core(trace.texts[name])] += float(per_name[name])
    return {
        "gpu_utilization": share(trace.rows(*KERNELS)),
        "gpu_utilization_with_copies": share(trace.device),
        "est_sm_efficiency": efficiency,
        "est_achieved_occupancy": occupancy,
        "tensor_core": {answer: ns / int(time.sum()) for answer, ns in cores.items()} if len(time) else None,
    }


def _device(trace: Trace, shows: list[str], health: list[model.Health]) -> dict[str, Any]:
    """The device's description. Its kind is `unknown` where nothing tells on what the operators ran."""
    has_device = len(trace.device) > 0
    gpu = next(iter(trace.devices or []), Device())
    kind, reason = "cpu", None if has_device else "no accelerator in this trace"
    if has_device:
        kind = names.accelerator(trace)
    elif unsure := [problem.message for problem in health if problem.code in UNKNOWN_DEVICE]:
        kind, reason = "unknown", unsure[0]
    known = kind == "cuda" and None not in (gpu.computeMajor, gpu.computeMinor)
    return {
        "kind": kind,
        "name": gpu.name,
        "compute_capability": f"{gpu.computeMajor}.{gpu.computeMinor}" if known else None,
        "reason": reason,
        "world_size": trace.world.world_size,
        "simulated": trace.simulated,
    }


def _idle(trace: Trace) -> list[model.Idle]:
    """Divides each gap in the device's activity among causes, in order of priority: what the host was doing.

    A gap is cut where the call returns that launches the device event at its end: after it the work is
    `queued`, launched but not begun, and the host has no part in that. Before it, `launch` is host code of
    any kind, and `first_calls` are calls that are only slow once. `unknown`: the launch was not recorded.
    The host is in a `collective` itself where the device has none (gloo).
    What remains after the step's last device event is `end_of_step`.
    """
    steps, calls, table, busy = trace.steps, trace.calls, trace.table, trace.union(trace.device)
    waits, talk = trace.matching(calls, names.WAITS), trace.rows(Kind.COMMUNICATION)
    if len(trace.rows(Kind.COLLECTIVE)):  # which the host only launches
        talk = talk[:0]
    host = {
        "first_calls": names.first_calls(trace),
        "data": trace.rows(Kind.DATALOADER),
        "allocator": trace.matching(calls, names.ALLOCATES),
        "gc": trace.matching(trace.rows(Kind.PYTHON), r"^Python GC$|gc\.collect>$"),
        "copy": np.setdiff1d(trace.matching(calls, "(?i)memcpy"), waits),
        "synchronisation": waits,
        "collective": talk,
    }
    last = np.searchsorted(busy.end, steps.end, "right")
    last_end = np.clip(np.concatenate((steps.start[:1], busy.end))[last], steps.start, steps.end)
    between = merge(steps.end[:-1], steps.start[1:])
    idle = gaps(union(busy, between), steps.start[0], steps.end[-1])
    device = trace.device[np.argsort(table.start[trace.device], kind="stable")]
    ends_it = np.append(device, -1)[np.searchsorted(table.start[device], idle.end)]
    launch = take(trace.launch, ends_it)
    is_known = (launch >= 0) | (ends_it < 0)
    cut = np.where(launch >= 0, np.clip(take(table.end, launch), idle.start, idle.end), idle.end)
    queued = int((idle.end - cut).sum())
    layers = [*map(trace.union, host.values()), merge(steps.start, last_end)]
    causes = partition(layers, idle.start[is_known], cut[is_known]).sum(axis=1)
    unclear = partition(layers, idle.start[~is_known], cut[~is_known]).sum(axis=1)
    *by_host, launching, at_end = causes + np.append(unclear[:-2], (0, unclear[-1]))
    total = np.array([queued, *by_host, launching, int(unclear[-2]), at_end])
    rows = structs(
        model.Idle,
        cause=("queued", *host, "launch", "unknown", "end_of_step"),
        total_us=total / 1e3,
        us_per_step=total / 1e3 / len(steps.names),
        share_of_step=total / steps.total,
    )
    return sorted((row for row in rows if row.total_us), key=lambda row: -row.total_us)


def _communication(trace: Trace, steps: int, exposed: float | None) -> dict[str, Any] | None:
    """Device time of collectives per step; None if there was no communication at all.

    Exposed: while neither another kernel nor a copy runs. Without device collectives (CPU, gloo) the times
    are None: the host's marks show when a call was made, not when data moved.
    """
    collectives = trace.rows(Kind.COLLECTIVE)
    if not len(collectives) + len(trace.rows(Kind.COMMUNICATION)):
        return None
    on_device = len(collectives) > 0
    total = trace.steps.common(trace.union(collectives)) / 1e3 / steps
    return {
        "backend": trace.world.backend,
        "world_size": trace.world.world_size,
        "total_us_per_step": total if on_device else None,
        "exposed_us_per_step": exposed if on_device else None,
    }


# ---------------------------------------------------------------- tables


def structs(row: type[_Row], /, **columns: Any) -> list[_Row]:
    """Rows from columns; NaN becomes None."""
    absent: Any = None
    plain = [
        np.where(np.isnan(column), absent, column).tolist() if isinstance(column, np.ndarray) else column
        for column in columns.values()
    ]
    return [row(**dict(zip(columns, values, strict=True))) for values in zip(*plain, strict=True)]


class Groups:
    """Rows of the table by distinct keys: for each part of a key, a column of numbers of texts."""

    def __init__(self, trace: Trace, rows: Ints, **keys: Ints) -> None:
        number = np.zeros(len(rows), np.int64)
        for codes in keys.values():
            number = number * (codes.max(initial=-1) + 2) + codes + 1
            _, first, number = np.unique(number, return_index=True, return_inverse=True)
        self.of, self.calls = number, np.bincount(number)
        self.time = trace.duration(rows) / 1e3
        """µs of each row."""
        self.total = self.sum(self.time)
        self.columns: dict[str, Any] = {key: trace.text(codes[first]) for key, codes in keys.items()}
        """The parts of the keys, `calls` and `total_us`."""
        self.columns |= {"calls": self.calls, "total_us": self.total}

    def sum(self, values: Any) -> Floats:
        """Sum per group; NaN counts as 0."""
        return np.bincount(self.of, np.nan_to_num(values), len(self.calls)).astype(np.float64)

    def mean(self, values: Floats) -> Floats:
        """Mean per group weighted by time (by count if all are zero); NaN where no value is known."""
        weights = np.where(np.isnan(values), 0.0, np.maximum(self.time, 1e-9))
        with np.errstate(invalid="ignore"):
            return self.sum(values * weights) / self.sum(weights)


def operators(trace: Trace) -> list[model.Operator]:
    """By name, input shapes and types; sorted by self time on the device, else on the host."""
    ops, op, table = trace.ops, trace.op, trace.table
    groups = Groups(trace, ops, name=table.name[ops], inputs=table.inputs[ops])
    inputs, total = (groups.columns.pop(name) for name in ("inputs", "total_us"))
    dims, types = (
        [pair[at].decode("utf-8", "replace") or None if pair else None for pair in inputs] for at in (0, 1)
    )
    host = trace.duration(ops)
    nested, tied = op[ops] >= 0, trace.device[op[trace.device] >= 0]
    inner = np.bincount(op[ops[nested]], host[nested], len(table))[ops]
    device = np.bincount(op[tied], trace.duration(tied), len(table)).astype(np.float64)
    inclusive, own, above = device.copy(), device[ops], op[ops]
    while len(above):
        own, above = own[above >= 0], above[above >= 0]
        inclusive += np.bincount(above, own, len(table))
        above = op[above]
    unknown = 0 if len(trace.device) else np.nan
    rows = structs(
        model.Operator,
        **groups.columns,
        input_shapes=dims,
        input_dtypes=types,
        host_total_us=total,
        host_self_us=groups.sum(np.maximum(host - inner, 0) / 1e3),
        device_total_us=groups.sum(inclusive[ops]) / 1e3 + unknown,
        device_self_us=groups.sum(device[ops]) / 1e3 + unknown,
    )
    return sorted(rows, key=lambda row: (-(row.device_self_us or 0.0), -row.host_self_us, row.name))


def _place(trace: Trace, rows: Ints) -> dict[str, Ints]:
    """The operator and the line of code around calls."""
    return {"operator": take(trace.table.name, trace.op[rows]), "frame": trace.frame[rows]}


def kernels(trace: Trace) -> list[model.Kernel]:
    """By name, the longest in total first; with the place of its longest launch."""
    rows = trace.rows(*KERNELS)
    table = trace.table[rows]
    groups = Groups(trace, rows, name=table.name)
    order, last = np.lexsort((groups.time, groups.of)), np.cumsum(groups.calls) - 1
    time, places = groups.time[order], _place(trace, rows[order[last]])
    kernels = structs(
        model.Kernel,
        **groups.columns,
        **{part: trace.text(codes) for part, codes in places.items()},
        mean_us=groups.total / groups.calls,
        max_us=time[last],
        min_us=time[last - groups.calls + 1],
        blocks_per_sm=groups.mean(table.blocks),
        occupancy=groups.mean(table.occupancy),
        tensor_core=map(names.tensor_core, groups.columns["name"]),
    )
    return sorted(kernels, key=lambda row: (-row.total_us, row.name))


def _in_steps(trace: Trace, rows: Ints) -> Ints:
    """All of them; of inferred steps those that begin during them, as start-up and tail are left out."""
    start, steps = trace.table.start[rows], trace.steps
    inside: Ints = rows[(start >= steps.start.min(initial=0)) & (start < steps.end.max(initial=0))]
    return inside if steps.inferred else rows


def transfers(trace: Trace, steps: int) -> list[model.Transfer]:
    """Copies by direction, host memory and place, the longest in total first."""
    rows, sizes = _in_steps(trace, trace.rows(Kind.MEMCPY)), trace.table.bytes
    groups = Groups(trace, rows, name=trace.table.name[rows], **_place(trace, rows))
    texts = groups.columns.pop("name")
    size = np.where(sizes[rows] >= 0, sizes[rows], take(sizes, trace.launch[rows]))  # ROCm: at the launch
    moved = np.where(groups.sum(size < 0) > 0, np.nan, groups.sum(size))
    with np.errstate(all="ignore"):
        rate = np.where(groups.total > 0, moved / groups.total / 1e3, np.nan)
    transfers = structs(
        model.Transfer,
        direction=[match[0] if (match := names.DIRECTION.search(name)) else name for name in texts],
        host_memory=[
            match[0].lower() if (match := names.HOST_MEMORY.search(name)) else None for name in texts
        ],
        **groups.columns,
        bytes=[None if np.isnan(size) else int(size) for size in moved],
        gb_per_s=rate,
        calls_per_step=groups.calls / steps,
        us_per_step=groups.total / steps,
    )
    return sorted(transfers, key=lambda row: -row.total_us)


def syncs(trace: Trace, steps: int) -> list[model.Sync]:
    """Runtime calls and operators that wait for the device, the longest in total first."""
    calls, ops = trace.matching(trace.calls, names.WAITS), trace.matching(trace.ops, names.WAITING_OPERATORS)
    rows = _in_steps(trace, np.concatenate((calls, ops)))
    groups = Groups(trace, rows, call=trace.table.name[rows], **_place(trace, rows))
    syncs = structs(
        model.Sync,
        **groups.columns,
        kind=["operator" if call.startswith("aten::") else "runtime" for call in groups.columns["call"]],
        calls_per_step=groups.calls / steps,
        ms_per_step=groups.total / 1e3 / steps,
    )
    return sorted(syncs, key=lambda row: -row.total_us)
