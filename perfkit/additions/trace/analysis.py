"""Analyses a trace: steps, device figures, idle time, tables, health."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from perfkit.additions.shared.intervals import Floats, Ints, gaps, merge, partition, union
from perfkit.additions.trace import data, model, names
from perfkit.additions.trace.diagnosis import diagnose
from perfkit.additions.trace.events import KERNELS, Kind
from perfkit.additions.trace.health import check
from perfkit.additions.trace.reader import Device
from perfkit.additions.trace.table import PARTS, Trace, take

_Row = TypeVar("_Row")


def analyse(trace: Trace | str | Path) -> model.Analysis:
    """The analysis of a trace, or of a trace file. Means are over all steps."""
    if not isinstance(trace, Trace):
        trace = Trace(trace)
    shows = names.evidence(trace)
    steps = trace.steps
    health = check(trace, shows)
    spoiled = {figure for problem in health for figure in problem.spoils}
    unknown = _unknown(trace, spoiled)
    count = len(steps.names) or 1
    rank = trace.world.rank or 0
    shares = partition(trace.layers, steps.start, steps.end) / 1e3
    mean_us = _parts(shares.sum(axis=1) / count, unknown)
    figures = _use(trace)
    figures |= dict.fromkeys(spoiled & figures.keys())
    analysis = model.Analysis(
        files=[str(trace.file.path)],
        device={**_device(trace, health), "ranks": [rank]},
        shows=shows,
        recorded_us=int(trace.table.end.max()) / 1e3,
        steps_are=steps.are,
        health=health,
        steps=structs(
            model.TraceStep,
            name=steps.names,
            rank=[rank] * len(steps.names),
            start_us=(steps.start + trace.start) / 1e3,
            duration_us=(steps.end - steps.start) / 1e3,
            breakdown_us=[_parts(row, unknown) for row in shares.T],
        ),
        mean_us=mean_us,
        operators=operators(trace),
        kernels=kernels(trace),
        transfers=transfers(trace, count),
        syncs=syncs(trace, count) if len(trace.device) else [],
        idle=_idle(trace) if len(trace.device) and steps.names and "idle" not in spoiled else [],
        communication=_communication(trace, count, mean_us["communication"]),
        **figures,
    )
    return msgspec.structs.replace(analysis, diagnosis=diagnose(analysis))


def _unknown(trace: Trace, spoiled: set[str]) -> set[str]:
    """The parts of a step whose time is unknown."""
    if "mean_us" in spoiled:
        return {*PARTS}
    unknown = set() if len(trace.device) else {"kernel", "memcpy", "memset"}
    if not len(trace.calls):
        unknown.add("runtime")
    if not len(trace.rows(Kind.CPU_OP, Kind.ANNOTATION, Kind.STEP)):
        unknown |= {"dataloader", "cpu_op"}
    return unknown


def _parts(us: Floats, unknown: set[str]) -> dict[str, float | None]:
    values = zip(PARTS, us.tolist(), strict=True)
    return {part: None if part in unknown else value for part, value in values}


def _use(trace: Trace) -> dict[str, Any]:
    """The length of a step, and how well the device is used during the steps S; None if it was not recorded.

    Utilisation is |K∩S| / |S|. Tensor Cores are shares of kernel time by `yes`, `no`, `unknown`.
    """
    steps = trace.steps
    table = trace.table
    kernels = trace.rows(*KERNELS)
    is_known = len(trace.device) and steps.total
    time = steps.within(table.start[kernels], table.end[kernels])
    per_name = np.bincount(table.name[kernels], time)
    cores = dict.fromkeys(("yes", "no", "unknown"), 0.0)
    for name in np.flatnonzero(per_name).tolist():
        cores[names.tensor_core(trace.texts[name])] += float(per_name[name] / time.sum())
    return {
        "mean_step_us": steps.total / 1e3 / len(steps.names) if steps.names else None,
        "gpu_utilization": steps.common(trace.union(kernels)) / steps.total if is_known else None,
        "tensor_core": cores if time.any() else None,
    }


def _device(trace: Trace, health: list[model.Health]) -> dict[str, Any]:
    """The description of the device. Its kind is `unknown` if nothing shows where the operators ran."""
    gpu = next(iter(trace.devices or []), Device())
    words = data.table("words")["health"]
    unsure = [problem.message for problem in health if "hides_device" in words[problem.code]]
    kind = "unknown" if unsure else "cpu"
    reason = unsure[0] if unsure else "no accelerator in this trace"
    has_device = len(trace.device) > 0
    if has_device:
        kind = names.accelerator(trace)
    known = kind == "cuda" and None not in (gpu.computeMajor, gpu.computeMinor)
    return {
        "kind": kind,
        "name": gpu.name,
        "compute_capability": f"{gpu.computeMajor}.{gpu.computeMinor}" if known else None,
        "reason": None if has_device else reason,
        "world_size": trace.world.world_size,
        "simulated": trace.simulated,
    }


def _idle(trace: Trace) -> list[model.Idle]:
    """Divides each gap in the device's activity among causes, in order of priority.

    A gap is cut at the return of the call that launches the device event at its end. After the cut the work
    is `queued`: launched but not begun, for which the host is not responsible. Before the cut, what the host
    does counts as the cause, including a `collective` that has no device event (gloo). The rest is
    `end_of_step` after the step's last device event, `unknown` if the launch was not recorded, and otherwise
    `launch`: host code.
    """
    steps = trace.steps
    table = trace.table
    busy = trace.union(trace.device)
    last = np.concatenate((steps.start[:1], busy.end))[np.searchsorted(busy.end, steps.end, "right")]
    idle = gaps(union(busy, merge(steps.end[:-1], steps.start[1:])), steps.start[0], steps.end[-1])
    device = trace.device[np.argsort(table.start[trace.device], kind="stable")]
    ends_it = np.append(device, -1)[np.searchsorted(table.start[device], idle.end)]
    launch = take(trace.launch, ends_it)
    cut = np.where(launch >= 0, np.clip(take(table.end, launch), idle.start, idle.end), idle.end)
    unclear = (launch < 0) & (ends_it >= 0)
    layers = {
        "queued": merge(cut, idle.end),
        **{cause: trace.union(rows) for cause, rows in _host(trace).items()},
        "end_of_step": merge(np.clip(last, steps.start, steps.end), steps.end),
        "unknown": merge(idle.start[unclear], idle.end[unclear]),
    }
    total = partition(layers.values(), idle.start, idle.end).sum(axis=1)
    rows = structs(
        model.Idle,
        cause=[*layers, "launch"],
        total_us=total / 1e3,
        us_per_step=total / 1e3 / len(steps.names),
        share_of_step=total / steps.total,
    )
    return sorted((row for row in rows if row.total_us), key=lambda row: -row.total_us)


def _host(trace: Trace) -> dict[str, Ints]:
    """What the host does while the device is idle: the rows of each cause, in order of priority."""
    waits = trace.matching(trace.calls, names.WAITS)
    talk = trace.rows(Kind.COMMUNICATION)
    return {
        "first_calls": names.first_calls(trace),
        "data": trace.rows(Kind.DATALOADER),
        "allocator": trace.matching(trace.calls, names.ALLOCATES),
        "gc": trace.matching(trace.rows(Kind.PYTHON), r"^Python GC$|gc\.collect>$"),
        "copy": np.setdiff1d(trace.matching(trace.calls, "(?i)memcpy"), waits),
        "synchronisation": waits,
        "collective": talk[:0] if len(trace.rows(Kind.COLLECTIVE)) else talk,
    }


def _communication(trace: Trace, steps: int, exposed: float | None) -> dict[str, Any] | None:
    """Device time of collectives per step, `exposed` while no kernel or copy runs; None without collectives.

    The times are None if collectives leave no device events (CPU, gloo): the host's events show when a call
    was made, not when data moved. They are also None if device events are missing, and `exposed` is None.
    """
    collectives = trace.rows(Kind.COLLECTIVE)
    if not len(collectives) + len(trace.rows(Kind.COMMUNICATION)):
        return None
    total = trace.steps.common(trace.union(collectives)) / 1e3 / steps
    is_known = len(collectives) > 0 and exposed is not None
    return {
        "backend": trace.world.backend,
        "total_us_per_step": total if is_known else None,
        "exposed_us_per_step": exposed if is_known else None,
    }


def structs(row: type[_Row], /, **columns: Any) -> list[_Row]:
    """Rows from columns; NaN becomes None."""
    absent: Any = None
    plain = [
        np.where(np.isnan(column), absent, column).tolist() if isinstance(column, np.ndarray) else column
        for column in columns.values()
    ]
    return [row(**dict(zip(columns, values, strict=True))) for values in zip(*plain, strict=True)]


class Groups:
    """Groups of rows with the same key; each part of the key is a column of text numbers."""

    def __init__(self, trace: Trace, rows: Ints, **keys: Ints) -> None:
        codes = [each + 1 for each in keys.values()]
        number = np.ravel_multi_index(codes, [each.max(initial=0) + 1 for each in codes])
        _, self.first, self.of = np.unique(number, return_index=True, return_inverse=True)
        self.calls, self.time = np.bincount(self.of), trace.duration(rows) / 1e3
        """The number of rows in each group, and the µs of each row."""
        self.total = self.sum(self.time)
        self.columns: dict[str, Any] = {key: trace.text(codes[self.first]) for key, codes in keys.items()}
        """The columns of the result: the parts of the keys, `calls` and `total_us`."""
        self.columns |= {"calls": self.calls, "total_us": self.total}

    def sum(self, values: Any) -> Floats:
        """The sum of values per group."""
        return np.bincount(self.of, values, len(self.calls)).astype(np.float64)


def operators(trace: Trace) -> list[model.Operator]:
    """The operators by name, sorted by self time on the device, else on the host."""
    ops, op, table = trace.ops, trace.op, trace.table
    groups = Groups(trace, ops, name=table.name[ops])
    total = groups.columns.pop("total_us")

    def under(rows: Ints) -> Floats:
        rows = rows[op[rows] >= 0]
        return np.bincount(op[rows], trace.duration(rows) / 1e3, len(table)).astype(np.float64)

    nested, device = under(ops), under(trace.device)
    rows = structs(
        model.Operator,
        **groups.columns,
        host_total_us=total,
        host_self_us=groups.sum(np.maximum(groups.time - nested[ops], 0)),
        device_self_us=groups.sum(device[ops]) if len(trace.device) else [None] * len(groups.calls),
    )
    return sorted(rows, key=lambda row: (-(row.device_self_us or 0.0), -row.host_self_us, row.name))


def _place(trace: Trace, rows: Ints) -> dict[str, Ints]:
    """The operator and the line of code around calls."""
    return {"operator": take(trace.table.name, trace.op[rows]), "frame": trace.frame[rows]}


def kernels(trace: Trace) -> list[model.Kernel]:
    """The kernels by name, the longest in total first, with the place of their longest launch."""
    rows = trace.rows(*KERNELS)
    rows = rows[np.argsort(-trace.duration(rows), kind="stable")]
    groups = Groups(trace, rows, name=trace.table.name[rows])
    longest = rows[groups.first]
    kernels = structs(
        model.Kernel,
        **groups.columns,
        **{part: trace.text(codes) for part, codes in _place(trace, longest).items()},
        mean_us=groups.total / groups.calls,
        tensor_core=map(names.tensor_core, groups.columns["name"]),
    )
    return sorted(kernels, key=lambda row: (-row.total_us, row.name))


def in_steps(trace: Trace, rows: Ints, behind: int = 0) -> Ints:
    """The rows that begin at most `behind` ns before the first step, and before the end of the last."""
    start, steps = trace.table.start[rows], trace.steps
    if not steps.names:
        return rows[:0]
    inside: Ints = rows[(start >= steps.start[0] - behind) & (start < steps.end[-1])]
    return inside


def transfers(trace: Trace, steps: int) -> list[model.Transfer]:
    """Copies by direction, host memory and place, the longest in total first."""
    rows, sizes = in_steps(trace, trace.rows(Kind.MEMCPY)), trace.table.bytes
    groups = Groups(trace, rows, name=trace.table.name[rows], **_place(trace, rows))
    texts = groups.columns.pop("name")
    size = np.where(sizes[rows] >= 0, sizes[rows], take(sizes, trace.launch[rows]))  # ROCm: in the launch
    moved = np.where(groups.sum(size < 0) > 0, np.nan, groups.sum(size))
    with np.errstate(all="ignore"):
        rate = np.where(groups.total > 0, moved / groups.total / 1e3, np.nan)
    transfers = structs(
        model.Transfer,
        direction=[names.first("direction", text) or text for text in texts],
        host_memory=[names.first("host_memory", text) for text in texts],
        **groups.columns,
        bytes=[None if np.isnan(size) else int(size) for size in moved],
        gb_per_s=rate,
        calls_per_step=groups.calls / steps,
        us_per_step=groups.total / steps,
    )
    return sorted(transfers, key=lambda row: -row.total_us)


def syncs(trace: Trace, steps: int) -> list[model.Sync]:
    """Runtime calls that wait for the device, the longest in total first."""
    rows = in_steps(trace, trace.matching(trace.calls, names.WAITS), behind=trace.steps.behind)
    groups = Groups(trace, rows, call=trace.table.name[rows], **_place(trace, rows))
    means = {"calls_per_step": groups.calls / steps, "us_per_step": groups.total / steps}
    return sorted(structs(model.Sync, **groups.columns, **means), key=lambda row: -row.total_us)
