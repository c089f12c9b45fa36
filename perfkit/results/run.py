"""Runs: the results of measurements. Everything here is derived from the raw values that are stored."""

import math
from collections.abc import Sequence
from functools import cached_property

import msgspec
import numpy as np

from perfkit.results import stats
from perfkit.results.rounds import Pairing, pooled, undisturbed
from perfkit.results.schema import AGAIN, StoredRun
from perfkit.results.stats import Estimate, Nested, Ratio, Values


class Run(StoredRun, frozen=True, kw_only=True, dict=True):
    """One workload under one recipe on one machine, failed or not; without rates, what is derived is None."""

    @property
    def h2d_bytes_per_sample(self) -> int | None:
        """The bytes copied to an accelerator for a sample; None on a CPU, where nothing is copied."""
        return None if self.device == "cpu" else self.batch_bytes_per_sample

    @property
    def workload_name(self) -> str:
        return self.workload.rpartition(":")[2]

    @property
    def is_again(self) -> bool:
        return self.stage == AGAIN

    @cached_property
    def samples_per_s(self) -> Estimate | None:
        """Throughput: the geometric mean of the rounds, weighted by how clean each was, with a 95% interval.

        The ratio of two runs is the ratio of these values. So that of a run that is compared with the
        baseline is the baseline's times the ratio.
        """
        rates = np.array(self.raw.block_samples_per_s)
        if self.status != "ok" or not rates.size:
            return None
        weights = stats.weights(self.raw.disturbed, rates.size)
        spread = stats.ONE_PROCESS if self.simulated else stats.UNKNOWN
        own = stats.nested(np.log(rates), self.raw.sizes, weights, spread)
        baseline = self.pairing("baseline")
        centre = own.centre
        if self.reference_samples_per_s and baseline:
            centre = math.log(self.reference_samples_per_s * baseline.ratio.ratio)
        rate = Estimate(math.exp(centre), math.exp(centre - own.half), math.exp(centre + own.half))
        return stats.widened(rate, self.simulated.band) if self.simulated else rate

    @cached_property
    def step_s(self) -> Estimate | None:
        """The time of a step, including the wait for data: the median of the steps that count."""
        steps = self._counted(self.raw.step_s, self.raw.device_step_s)
        step = stats.median(steps) if self.status == "ok" else None
        return stats.widened(step, self.simulated.band) if step and self.simulated else step

    @property
    def data_wait_s(self) -> Estimate | None:
        """The time that a step waits in `next(loader)`: the median of the steps that count."""
        return stats.median(self._counted(self.raw.data_wait_s))

    @property
    def data_wait_share(self) -> float | None:
        """Waiting for data / whole step, over all steps that count (0 to 1)."""
        if self.step_s is None:
            return None
        steps = self._counted(self.raw.step_s, self.raw.device_step_s)
        return float(self._counted(self.raw.data_wait_s).sum() / steps.sum())

    @property
    def pipeline_efficiency(self) -> float | None:
        """Throughput / the rate on a cached batch, both from the first incarnation; at most 1."""
        share = self._on_cached_batch
        if self.samples_per_s is None or share is None or self.is_slower_on_cached_batch:
            return None
        return min(1.0, math.exp(share.centre))

    @property
    def ceiling_samples_per_s(self) -> float | None:
        """The rate on a cached batch: the throughput if loading data took no time."""
        rate = self.samples_per_s
        efficiency = self.pipeline_efficiency
        return rate.value / efficiency if rate and efficiency else None

    @property
    def is_slower_on_cached_batch(self) -> bool:
        """Whether a cached batch made it slower, by more than chance, which is impossible."""
        share = self._on_cached_batch
        return bool(share and share.weight >= stats.MIN_ROUNDS and share.centre - share.half > 0.01)

    @cached_property
    def _on_cached_batch(self) -> Nested | None:
        """The logarithm of the throughput / the rate on a cached batch, with its interval."""
        cached = np.array(self.raw.ceiling_samples_per_s)
        first = slice(self.raw.sizes[0] if self.raw.incarnations else cached.size)
        rates = np.array(self.raw.block_samples_per_s[first])
        if not (cached.size and rates.size):
            return None
        weights = stats.weights(self.raw.disturbed[first], rates.size)
        own = stats.nested(np.log(rates), [rates.size], weights, stats.ONE_PROCESS)
        return stats.difference(
            own, stats.nested(np.log(cached), [cached.size], np.ones(cached.size), stats.ONE_PROCESS)
        )

    @property
    def utilization(self) -> float | None:
        """Kernel time / step time of a simulated run, 0 to 1; None for measured runs."""
        step = self.step_s
        return min(1.0, self.simulated.kernel_s / step.value) if self.simulated and step else None

    @property
    def disturbed(self) -> float | None:
        """The mean share of the cores that others took, if this spoiled more than half of the rounds."""
        shares = self.raw.disturbed
        is_spoiled = self.status == "ok" and bool(shares) and stats.is_spoiled(shares, len(shares))
        return float(np.mean(shares)) if is_spoiled else None

    def pairing(self, role: str) -> Pairing | None:
        """The rounds shared with the `previous` stage or the `baseline`; None if they were not compared."""
        return next((pairing for pairing in self.pairings if pairing.role == role), None)

    def speedup(self, role: str) -> Ratio | None:
        """How many times as fast it is as the `previous` stage or the `baseline`; None if not compared."""
        pairing = self.pairing(role)
        return pairing.ratio if pairing and self.status == "ok" else None

    def previous(self, runs: Sequence["Run"]) -> "Run | None":
        """The run that this one was compared with, if it is among `runs`."""
        pairing = self.pairing("previous")
        return next((run for run in runs if pairing and run.id == pairing.against), None)

    def _counted(self, values: list[float], on_device: Sequence[float] = ()) -> Values:
        """The values (one a step) after the warm-up, in the rounds that count; `on_device` if it is known."""
        steps = np.array(values[self.raw.warmup_steps :])
        if len(on_device) == steps.size:
            steps = np.array(on_device)
        blocks = self.raw.block_steps
        if steps.size != sum(blocks):
            return steps
        return steps[np.repeat(undisturbed(self.raw.disturbed, len(blocks)), blocks)]


def with_rate_of(run: Run, base: Run) -> Run:
    """A run whose rate is that of `base` times its ratio, for which other rounds may count."""
    rate = base.samples_per_s
    return msgspec.structs.replace(run, reference_samples_per_s=rate.value if rate else None)


def continued(earlier: Run, now: Run) -> Run:
    """A run with the rounds of an earlier run of the same recipe put before its own."""
    pairings = []
    for pairing in now.pairings:
        before = earlier.pairing(pairing.role)
        pairings.append(pooled(before, pairing) if before else pairing)
    warnings = list(dict.fromkeys([*earlier.warnings, *now.warnings]))
    raw = earlier.raw.followed_by(now.raw)
    return msgspec.structs.replace(now, raw=raw, pairings=pairings, warnings=warnings)
