"""What the views read out of a run; bootstraps over long series are not free, so they are kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from perfkit.results import stats
from perfkit.results.run import Pairing, Run
from perfkit.results.stats import Estimate, Ratio


@lru_cache(maxsize=512)
def _estimate(values: tuple[float, ...]) -> Estimate | None:
    found = stats.estimate(np.array(values))
    return found if found and math.isfinite(found.median) else None


def rate(run: Run) -> Estimate | None:
    """samples/s with its interval; None where nothing was measured, whatever else the run holds."""
    return _estimate(tuple(run.raw.block_samples_per_s)) if run.status == "ok" else None


def step_s(run: Run) -> Estimate | None:
    """Time of a step with its interval."""
    return _estimate(tuple(run.raw.step_s[run.raw.warmup_steps :])) if run.status == "ok" else None


def wait_share(run: Run) -> float | None:
    """Waiting for data / whole step, 0 to 1."""
    step = step_s(run)
    return run.data_wait_share if step and step.median > 0 else None


def ceiling(run: Run) -> float | None:
    """samples/s if data were free."""
    return run.ceiling_samples_per_s if run.status == "ok" else None


def ceiling_change(run: Run, before: Run) -> Ratio | None:
    """How the step on a batch already on the device changed, with interval and verdict."""
    sides = [np.array(one.raw.ceiling_samples_per_s if one.status == "ok" else []) for one in (run, before)]
    if not all(side.size and (side > 0).all() for side in sides):
        return None
    return stats.ratio(*sides, paired=False)


def efficiency(run: Run) -> float | None:
    """Throughput / ceiling."""
    return run.pipeline_efficiency if run.status == "ok" else None


def speedup(run: Run, role: str) -> Ratio | None:
    """Against the previous stage or the baseline."""
    found = _pairing(run, role) if run.status == "ok" else None
    return found.ratio if found and found.own_samples_per_s and found.other_samples_per_s else None


def rounds(run: Run) -> int:
    """How many values the comparison with the previous stage rests on."""
    found = _pairing(run, "previous")
    return min(len(found.own_samples_per_s), len(found.other_samples_per_s)) if found else 0


def previous(run: Run, runs: Sequence[Run]) -> Run | None:
    """The measured stage that this one was compared with: the one its pairing names, where it is here."""
    found = _pairing(run, "previous")
    return next((other for other in runs if found and other.id == found.against), None)


def _pairing(run: Run, role: str) -> Pairing | None:
    return next((pairing for pairing in run.pairings if pairing.role == role), None)


def on_gpu(run: Run) -> bool:
    """Whether the run was on a CUDA device."""
    return run.device.startswith("cuda")
