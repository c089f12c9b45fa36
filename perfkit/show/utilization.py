"""How busy NVML said the GPU was: sampled from outside, so a share of time, not of the device's power."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from perfkit.results.run import Run
from perfkit.show import results, rows, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FEW = 5


def draw(runs: Sequence[Run], ax: Axes, ink: str) -> None:
    """A bar a stage up to the median sample, and every sample as a dot, in the order of time from the top."""
    if not any(map(_samples, runs)):
        return style.say(ax, nothing(runs), ink)
    rows.frame(ax, ink, runs, numbers, "GPU utilisation by NVML [%], sampled")
    for at, run in enumerate(runs):
        samples = _samples(run)
        if samples:
            rows.bar(ax, ink, at, 0, float(np.median(samples)), style.SKY)
            height = np.linspace(at - 0.24, at + 0.24, len(samples)) if len(samples) > 1 else [at]
            ax.plot(samples, height, ".", color=ink, markersize=3.5, alpha=0.8)
    ax.set_xlim(0, 104)
    return None


def _samples(run: Run) -> list[float]:
    return run.raw.gpu_utilization_nvml if run.status == "ok" else []


def nothing(runs: Sequence[Run]) -> str:
    """Why there is nothing to draw; empty where there is something."""
    if any(map(_samples, runs)):
        return ""
    if any(map(results.on_gpu, runs)):
        return "No sample of the GPU's utilisation: the runs were too short for NVML, or NVML is not there."
    return "No GPU in this run."


def numbers(run: Run) -> str:
    """The median sample, and of how many."""
    samples = _samples(run)
    if not samples:
        return ""
    few = ", few" if len(samples) < _FEW else ""
    return f"{np.median(samples):.0f}% median\n{len(samples)} sample{'s' if len(samples) > 1 else ''}{few}"
