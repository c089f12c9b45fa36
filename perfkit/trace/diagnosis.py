"""The bottlenecks that a trace shows: evidence in numbers, the switch to try next, the largest possible gain.

Amdahl's law bounds the gain: without any of the exposed time the step would be 1 / (1 - exposed / step) times
as fast, so no fix for it can give more.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from perfkit.trace.model import Analysis
from perfkit.trace.names import is_bandwidth_bound


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
_Case = tuple[float, dict[str, Any], list[str]]
"""Exposed µs per step, evidence, switches to try next."""


def diagnose(analysis: Analysis) -> list[Bottleneck]:
    """The bottlenecks whose share of a step reaches their threshold, the longest exposed time first.

    Empty if nothing stands out, or if the trace is too damaged for a diagnosis (see `analysis.health`).
    """
    step = analysis.mean_step_us
    if not step or analysis.mean_us["other"] is None:
        return []
    bottlenecks = []
    for name, threshold, message, rule in _ON_GPU if analysis.has_accelerator else _ON_CPU:
        exposed, evidence, try_next = rule(analysis)
        share = exposed / step
        if share >= threshold:
            bottleneck = Bottleneck(
                bottleneck=name,
                message=f"{share:.0%} of a step: {message}",
                exposed_us=exposed,
                share_of_step=share,
                gain_at_most=1 / (1 - share) if share < _BOUNDED else None,
                evidence=evidence,
                try_next=try_next,
            )
            bottlenecks.append(bottleneck)
    return sorted(bottlenecks, key=lambda bottleneck: -bottleneck.exposed_us)


def _idle(analysis: Analysis, cause: str) -> float:
    return sum(row.us_per_step for row in analysis.idle if row.cause == cause)


def _data(analysis: Analysis) -> _Case:
    single = any("_SingleProcess" in name for name in analysis.device["loaders"])
    loading = analysis.exposed_and_hidden_us["dataloader"]
    evidence = {"dataloader_in_all_us": loading, "loader_in_main_process": single}
    first = ["workers"] if single else ["workers", "prefetch_factor"]
    return analysis.mean_us["dataloader"] or 0.0, evidence, [*first, "batched_fetch", "device_resize"]


def _launch(analysis: Analysis) -> _Case:
    evidence = {
        "kernels_per_step": sum(row.calls for row in analysis.kernels) / len(analysis.steps),
        **(analysis.device["launch"] or {}),
    }
    evidence.pop("kernels", None)
    return _idle(analysis, "launch"), evidence, ["compile", "batch_size", "optimizer_impl"]


def _copy(analysis: Analysis) -> _Case:
    across = [row for row in analysis.transfers if row.direction in ("HtoD", "DtoH")]
    copied = sum(row.us_per_step for row in across)
    pageable = sum(row.us_per_step for row in across if row.host_memory == "pageable")
    sizes = [row.bytes for row in across if row.bytes is not None]
    evidence = {
        "copies_us": copied,
        "pageable_us": pageable,
        "bytes_per_step": sum(sizes) / len(analysis.steps) if len(sizes) == len(across) else None,
    }
    exposed = min(analysis.mean_us["memcpy"] or 0.0, copied) + (_idle(analysis, "copy") if across else 0.0)
    first = ["pin_memory", "non_blocking"] if pageable else ["non_blocking"]
    return exposed, evidence, [*first, "uint8_copy", "device_prefetch"]


def _sync(analysis: Analysis) -> _Case:
    waits = [row for row in analysis.syncs if row.kind == "runtime"]
    evidence: dict[str, Any] = {"calls_per_step": sum(row.calls_per_step for row in waits)}
    copies = False
    if waits:
        evidence |= {"call": waits[0].call, "operator": waits[0].operator, "frame": waits[0].frame}
        copies = "copy" in (waits[0].operator or "") or "Memcpy" in waits[0].call
    return _idle(analysis, "synchronisation"), evidence, ["pin_memory", "non_blocking"] if copies else []


def _communication(analysis: Analysis) -> _Case:
    figures = analysis.communication or {}
    evidence = {key: value for key, value in figures.items() if key.endswith("_us_per_step")}
    return figures.get("exposed_us_per_step") or 0.0, evidence, ["accumulation", "batch_size"]


def _device(analysis: Analysis) -> _Case:
    cores = analysis.tensor_core or {}
    evidence = {
        "gpu_utilization": analysis.gpu_utilization,
        "est_sm_efficiency": analysis.est_sm_efficiency,
        **{f"tensor_core_{answer}": share for answer, share in cores.items()},
    }
    capability = float(analysis.device["compute_capability"] or 0)
    faster = ["amp", "fp32_precision"] if capability >= 8 else ["amp"] if capability >= 7 else []
    rest = ["channels_last", "compile", "cudnn_benchmark"]
    tried = cores.get("yes", 0.0) >= 0.5
    return analysis.mean_us["kernel"] or 0.0, evidence, rest if tried else [*faster, *rest]


def _memory(analysis: Analysis) -> _Case:
    total = sum(row.total_us for row in analysis.kernels)
    bound = [row for row in analysis.kernels if is_bandwidth_bound(row.name)]
    share = sum(row.total_us for row in bound) / total if total else 0.0
    evidence = {"share_of_kernel_time": share, "judged_by": "kernel names"}
    evidence |= {"longest": bound[0].name[:120]} if bound else {}
    return (analysis.mean_us["kernel"] or 0.0) * share, evidence, ["compile", "amp", "channels_last"]


def _cpu(analysis: Analysis) -> _Case:
    evidence = {"longest": analysis.operators[0].name} if analysis.operators else {}
    return analysis.mean_us["cpu_op"] or 0.0, evidence, ["cpu_threads", "channels_last", "compile", "amp"]


def _python(analysis: Analysis) -> _Case:
    return analysis.mean_us["other"] or 0.0, {}, ["batch_size", "compile"]


_Rule = tuple[str, float, str, Callable[[Analysis], _Case]]
_LOADING: _Rule = ("data-bound", 0.10, "waiting for the next batch", _data)
_ON_GPU: tuple[_Rule, ...] = (
    _LOADING,
    ("host-bound", 0.15, "the device is idle because the host has not launched the next kernel", _launch),
    ("copy-bound", 0.05, "copies between host and device that do not overlap with kernels", _copy),
    ("sync-bound", 0.05, "the device is idle while the host waits for it", _sync),
    ("communication-bound", 0.10, "collectives that do not overlap with computation", _communication),
    ("device-bound", 0.80, "kernels compute on the device", _device),
    ("memory-bound", 0.40, "kernels limited by memory bandwidth (element-wise, norms, layout)", _memory),
)
_ON_CPU: tuple[_Rule, ...] = (
    _LOADING,
    ("device-bound", 0.80, "operators compute on the CPU, which is the device here", _cpu),
    ("host-bound", 0.20, "no operator runs: Python code, garbage collection or waiting", _python),
)
