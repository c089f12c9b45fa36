"""The contents of an analysis: frozen values, times in µs, ratios from 0 to 1, None for what is unknown."""

from typing import Any

from msgspec import Struct


class Health(Struct, frozen=True):
    """A problem of the file. `spoils` names the figures that are set to None because of it."""

    code: str
    severity: str  # "info", "warning", "error"
    message: str
    spoils: list[str] = []


class TraceStep(Struct, frozen=True, kw_only=True):
    """One step: its start on the trace's clock, and its eight parts, whose sum is the duration."""

    name: str
    rank: int
    start_us: float
    duration_us: float
    breakdown_us: dict[str, float | None]


class Operator(Struct, frozen=True, kw_only=True):
    """The calls of one operator in the whole trace."""

    name: str
    calls: int
    host_total_us: float
    host_self_us: float
    device_self_us: float | None


class Calls(Struct, frozen=True, kw_only=True):
    """Calls from one place: the operator and the line of code around them."""

    calls: int
    total_us: float
    operator: str | None
    frame: str | None


class Kernel(Calls, frozen=True, kw_only=True):
    """The launches of one kernel, with the place of the longest one."""

    name: str
    mean_us: float
    tensor_core: str


class Transfer(Calls, frozen=True, kw_only=True):
    """Copies of one kind from one place. `host_memory` is "pinned", "pageable" or None (not recorded)."""

    direction: str
    host_memory: str | None
    bytes: int | None
    gb_per_s: float | None
    calls_per_step: float
    us_per_step: float


class Sync(Calls, frozen=True, kw_only=True):
    """Runtime calls that make the host wait."""

    call: str
    calls_per_step: float
    us_per_step: float


class Idle(Struct, frozen=True, kw_only=True):
    """Time within steps in which the device is idle, by cause. The rows add up to the whole idle time."""

    cause: str
    total_us: float
    us_per_step: float
    share_of_step: float


class Bottleneck(Struct, frozen=True, kw_only=True):
    """One bottleneck. `gain_at_most`: a ratio of speeds, or None; `try_next`: switches, the best first."""

    bottleneck: str
    message: str
    exposed_us: float
    share_of_step: float
    gain_at_most: float | None
    try_next: list[str]


class TraceRank(Struct, frozen=True, kw_only=True):
    """One of several ranks, per step. `waiting_us` is how much its collectives exceed the shortest ones."""

    rank: int
    mean_step_us: float | None
    gpu_utilization: float | None
    computing_us: float | None
    communication_us: float | None
    exposed_us: float | None
    waiting_us: float | None


class Analysis(Struct, frozen=True, kw_only=True):
    """The complete analysis of a trace, as in its JSON document."""

    schema: str = "perfkit.trace/1"
    files: list[str]
    device: dict[str, Any]
    shows: list[str] = []
    """What the trace shows of the program: `training`, `inference`, `optimizer`, `graphs`, `compiled` …"""
    recorded_us: float = 0.0
    steps_are: str = "marked"  # `marked`, `inferred`, or the `whole recording` counts as one
    late_rank: int | None = None
    ranks: list[TraceRank] = []
    """The ranks, if there are several files. The other figures are those of `device["ranks"][0]`."""
    health: list[Health]
    steps: list[TraceStep]
    mean_step_us: float | None
    mean_us: dict[str, float | None]
    gpu_utilization: float | None
    tensor_core: dict[str, float] | None
    operators: list[Operator]
    kernels: list[Kernel]
    transfers: list[Transfer]
    syncs: list[Sync]
    idle: list[Idle]
    communication: dict[str, Any] | None
    diagnosis: list[Bottleneck] = []

    @property
    def is_empty(self) -> bool:
        """Whether neither an operator nor a kernel was recorded."""
        return any(problem.code == "nothing_recorded" for problem in self.health)

    @property
    def is_whole(self) -> bool:
        """Whether no steps were found, so that the recording counts as one."""
        return self.steps_are == "whole recording"

    @property
    def has_accelerator(self) -> bool:
        """Whether device events were recorded."""
        return self.device["kind"] not in ("cpu", "unknown")
