"""The contents of an analysis, and the bottlenecks that they show.

Plain frozen values: times in µs, ratios 0–1, None for what is unknown.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct


class Health(Struct, frozen=True):
    """A problem of the file. `spoils`: names of the figures that are set to None because of it."""

    code: str
    severity: str  # "info", "warning", "error"
    message: str
    spoils: list[str] = []


class Step(Struct, frozen=True, kw_only=True):
    """One step: start on the trace's own clock, and the eight parts, whose sum is the duration."""

    name: str
    rank: int
    start_us: float
    duration_us: float
    breakdown_us: dict[str, float | None]


class Operator(Struct, frozen=True, kw_only=True):
    """Calls of one operator with one set of input shapes, over the whole trace."""

    name: str
    input_shapes: str | None
    input_dtypes: str | None
    calls: int
    host_total_us: float
    host_self_us: float
    device_total_us: float | None
    device_self_us: float | None


class Calls(Struct, frozen=True, kw_only=True):
    """Some calls, with the operator and the line of code around them."""

    calls: int
    total_us: float
    operator: str | None
    frame: str | None


class Kernel(Calls, frozen=True, kw_only=True):
    """Launches of one kernel, with the place of the longest. Blocks and occupancy: weighted by duration."""

    name: str
    mean_us: float
    max_us: float
    min_us: float
    blocks_per_sm: float | None
    occupancy: float | None
    tensor_core: str


class Transfer(Calls, frozen=True, kw_only=True):
    """Copies of one kind from one place. `host_memory`: "pinned", "pageable" or None (not recorded)."""

    direction: str
    host_memory: str | None
    bytes: int | None
    gb_per_s: float | None
    calls_per_step: float
    us_per_step: float


class Sync(Calls, frozen=True, kw_only=True):
    """Calls that make the host wait. An operator row encloses the runtime call it makes: do not add them."""

    call: str
    kind: str  # "runtime" or "operator"
    calls_per_step: float
    ms_per_step: float


class Idle(Struct, frozen=True, kw_only=True):
    """Time within steps in which the device does nothing, by cause. All rows sum to the idle time."""

    cause: str
    total_us: float
    us_per_step: float
    share_of_step: float


class Bottleneck(Struct, frozen=True, kw_only=True):
    """One bottleneck. `exposed_us`: per step; `gain_at_most`: ratio of speeds, None without a useful bound.

    `try_next`: fields of a recipe, the most promising first.
    """

    bottleneck: str
    message: str
    exposed_us: float
    share_of_step: float
    gain_at_most: float | None
    try_next: list[str]


class Analysis(Struct, frozen=True, kw_only=True):
    """Everything that is read out of a trace, as in its JSON document."""

    schema: str = "perfkit.trace/1"
    files: list[str]
    device: dict[str, Any]
    health: list[Health]
    steps: list[Step]
    mean_step_us: float | None
    mean_us: dict[str, float | None]
    exposed_and_hidden_us: dict[str, float | None]
    gpu_utilization: float | None
    gpu_utilization_with_copies: float | None = None
    est_sm_efficiency: float | None
    est_achieved_occupancy: float | None
    tensor_core: dict[str, float] | None
    operators: list[Operator]
    kernels: list[Kernel]
    transfers: list[Transfer]
    syncs: list[Sync]
    idle: list[Idle]
    communication: dict[str, Any] | None
    diagnosis: list[Bottleneck] = []

    @property
    def has_accelerator(self) -> bool:
        """Whether device events were recorded."""
        return bool(self.device["kind"] != "cpu")


# ---------------------------------------------------------------- bottlenecks

_BOUNDED = 0.95
"""Share of a step beyond which Amdahl's bound is too large to be useful."""


def diagnose(analysis: Analysis) -> list[Bottleneck]:
    """The bottlenecks whose share of a step reaches their threshold, the longest exposed time first.

    Amdahl's law bounds the gain: without any of the exposed time the step would be 1 / (1 - exposed / step)
    times as fast, so no fix for it can give more.

    Empty if nothing stands out, or if the trace is too damaged for a diagnosis (see `analysis.health`).
    """
    step_us, rows = analysis.mean_step_us, []
    if not step_us or analysis.mean_us["other"] is None:
        return []
    for name, least, exposed, message, try_next in _cases(analysis):
        share = (exposed or 0.0) / step_us
        if share >= least:
            bottleneck = Bottleneck(
                bottleneck=name,
                message=f"{share:.0%} of a step: {message}",
                exposed_us=exposed or 0.0,
                share_of_step=share,
                gain_at_most=1 / (1 - share) if share < _BOUNDED else None,
                try_next=try_next,
            )
            rows.append(bottleneck)
    return sorted(rows, key=lambda row: -row.exposed_us)


def _cases(analysis: Analysis) -> Iterator[tuple[str, float, float | None, str, list[str]]]:
    """Bottleneck, smallest share of a step, exposed µs per step, message, switches to try."""
    mean, idle = analysis.mean_us, {row.cause: row.us_per_step for row in analysis.idle}
    try_next = ["workers", "uint8_copy", "device_resize"]
    yield "data-bound", 0.10, mean["dataloader"], "waiting for the next batch", try_next
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

    try_next = ["channels_last", "compile", "cudnn_benchmark"]
    if (analysis.tensor_core or {}).get("yes", 0.0) < 0.5:  # 16 bits came with Volta, TF32 with Ampere
        capability = float(analysis.device["compute_capability"] or 0)
        try_next = ["amp"] * (capability >= 7) + ["fp32_precision"] * (capability >= 8) + try_next
    yield "device-bound", 0.80, mean["kernel"], "kernels compute on the device", try_next

    across = [row for row in analysis.transfers if row.direction in ("HtoD", "DtoH")]
    exposed = min(mean["memcpy"] or 0.0, sum(row.us_per_step for row in across))
    exposed += idle.get("copy", 0.0) if across else 0.0
    try_next = ["pin_memory"] * any(row.host_memory == "pageable" for row in across)
    try_next += ["non_blocking", "uint8_copy", "device_prefetch"]
    message = "copies between host and device that do not overlap with kernels"
    yield "copy-bound", 0.05, exposed, message, try_next

    message = "the device is idle while the host waits for it"
    for longest in [row for row in analysis.syncs if row.kind == "runtime"][:1]:
        message += f", the longest in {longest.call} ({longest.frame or longest.operator or 'no place'})"
    yield "sync-bound", 0.05, idle.get("synchronisation"), message, []
