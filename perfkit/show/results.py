"""What tables and figures need of runs beyond the runs' properties."""

from collections.abc import Sequence

import numpy as np

from perfkit.results.run import Run


def stages(runs: Sequence[Run]) -> list[Run]:
    """The runs without the A/A row, which is no stage of a ladder."""
    return [run for run in runs if not run.is_again]


def busy_share(run: Run) -> float | None:
    """The share of time in which the device is busy, 0 to 1: NVML's median, or predicted kernel time."""
    if run.status != "ok":
        return None
    if run.utilization is not None:
        return run.utilization
    samples = run.raw.gpu_utilization_nvml
    return float(np.median(samples)) / 100 if samples else None


def kernel_s(run: Run) -> float | None:
    """Predicted kernel time of a sample, of simulated runs."""
    if run.simulated is None or not run.samples_per_step:
        return None
    return run.simulated.kernel_s / run.samples_per_step or None
