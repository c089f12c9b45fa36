"""The bottlenecks that a trace shows: evidence in numbers, the switch to try next, the largest possible gain.

A rule applies only where its share of the step reaches its threshold; an empty list means that nothing
stands out. Amdahl's law bounds the gain: without any of the exposed time the step would be
1 / (1 - exposed / step) times as fast, so no fix for it can give more.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from perfkit.trace.device import is_bandwidth_bound
from perfkit.trace.model import Analysis


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
"""What a rule finds in an analysis: exposed µs per step, evidence, switches to try next."""


def diagnose(analysis: Analysis) -> list[Bottleneck]:
    """The bottlenecks of an analysis, the longest exposed time first.

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
            bound = 1 / (1 - share) if share < _BOUNDED else None
            bottlenecks.append(
                Bottleneck(
                    bottleneck=name, message=f"{share:.0%} of a step: {message}", exposed_us=exposed,
                    share_of_step=share, gain_at_most=bound, evidence=evidence, try_next=try_next,
                )
            )  # fmt: skip
    return sorted(bottlenecks, key=lambda bottleneck: -bottleneck.exposed_us)


def _idle(analysis: Analysis, cause: str) -> float:
    return sum(row.us_per_step for row in analysis.idle if row.cause == cause)


def _data(analysis: Analysis) -> _Case:
    exposed = analysis.mean_us["dataloader"] or 0.0
    single = any("_SingleProcess" in name for name in analysis.device["loaders"])
    evidence = {
        "dataloader_exposed_us": exposed,
        "dataloader_total_us": analysis.exposed_and_hidden_us["dataloader"],
        "loader_in_main_process": single,
    }
    first = ["workers"] if single else ["workers", "prefetch_factor"]
    return exposed, evidence, [*first, "batched_fetch", "device_resize"]


def _launch(analysis: Analysis) -> _Case:
    launch, exposed = analysis.device["launch"] or {}, _idle(analysis, "launch")
    evidence = {
        "idle_for_launch_us": exposed,
        "kernels_per_step": sum(row.calls for row in analysis.kernels) / len(analysis.steps),
        **{key: launch.get(key) for key in ("kernels_shorter_than_launch", "delay_median_us", "queue_mean")},
    }
    return exposed, evidence, ["compile", "batch_size", "optimizer_impl"]


def _copy(analysis: Analysis) -> _Case:
    across = [row for row in analysis.transfers if row.direction in ("HtoD", "DtoH")]
    copied = sum(row.us_per_step for row in across)
    exposed = min(analysis.mean_us["memcpy"] or 0.0, copied) + (_idle(analysis, "copy") if across else 0.0)
    pageable = sum(row.us_per_step for row in across if row.host_memory == "pageable")
    sizes = [row.bytes for row in across if row.bytes is not None]
    evidence = {
        "copies_exposed_us": exposed,
        "host_device_copies_us": copied,
        "pageable_us": pageable,
        "bytes_per_step": sum(sizes) / len(analysis.steps) if len(sizes) == len(across) else None,
    }
    first = ["pin_memory", "non_blocking"] if pageable else ["non_blocking"]
    return exposed, evidence, [*first, "uint8_copy", "device_prefetch"]


def _sync(analysis: Analysis) -> _Case:
    waits = [row for row in analysis.syncs if row.kind == "runtime"]
    worst = max(waits, key=lambda row: row.total_us, default=None)
    exposed = _idle(analysis, "synchronisation")
    evidence = {
        "idle_for_sync_us": exposed,
        "calls_per_step": sum(row.calls_per_step for row in waits),
        **({"call": worst.call, "operator": worst.operator, "frame": worst.frame} if worst else {}),
    }
    copies = worst is not None and ("copy" in (worst.operator or "") or "Memcpy" in worst.call)
    return exposed, evidence, ["pin_memory", "non_blocking"] if copies else []


def _communication(analysis: Analysis) -> _Case:
    figures = analysis.communication or {}
    keys = ("total_us_per_step", "exposed_us_per_step", "overlapped_us_per_step", "waiting_us_per_step")
    evidence = {key: figures.get(key) for key in keys}
    return figures.get("exposed_us_per_step") or 0.0, evidence, ["accumulation", "batch_size"]


def _device(analysis: Analysis) -> _Case:
    cores = analysis.tensor_core or {}
    evidence = {
        "kernel_us": analysis.mean_us["kernel"],
        "gpu_utilization": analysis.gpu_utilization,
        "est_sm_efficiency": analysis.est_sm_efficiency,
        **{f"tensor_core_{answer}": share for answer, share in cores.items()},
    }
    capability = float(analysis.device["compute_capability"] or 0)
    faster = ["amp", "fp32_precision"] if capability >= 8 else ["amp"] if capability >= 7 else []
    tried = cores.get("yes", 0.0) >= 0.5
    rest = ["channels_last", "compile", "cudnn_benchmark"]
    return analysis.mean_us["kernel"] or 0.0, evidence, rest if tried else [*faster, *rest]


def _memory(analysis: Analysis) -> _Case:
    whole = sum(row.total_us for row in analysis.kernels)
    bound = [row for row in analysis.kernels if is_bandwidth_bound(row.name)]
    share = sum(row.total_us for row in bound) / whole if whole else 0.0
    exposed = (analysis.mean_us["kernel"] or 0.0) * share
    evidence = {"bandwidth_bound_us": exposed, "share_of_kernel_time": share, "judged_by": "kernel names"}
    evidence["greatest"] = [row.name[:120] for row in bound[:3]]
    return exposed, evidence, ["compile", "amp", "channels_last"]


def _cpu(analysis: Analysis) -> _Case:
    exposed = analysis.mean_us["cpu_op"] or 0.0
    top = {row.name: row.host_self_us for row in analysis.operators[:3]}
    evidence = {"cpu_op_us": exposed, "operators_us": top}
    return exposed, evidence, ["cpu_threads", "channels_last", "compile", "amp"]


def _python(analysis: Analysis) -> _Case:
    exposed = analysis.mean_us["other"] or 0.0
    return exposed, {"other_us": exposed}, ["batch_size", "compile"]


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
