"""What is wrong with a file, and the bottlenecks that it shows: evidence, switches to try, the largest gain.

Amdahl's law bounds the gain: without any of the exposed time the step would be 1 / (1 - exposed / step) times
as fast, so no fix for it can give more.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct

from perfkit.trace.model import Analysis, Health
from perfkit.trace.reader import Reader
from perfkit.trace.table import WHOLE, Trace
from perfkit.trace.tables import is_bandwidth_bound


class Bottleneck(Struct, frozen=True, kw_only=True):
    """One bottleneck. `exposed_us`: per step; `gain_at_most`: ratio of speeds, None without a useful bound.

    `try_next`: fields of a recipe, the most promising first; `evidence`: the numbers behind the diagnosis.
    """

    bottleneck: str
    message: str
    exposed_us: float
    share_of_step: float
    gain_at_most: float | None
    evidence: dict[str, Any]
    try_next: list[str]


_BOUNDED = 0.95
"""Share of a step beyond which Amdahl's bound is too large to be useful."""
_Case = tuple[str, float, str, float, dict[str, Any], list[str]]
"""Bottleneck, smallest share of a step, message, exposed µs per step, evidence, switches to try."""


def diagnose(analysis: Analysis) -> list[Bottleneck]:
    """The bottlenecks whose share of a step reaches their threshold, the longest exposed time first.

    Empty if nothing stands out, or if the trace is too damaged for a diagnosis (see `analysis.health`).
    """
    step = analysis.mean_step_us
    if not step or analysis.mean_us["other"] is None:
        return []
    on_gpu = analysis.has_accelerator
    cases = (*_on_gpu(analysis), *_waiting(analysis)) if on_gpu else _on_cpu(analysis)
    bottlenecks = [
        Bottleneck(
            bottleneck=name,
            message=f"{exposed / step:.0%} of a step: {message}",
            exposed_us=exposed,
            share_of_step=exposed / step,
            gain_at_most=1 / (1 - exposed / step) if exposed / step < _BOUNDED else None,
            evidence=evidence,
            try_next=try_next,
        )
        for name, threshold, message, exposed, evidence, try_next in (_loading(analysis), *cases)
        if exposed / step >= threshold
    ]
    return sorted(bottlenecks, key=lambda bottleneck: -bottleneck.exposed_us)


def _loading(analysis: Analysis) -> _Case:
    single = any("_SingleProcess" in name for name in analysis.device["loaders"])
    exposed, total = analysis.mean_us["dataloader"] or 0.0, analysis.exposed_and_hidden_us["dataloader"]
    evidence = {"dataloader_in_all_us": total, "loader_in_main_process": single}
    first = ["workers"] if single else ["workers", "prefetch_factor"]
    try_next = [*first, "batched_fetch", "device_resize"]
    return "data-bound", 0.10, "waiting for the next batch", exposed, evidence, try_next


def _on_cpu(analysis: Analysis) -> Iterator[_Case]:
    computing, python = (analysis.mean_us[part] or 0.0 for part in ("cpu_op", "other"))
    message = "operators compute on the CPU, which is the device here"
    evidence = {"longest": analysis.operators[0].name} if analysis.operators else {}
    try_next = ["cpu_threads", "channels_last", "compile", "amp"]
    yield "device-bound", 0.80, message, computing, evidence, try_next
    message = "no operator runs: Python code, garbage collection or waiting"
    yield "host-bound", 0.20, message, python, {}, ["batch_size", "compile"]


def _on_gpu(analysis: Analysis) -> Iterator[_Case]:
    device, steps = analysis.device, len(analysis.steps)
    idle = {row.cause: row.us_per_step for row in analysis.idle}
    computing = analysis.mean_us["kernel"] or 0.0

    message = "the device is idle because the host has not launched the next kernel"
    evidence: dict[str, Any] = {"kernels_per_step": sum(row.calls for row in analysis.kernels) / steps}
    try_next = ["compile", "batch_size", "optimizer_impl"]
    yield "host-bound", 0.15, message, idle.get("launch", 0.0), evidence, try_next

    figures = analysis.communication or {}
    evidence = {key: value for key, value in figures.items() if key.endswith("_us_per_step")}
    exposed = figures.get("exposed_us_per_step") or 0.0
    message = "collectives that do not overlap with computation"
    yield "communication-bound", 0.10, message, exposed, evidence, ["accumulation", "batch_size"]

    cores = analysis.tensor_core or {}
    evidence = {
        "gpu_utilization": analysis.gpu_utilization,
        "est_sm_efficiency": analysis.est_sm_efficiency,
        **{f"tensor_core_{answer}": share for answer, share in cores.items()},
    }
    capability = float(device["compute_capability"] or 0)
    faster = ["amp", "fp32_precision"] if capability >= 8 else ["amp"] if capability >= 7 else []
    try_next = ["channels_last", "compile", "cudnn_benchmark"]
    try_next = try_next if cores.get("yes", 0.0) >= 0.5 else [*faster, *try_next]
    yield "device-bound", 0.80, "kernels compute on the device", computing, evidence, try_next

    total = sum(row.total_us for row in analysis.kernels)
    bound = [row for row in analysis.kernels if is_bandwidth_bound(row.name)]
    share = sum(row.total_us for row in bound) / total if total else 0.0
    message = "kernels limited by memory bandwidth (element-wise, norms, layout)"
    evidence = {"share_of_kernel_time": share, "judged_by": "kernel names"}
    evidence |= {"longest": bound[0].name[:120]} if bound else {}
    yield "memory-bound", 0.40, message, computing * share, evidence, ["compile", "amp", "channels_last"]


def _waiting(analysis: Analysis) -> Iterator[_Case]:
    idle = {row.cause: row.us_per_step for row in analysis.idle}
    across = [row for row in analysis.transfers if row.direction in ("HtoD", "DtoH")]
    copied = sum(row.us_per_step for row in across)
    pageable = sum(row.us_per_step for row in across if row.host_memory == "pageable")
    sizes = [row.bytes for row in across if row.bytes is not None]
    message = "copies between host and device that do not overlap with kernels"
    evidence: dict[str, Any] = {
        "copies_us": copied,
        "pageable_us": pageable,
        "bytes_per_step": sum(sizes) / len(analysis.steps) if len(sizes) == len(across) else None,
    }
    exposed = min(analysis.mean_us["memcpy"] or 0.0, copied) + (idle.get("copy", 0.0) if across else 0.0)
    first = ["pin_memory", "non_blocking"] if pageable else ["non_blocking"]
    yield "copy-bound", 0.05, message, exposed, evidence, [*first, "uint8_copy", "device_prefetch"]

    waits = [row for row in analysis.syncs if row.kind == "runtime"]
    evidence, try_next = {"calls_per_step": sum(row.calls_per_step for row in waits)}, []
    if waits:
        evidence |= {"call": waits[0].call, "operator": waits[0].operator, "frame": waits[0].frame}
        if "copy" in (waits[0].operator or "") or "Memcpy" in waits[0].call:
            try_next = ["pin_memory", "non_blocking"]
    message = "the device is idle while the host waits for it"
    yield "sync-bound", 0.05, message, idle.get("synchronisation", 0.0), evidence, try_next


# ---------------------------------------------------------------- health

_BREAKDOWN = ["breakdown_us", "mean_us", "exposed_and_hidden_us", "idle"]
_DEVICE = [*_BREAKDOWN, "gpu_utilization", "est_sm_efficiency", "est_achieved_occupancy", "tensor_core"]
_FEW = 0.01
"""A share of launches without a kernel that the edges of the recording explain."""


def check(trace: Trace) -> list[Health]:
    """Problems of a trace; `spoils` names the figures that the analysis then sets to None."""
    return [*(problem for file in trace.files for problem in _file(file)), *_recording(trace)]


def _file(file: Reader) -> Iterator[Health]:
    if file.head.simulated:
        facts = "".join(f"; {name}: {fact[:200]}" for name, fact in file.head.simulated.items())
        message = f"this trace is simulated: no kernel ran, its times are predicted{facts}"
        yield Health("simulated", "info", message)
    if file.truncated:
        message = f"the file is cut off or damaged: {file.truncated}; an unknown number of events is missing"
        yield Health("truncated", "error", message, ["mean_step_us", *_DEVICE])
    elif file.repaired:
        yield Health("repaired", "warning", "invalid escapes, bytes or numbers were repaired")
    if file.dropped:
        reasons = "impossible values (missing, negative, not a number)"
        yield Health("bad_events", "warning", f"left out {file.dropped} events with {reasons}")


def _recording(trace: Trace) -> Iterator[Health]:
    steps, start, ids = trace.steps, trace.table.start, trace.table.correlation
    if not steps.marked:
        message = f"no ProfilerStep marks: '{WHOLE}' stands for one step; call profiler.step() to get steps"
        yield Health("no_steps", "info", message)
    if steps.empty:
        names = ", ".join(steps.empty[:5])
        message = f"steps that repeat or lie inside others were left out: {names}"
        yield Health("duplicate_steps", "warning", message)
    launching = trace.matching(trace.calls, "^(?!.*(Graph|HostFunc)).*Launch")
    launching = launching[ids[launching] >= 0]
    if not len(trace.device):
        if len(launching):
            message = (
                "a GPU was used but no GPU event was recorded; profile in a fresh process (pytorch#175790)"
            )
            yield Health("no_gpu_events", "error", message, _DEVICE)
        return
    without = launching[~np.isin(ids[launching], ids[trace.device])]
    if len(without):
        many = len(without) > _FEW * len(launching)
        message = f"{len(without)} of {len(launching)} launches have no kernel in the trace"
        recorded = start[trace.launch[trace.launched]]
        first = np.full(len(trace.files), np.iinfo(np.int64).max)  # of each rank
        np.minimum.at(first, trace.rank(recorded), recorded)
        if (start[without] < first[trace.rank(start[without])]).all():
            message += ", all before the first recorded kernel: CUPTI before 13.1 loses them when a session "
            message += "starts (pytorch#192021); give the profiler's schedule more warm-up steps"
        elif many:
            message += "; profile once, in a fresh process (pytorch#192021)"
        yield Health("dropped_kernels", "error" if many else "warning", message, _DEVICE if many else [])
    tied = trace.launched
    early = int((start[tied] < start[trace.launch[tied]]).sum())
    if early:
        message = f"{early} of {len(tied)} device events start before their launch"
        yield Health("early_kernels", "warning", message, ["idle"] if early > _FEW * len(tied) else [])
