"""Everything that is read out of a trace."""

from collections import defaultdict
from typing import Any

import numpy as np

from perfkit.trace import tables
from perfkit.trace.columns import Kind
from perfkit.trace.communication import communication
from perfkit.trace.device import launches, sums
from perfkit.trace.health import check
from perfkit.trace.idle import idle
from perfkit.trace.memory import memory
from perfkit.trace.model import Analysis, Step
from perfkit.trace.rank import DeviceProperties, Paths, Rank, Trace, load
from perfkit.trace.steps import DEVICE_PARTS, PARTS, breakdown


def analyse(trace: Trace | Paths) -> Analysis:
    """Everything of a trace: steps, breakdown, device figures, tables, idle time, health.

    Several ranks are analysed one by one and then added up; a mean is over all steps of all ranks.
    """
    trace = trace if isinstance(trace, Trace) else load(trace)
    ranks = trace.ranks
    health = [banner for rank in ranks for banner in check(rank)]
    spoiled = {figure for banner in health for figure in banner.spoils}
    has_device = any(rank.has_device for rank in ranks)
    steps, exposed, hidden = _steps(ranks, has_device, "breakdown_us" in spoiled)
    totals: defaultdict[str, float] = defaultdict(float)
    for rank in ranks if has_device else ():
        for name, value in sums(rank.links, rank.steps, rank.activity).items():
            totals[name] += value
    count, links = len(steps) or 1, [rank.links for rank in ranks]
    body: dict[str, Any] = {
        "mean_step_us": float(np.mean([step.duration_us for step in steps])) if steps else None,
        "mean_us": _parts(exposed, count, has_device, bool(steps)),
        "exposed_and_hidden_us": _parts(hidden, count, has_device, bool(steps)),
        "gpu_utilization": _ratio(totals, "busy", "step"),
        "est_sm_efficiency": _ratio(totals, "sm", "step"),
        "est_achieved_occupancy": _ratio(totals, "occupancy", "occupancy_time"),
        "tensor_core": _tensor_cores(totals),
        "idle": idle(ranks, count) if has_device and steps else [],
    }
    for figure in spoiled & body.keys():
        empty: Any = dict.fromkeys(body[figure]) if figure in ("mean_us", "exposed_and_hidden_us") else None
        body[figure] = [] if figure == "idle" else empty
    return Analysis(
        files=trace.files, device=_device(ranks, totals, spoiled), health=health, steps=steps,
        **body, operators=tables.operators(links, has_device), kernels=tables.kernels(links),
        transfers=tables.transfers(links, count), syncs=tables.syncs(links, count) if has_device else [],
        communication=communication(ranks), memory=memory(links[0]),
    )  # fmt: skip


def _steps(
    ranks: tuple[Rank, ...], has_device: bool, spoiled: bool
) -> tuple[list[Step], list[float], list[float]]:
    """Steps of all ranks, and the sums over them of each part in µs: exposed, exposed + hidden."""
    steps: list[Step] = []
    exposed, hidden = np.zeros(len(PARTS)), np.zeros(len(PARTS) - 1)
    for number, rank in enumerate(ranks):
        parts, whole = breakdown(rank.steps, rank.activity.layers)
        exposed += parts.sum(axis=1) / 1e3
        hidden += whole.sum(axis=1) / 1e3
        for i, name in enumerate(rank.steps.names):
            start, end = int(rank.steps.start[i]), int(rank.steps.end[i])
            row = _parts((parts[:, i] / 1e3).tolist(), 1, has_device, not spoiled)
            steps.append(
                Step(
                    name=name, rank=number if rank.world.rank is None else rank.world.rank,
                    start_us=start / 1e3, duration_us=(end - start) / 1e3, breakdown_us=row,
                )
            )  # fmt: skip
    return steps, exposed.tolist(), hidden.tolist()


def _parts(values: list[float], count: int, has_device: bool, known: bool) -> dict[str, float | None]:
    """Parts by name; device parts are None without an accelerator, all are None if not known."""
    return {
        name: value / count if known and (has_device or name not in DEVICE_PARTS) else None
        for name, value in zip(PARTS, values, strict=False)
    }


def _ratio(totals: dict[str, float], part: str, whole: str) -> float | None:
    return totals[part] / totals[whole] if part in totals and totals.get(whole) else None


def _tensor_cores(totals: dict[str, float]) -> dict[str, float] | None:
    """Shares of kernel time within the steps; None without kernels."""
    time = {answer: totals.get(answer, 0.0) for answer in ("yes", "no", "unknown")}
    whole = sum(time.values())
    return {answer: value / whole for answer, value in time.items()} if whole else None


def _device(ranks: tuple[Rank, ...], totals: dict[str, float], spoiled: set[str]) -> dict[str, Any]:
    """The device's description, and figures beside the main ones."""
    rank = ranks[0]
    used = sorted({d for r in ranks for d in np.unique(r.columns.device[r.links.device]).tolist() if d >= 0})
    index = used[0] if used else 0
    gpu = next((entry for entry in rank.properties if entry.id == index), DeviceProperties())
    calls = [rank.columns.names[i] for i in np.unique(rank.columns.name[rank.links.calls]).tolist()]
    rocm = any(name.startswith("hip") for name in calls)
    kind = "cpu" if not rank.has_device else "rocm" if rocm else "cuda"
    capability = f"{gpu.computeMajor}.{gpu.computeMinor}"
    return {
        "kind": kind,
        "name": gpu.name,
        "compute_capability": capability if kind == "cuda" and "None" not in capability else None,
        "multiprocessors": gpu.numSms,
        "memory_bytes": gpu.totalGlobalMem,
        "used": used,
        "loaders": sorted({n for r in ranks for n in r.columns.texts(r.columns.rows(Kind.LOADER))}),
        "ranks": [i if r.world.rank is None else r.world.rank for i, r in enumerate(ranks)],
        "reason": "no accelerator in this trace" if kind == "cpu" else None,
        "gpu_utilization_with_copies": None
        if "gpu_utilization" in spoiled
        else _ratio(totals, "with_copies", "step"),
        "launch": launches(rank.links),
        "simulated": rank.simulated,
    }
