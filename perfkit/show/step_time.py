"""Where the time of a step goes: waiting for data, or everything else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfkit.results.run import Run
from perfkit.results.stats import Estimate
from perfkit.show import results, rows, style, units

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(runs: Sequence[Run], ax: Axes, ink: str) -> None:
    """A bar a stage: the median step, divided by the share of the whole time that was spent waiting."""
    steps = [results.step_s(run) for run in runs]
    longest = max([step.high for step in steps if step], default=0.0)
    scale, unit = (1.0, "s") if longest >= 2 else (1e3, "ms")
    label = f"time of a step [{unit}]: median, 95% interval; batch sizes may differ"
    rows.frame(ax, ink, runs, numbers, label)
    for at, (run, step) in enumerate(zip(runs, steps, strict=True)):
        if step:
            wait = step.median * (results.wait_share(run) or 0.0) * scale
            rows.bar(ax, ink, at, 0, wait, style.ORANGE, style.WAIT_HATCH)
            rows.bar(ax, ink, at, wait, step.median * scale - wait, style.BLUE)
            rows.whisker(ax, ink, at, _scaled(step, scale))
    ax.set_xlim(0, longest * scale * 1.03 or 1)
    rows.legend(ax, ink, [("waits for data", style.ORANGE, style.WAIT_HATCH), ("the rest", style.BLUE, "")])


def _scaled(step: Estimate, scale: float) -> Estimate:
    return Estimate(step.median * scale, step.low * scale, step.high * scale)


def numbers(run: Run) -> str:
    """Step time with its interval, share of waiting, and what it comes to for a sample."""
    step, share = results.step_s(run), results.wait_share(run)
    if not step:
        return ""
    said = [] if share is None else [f"{units.percent(share)} waits"]
    if run.samples_per_step:
        each = units.duration(step.median / run.samples_per_step)
        said.append(f"{each} × {run.samples_per_step:,} samples")
    return "\n".join(filter(None, (units.duration_interval(step), ", ".join(said))))
