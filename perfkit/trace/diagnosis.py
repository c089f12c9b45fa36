"""What is wrong with a file, and the bottlenecks that it shows: switches to try, the largest gain.

Amdahl's law bounds the gain: without any of the exposed time the step would be 1 / (1 - exposed / step) times
as fast, so no fix for it can give more.
"""

from collections.abc import Iterator

import numpy as np

from perfkit.trace.model import Analysis, Bottleneck, Health
from perfkit.trace.reader import Reader
from perfkit.trace.table import WHOLE, Kind, Trace

_BOUNDED = 0.95
"""Share of a step beyond which Amdahl's bound is too large to be useful."""
_Case = tuple[str, float, float | None, str, list[str]]
"""Bottleneck, smallest share of a step, exposed µs per step, message, switches to try."""


def diagnose(analysis: Analysis) -> list[Bottleneck]:
    """The bottlenecks whose share of a step reaches their threshold, the longest exposed time first.

    Empty if nothing stands out, or if the trace is too damaged for a diagnosis (see `analysis.health`).
    """
    if not analysis.mean_step_us or analysis.mean_us["other"] is None:
        return []
    found = []
    cases = _on_gpu(analysis) if analysis.has_accelerator else _on_cpu(analysis)
    for name, threshold, exposed, message, try_next in (_loading(analysis), *cases):
        share = (exposed or 0.0) / analysis.mean_step_us
        if exposed and share >= threshold:
            bottleneck = Bottleneck(
                bottleneck=name,
                message=f"{share:.0%} of a step: {message}",
                exposed_us=exposed,
                share_of_step=share,
                gain_at_most=1 / (1 - share) if share < _BOUNDED else None,
                try_next=try_next,
            )
            found.append(bottleneck)
    return sorted(found, key=lambda bottleneck: -bottleneck.exposed_us)


def _loading(analysis: Analysis) -> _Case:
    message = "waiting for the next batch"
    if any("_SingleProcess" in name for name in analysis.device["loaders"]):
        message += ", which the main process loads"
    try_next = ["workers", "batched_fetch", "device_resize"]
    return "data-bound", 0.10, analysis.mean_us["dataloader"], message, try_next


def _on_cpu(analysis: Analysis) -> Iterator[_Case]:
    mean, message = analysis.mean_us, "operators compute on the CPU, which is the device here"
    yield "device-bound", 0.80, mean["cpu_op"], message, ["cpu_threads", "channels_last", "compile", "amp"]
    message = "no operator runs: Python code, garbage collection or waiting"
    yield "host-bound", 0.20, mean["other"], message, ["batch_size", "compile"]


def _on_gpu(analysis: Analysis) -> Iterator[_Case]:
    mean, idle = analysis.mean_us, {row.cause: row.us_per_step for row in analysis.idle}
    calls = sum(row.calls for row in analysis.kernels) / len(analysis.steps)
    message = f"the device is idle because the host has not launched the next of {calls:,.0f} kernels"
    yield "host-bound", 0.15, idle.get("launch"), message, ["compile", "batch_size", "optimizer_impl"]

    exposed = (analysis.communication or {}).get("exposed_us_per_step")
    message = "collectives that do not overlap with computation"
    yield "communication-bound", 0.10, exposed, message, ["accumulation", "batch_size"]

    cores = (analysis.tensor_core or {}).get("yes", 0.0)
    capability = float(analysis.device["compute_capability"] or 0)
    faster = ["amp", "fp32_precision"] if capability >= 8 else ["amp"] if capability >= 7 else []
    try_next = [*(faster if cores < 0.5 else ()), "channels_last", "compile", "cudnn_benchmark"]
    yield "device-bound", 0.80, mean["kernel"], "kernels compute on the device", try_next

    across = [row for row in analysis.transfers if row.direction in ("HtoD", "DtoH")]
    is_pageable = any(row.host_memory == "pageable" for row in across)
    exposed = min(mean["memcpy"] or 0.0, sum(row.us_per_step for row in across))
    exposed += idle.get("copy", 0.0) if across else 0.0
    message = "copies between host and device that do not overlap with kernels"
    message += ", some from pageable memory" if is_pageable else ""
    first = ["pin_memory", "non_blocking"] if is_pageable else ["non_blocking"]
    yield "copy-bound", 0.05, exposed, message, [*first, "uint8_copy", "device_prefetch"]

    message, try_next = "the device is idle while the host waits for it", []
    for longest in [row for row in analysis.syncs if row.kind == "runtime"][:1]:
        message += f", the longest in {longest.call} ({longest.frame or longest.operator or 'no place'})"
        if "copy" in (longest.operator or "") or "Memcpy" in longest.call:
            try_next = ["pin_memory", "non_blocking"]
    yield "sync-bound", 0.05, idle.get("synchronisation"), message, try_next


# ---------------------------------------------------------------- health

_DEVICE = [
    *("breakdown_us", "mean_us", "exposed_and_hidden_us", "idle", "gpu_utilization", "tensor_core"),
    *("gpu_utilization_with_copies", "est_sm_efficiency", "est_achieved_occupancy"),
]
"""Figures that need every event of the device."""
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
        message = "the file is cut off or damaged: an unknown number of events is missing"
        yield Health("truncated", "error", message, ["mean_step_us", *_DEVICE])
    if file.dropped:
        message = f"left out {file.dropped} events that are damaged or have impossible values"
        yield Health("bad_events", "warning", message)


def _recording(trace: Trace) -> Iterator[Health]:
    start, ids = trace.table.start, trace.table.correlation
    marks = len(trace.rows(Kind.STEP))
    if not marks:
        message = f"no ProfilerStep marks: '{WHOLE}' stands for one step; call profiler.step() to get steps"
        yield Health("no_steps", "info", message)
    elif left := marks - len(trace.steps.names):
        message = f"left out {left} of {marks} steps, which repeat or lie inside others"
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
