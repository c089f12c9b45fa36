"""What changed between two traces: operators and kernels that appeared, vanished, grew, shrank."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from msgspec import Struct

from perfkit.trace.model import Analysis, Kernel, Operator

SAME = 0.05  # a change of less than 5% of the larger side is "same"


class Change(Struct, frozen=True, kw_only=True):
    """One operator or kernel in both traces, per step: its own device time, or else its own host time."""

    name: str
    status: str  # "appeared", "vanished", "grew", "shrank", "same"
    a_us_per_step: float
    b_us_per_step: float
    a_calls_per_step: float
    b_calls_per_step: float

    @property
    def difference_us(self) -> float:
        """B minus A, µs per step."""
        return self.b_us_per_step - self.a_us_per_step


class TraceComparison(Struct, frozen=True, kw_only=True):
    """Two analyses side by side: steps, parts, and changes, the largest in absolute time first."""

    mean_step_us: tuple[float | None, float | None]
    parts_us: dict[str, tuple[float | None, float | None]]
    gpu_utilization: tuple[float | None, float | None]
    operator_time: str  # "device" or "host"
    operators: list[Change]
    kernels: list[Change]


def compare(a: Analysis, b: Analysis) -> TraceComparison:
    """Compares two analyses per step, so traces may differ in length."""
    time = "device" if a.has_accelerator and b.has_accelerator else "host"
    own = f"{time}_self_us"
    return TraceComparison(
        mean_step_us=(a.mean_step_us, b.mean_step_us),
        parts_us={part: (a.mean_us[part], b.mean_us[part]) for part in a.mean_us},
        gpu_utilization=(a.gpu_utilization, b.gpu_utilization),
        operator_time=time,
        operators=_changes(_per_step(a, a.operators, own), _per_step(b, b.operators, own)),
        kernels=_changes(_per_step(a, a.kernels, "total_us"), _per_step(b, b.kernels, "total_us")),
    )


def _per_step(
    analysis: Analysis, rows: Sequence[Operator | Kernel], time: str
) -> dict[str, tuple[float, float]]:
    """By name: µs and calls per step; `time` names the field of the rows that counts."""
    steps = len(analysis.steps) or 1
    times: defaultdict[str, float] = defaultdict(float)
    calls = Counter[str]()
    for row in rows:
        times[row.name] += getattr(row, time) or 0.0
        calls[row.name] += row.calls
    return {name: (times[name] / steps, calls[name] / steps) for name in calls}


def _changes(a: dict[str, tuple[float, float]], b: dict[str, tuple[float, float]]) -> list[Change]:
    rows = []
    for name in {**a, **b}:
        (time_a, calls_a), (time_b, calls_b) = a.get(name, (0.0, 0.0)), b.get(name, (0.0, 0.0))
        rows.append(
            Change(
                name=name, status=_status(name in a, name in b, time_a, time_b), a_us_per_step=time_a,
                b_us_per_step=time_b, a_calls_per_step=calls_a, b_calls_per_step=calls_b,
            )
        )  # fmt: skip
    return sorted(rows, key=lambda row: (-abs(row.difference_us), row.name))


def _status(in_a: bool, in_b: bool, a: float, b: float) -> str:
    if not in_a or not in_b:
        return "appeared" if in_b else "vanished"
    if abs(b - a) <= SAME * max(a, b):
        return "same"
    return "grew" if b > a else "shrank"
