"""What tables and figures read out of a run; None where it cannot be shown."""

import math
from collections.abc import Sequence

import numpy as np

from perfkit.ladder.stages import AGAIN
from perfkit.results import stats
from perfkit.results.run import Run
from perfkit.results.stats import Estimate, Ratio


def rate(run: Run) -> Estimate | None:
    """samples/s with its interval; None where nothing was measured, whatever else the run holds."""
    measured = run.status == "ok" and min(run.raw.block_samples_per_s, default=0.0) > 0
    return _positive(run.samples_per_s) if measured else None


def step_s(run: Run) -> Estimate | None:
    """Time of a step with its interval."""
    return _positive(run.step_s) if run.status == "ok" else None


def _positive(estimate: Estimate | None) -> Estimate | None:
    return estimate if estimate and math.isfinite(estimate.value) and estimate.value > 0 else None


def wait_share(run: Run) -> float | None:
    """Waiting for data / whole step, 0 to 1."""
    return run.data_wait_share if step_s(run) else None


def ceiling(run: Run) -> float | None:
    """samples/s if data were free; None where it came out too low to be right."""
    return run.ceiling_samples_per_s if rate(run) and not low_ceiling(run) else None


def low_ceiling(run: Run) -> bool:
    """Whether the ceiling came out below the rate, which cannot be."""
    return rate(run) is not None and run.ceiling_below_rate


def ceiling_change(run: Run, before: Run) -> Ratio | None:
    """How the step on a batch already on the device changed, with interval and verdict.

    None for simulated runs: the model's error of that change is not known.
    """
    if run.simulated:
        return None
    sides = [np.array(one.raw.ceiling_samples_per_s if one.status == "ok" else []) for one in (run, before)]
    if not all(side.size and (side > 0).all() for side in sides):
        return None
    return stats.ratio(*sides, paired=False)


def efficiency(run: Run) -> float | None:
    """Throughput / ceiling."""
    return run.pipeline_efficiency if ceiling(run) is not None else None


def speedup(run: Run, role: str) -> Ratio | None:
    """Against the previous stage or the baseline."""
    pairing = run.pairing(role) if run.status == "ok" else None
    return pairing.ratio if pairing and pairing.own_samples_per_s and pairing.other_samples_per_s else None


def rounds(run: Run) -> int:
    """How many rounds the comparison with the previous stage has."""
    pairing = run.pairing("previous")
    return min(len(pairing.own_samples_per_s), len(pairing.other_samples_per_s)) if pairing else 0


def previous(run: Run, runs: Sequence[Run]) -> Run | None:
    """The run that this one was compared with, if it is among `runs`."""
    pairing = run.pairing("previous")
    return next((other for other in runs if pairing and other.id == pairing.against), None)


def contradicts(run: Run, runs: Sequence[Run]) -> bool:
    """Whether its rate and the previous one's say otherwise than their ratio: they are from other rounds."""
    other, ratio, own = previous(run, runs), speedup(run, "previous"), rate(run)
    before = rate(other) if other else None
    return bool(own and before and ratio and (own.value / before.value - 1) * (ratio.ratio - 1) < -1e-6)


def is_again(run: Run) -> bool:
    """Whether it is the A/A row: the baseline once more, in another process."""
    return run.stage == AGAIN


def stages(runs: Sequence[Run]) -> list[Run]:
    """The runs without the A/A row: no stage of a ladder."""
    return [run for run in runs if not is_again(run)]


def disturbed(run: Run) -> float | None:
    """The share of the cores that other programs took, where the run's numbers rest on disturbed rounds."""
    return run.disturbed if run.status == "ok" else None


def on_gpu(run: Run) -> bool:
    """Whether the run was on a CUDA device, or on a simulated one."""
    return run.device.startswith("cuda") or run.simulated is not None


def busy_share(run: Run) -> float | None:
    """The share of time in which the device is busy, 0 to 1: NVML's median, or predicted kernel time."""
    if run.status != "ok":
        return None
    if run.utilization is not None:
        return run.utilization
    samples = run.raw.gpu_utilization_nvml
    return float(np.median(samples)) / 100 if samples else None
