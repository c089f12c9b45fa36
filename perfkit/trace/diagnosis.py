"""What is wrong with a file, and the bottlenecks that it shows: switches to try, the largest gain.

Amdahl's law bounds the gain: without any of the exposed time the step would be 1 / (1 - exposed / step) times
as fast, so no fix for it can give more.
"""

from collections.abc import Iterator

import numpy as np

from perfkit.trace.model import Analysis, Bottleneck, Health
from perfkit.trace.table import WHOLE, Kind, Trace

_BOUNDED = 0.95
"""Share of a step beyond which Amdahl's bound is too large to be useful."""
_Case = tuple[str, float, float | None, str, list[str]]
"""Bottleneck, smallest share of a step, exposed µs per step, message, switches to try."""


def diagnose(analysis: Analysis) -> list[Bottleneck]:
    """The bottlenecks whose share of a step reaches their threshold, the longest exposed time first.

    Empty if nothing stands out, or if the trace is too damaged for a diagnosis (see `analysis.health`).
    """
    mean, step_us, found = analysis.mean_us, analysis.mean_step_us, []
    if not step_us or mean["other"] is None:
        return []
    try_next = ["workers", "uint8_copy", "device_resize"]
    loading = "data-bound", 0.10, mean["dataloader"], "waiting for the next batch", try_next
    for name, least, exposed, message, try_next in (loading, *_computing(analysis)):
        share = (exposed or 0.0) / step_us
        if exposed and share >= least:
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


def _computing(analysis: Analysis) -> Iterator[_Case]:
    mean, idle = analysis.mean_us, {row.cause: row.us_per_step for row in analysis.idle}
    if not analysis.has_accelerator:
        message = "operators compute on the CPU, which is the device here"
        try_next = ["cpu_threads", "channels_last", "compile", "amp"]
        yield "device-bound", 0.80, mean["cpu_op"], message, try_next
        message = "no operator runs: Python code, garbage collection or waiting"
        yield "host-bound", 0.20, mean["other"], message, ["batch_size", "compile"]
        return
    message = "the device is idle because the host has not launched its next kernel"
    yield "host-bound", 0.15, idle.get("launch"), message, ["compile", "batch_size", "optimizer_impl"]

    exposed = (analysis.communication or {}).get("exposed_us_per_step")
    message = "collectives that do not overlap with computation"
    yield "communication-bound", 0.10, exposed, message, ["accumulation", "batch_size"]

    capability = float(analysis.device["compute_capability"] or 0)
    has_slow_products = (analysis.tensor_core or {}).get("yes", 0.0) < 0.5
    faster = (("amp", 7), ("fp32_precision", 8))
    try_next = [name for name, least in faster if has_slow_products and capability >= least]
    try_next += ["channels_last", "compile", "cudnn_benchmark"]
    yield "device-bound", 0.80, mean["kernel"], "kernels compute on the device", try_next

    across = [row for row in analysis.transfers if row.direction in ("HtoD", "DtoH")]
    exposed = min(mean["memcpy"] or 0.0, sum(row.us_per_step for row in across))
    exposed += idle.get("copy", 0.0) if across else 0.0
    try_next = ["pin_memory"] if any(row.host_memory == "pageable" for row in across) else []
    try_next += ["non_blocking", "uint8_copy", "device_prefetch"]
    message = "copies between host and device that do not overlap with kernels"
    yield "copy-bound", 0.05, exposed, message, try_next

    message = "the device is idle while the host waits for it"
    for longest in [row for row in analysis.syncs if row.kind == "runtime"][:1]:
        message += f", the longest in {longest.call} ({longest.frame or longest.operator or 'no place'})"
    yield "sync-bound", 0.05, idle.get("synchronisation"), message, []


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
    for file in trace.files:
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
        message = f"{len(without)} of {len(launching)} launches have no kernel in the trace"
        recorded = np.sort(start[trace.launch[tied]])
        rank_starts = trace.starts[trace.rank(start[without])]
        if (np.searchsorted(recorded, start[without]) == np.searchsorted(recorded, rank_starts)).all():
            message += ", all before the first recorded kernel: CUPTI before 13.1 loses them when a session "
            message += "starts (pytorch#192021); give the profiler's schedule more warm-up steps"
        elif many:
            message += "; profile once, in a fresh process (pytorch#192021)"
        yield Health("dropped_kernels", "error" if many else "warning", message, _DEVICE if many else [])
    early = int((start[tied] < start[trace.launch[tied]]).sum())
    if early:
        message = f"{early} of {len(tied)} device events start before their launch"
        yield Health("early_kernels", "warning", message, ["idle"] if early > _FEW * len(tied) else [])
