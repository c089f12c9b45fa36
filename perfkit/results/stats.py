"""Pure functions on measured values: means and medians with their intervals, steadiness, verdicts."""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

Values = np.ndarray[Any, np.dtype[np.float64]]
Measured = Literal["faster", "slower", "no measurable difference", "too few rounds", "disturbed"]
Verdict = Measured | Literal["predicted faster", "predicted slower", "too close to predict"]

MIN_EFFECT = 0.01
"""An effect below 1% is not called an effect, however narrow its interval (metrics §1)."""
MIN_ROUNDS = 5
"""Fewer rounds never give a verdict (metrics §1): their interval means little."""
ENDING_ROUNDS = 10
"""Fewer rounds are no reason to stop, however narrow their interval: a few come out close together by chance,
and stopping there gives 88% coverage instead of 95% (Chow and Robbins 1965). Large effects are excepted."""
_NORMAL = 1.959963984540054
"""97.5% quantile of the normal distribution."""
_PRIOR_PAIRS = 4
_PRIOR_NOISE = 0.015
"""Equal processes differed by 1.5% (standard deviation, 204 groups of processes, two cores, torch 2.15)."""


class Estimate(msgspec.Struct, frozen=True):
    """A value with its 95% interval, in the unit of the values: a median of times, a mean of rates."""

    value: float
    low: float
    high: float


class Ratio(msgspec.Struct, frozen=True):
    """How many times faster one side is (above 1 is faster), with its 95% interval and the verdict."""

    ratio: float
    low: float
    high: float
    verdict: Verdict

    @property
    def is_faster(self) -> bool:
        """Whether the verdict is, or predicts, faster."""
        return self.verdict.endswith("faster")

    @property
    def is_slower(self) -> bool:
        """Whether the verdict is, or predicts, slower."""
        return self.verdict.endswith("slower")

    @property
    def half_width(self) -> float:
        """Half the interval's width / ratio."""
        return (self.high - self.low) / 2 / self.ratio


def median(values: Values) -> Estimate | None:
    """Median and its 95% interval, whatever the distribution; None without values.

    The bounds are order statistics: the number of values below the true median is binomial. Five values or
    fewer cannot give 95%: their interval is their range.
    """
    if not values.size:
        return None
    from scipy import special

    ordered = np.sort(values)
    outside = max(0, math.ceil(float(special.bdtrik(0.025, values.size, 0.5))) - 1)
    return Estimate(float(np.median(ordered)), float(ordered[outside]), float(ordered[-1 - outside]))


def geometric_mean(values: Values) -> Estimate:
    """Geometric mean of rates or ratios, with Student's 95% interval on their logarithms."""
    logs = np.log(values)
    centre, half = float(logs.mean()), _half_width(logs)
    return Estimate(math.exp(centre), math.exp(centre - half), math.exp(centre + half))


def ratio(own: Values, other: Values, *, paired: bool, noise: float | None = None) -> Ratio:
    """Ratio of two sides' rates in each round, its 95% interval (Student's, on logarithms), and the verdict.

    If `paired`, the rounds were interleaved, so that drift cancels within a round. The A/A noise of this
    machine, a fraction (see `aa_noise_bound`), widens the interval; smaller effects are not called effects.
    """
    logs, others = np.log(own), np.log(other)
    half = _half_width(logs - others) if paired else _half_width(logs, others)
    log_noise = math.log1p(noise or 0.0)
    centre = float(logs.mean() - others.mean())
    return _with_verdict(centre, math.hypot(half, log_noise), log_noise, min(own.size, other.size))


def ratio_over_pairs(pairs: Sequence[tuple[Values, Values]], *, noise: float | None = None) -> Ratio:
    """Ratio of two sides' rates over several pairs of fresh processes, with its 95% interval and the verdict.

    Each pair counts once, with the mean of its rounds, so that the interval covers the differences between
    processes as well as the scatter of rounds (Kalibera and Jones 2013, doi:10.1145/2491894.2464160). The
    mean of n pairs has 1/√n of one pair's A/A noise; smaller effects are not called effects.
    """
    logs = np.array([float(np.log(own).mean() - np.log(other).mean()) for own, other in pairs])
    log_noise = math.log1p(noise or 0.0) / math.sqrt(logs.size)
    return _with_verdict(float(logs.mean()), _half_width(logs), log_noise, logs.size)


def _with_verdict(centre: float, half: float, noise: float, count: int) -> Ratio:
    threshold = max(half, math.log1p(MIN_EFFECT), noise)
    verdict: Verdict = "no measurable difference"
    if count < MIN_ROUNDS:
        verdict = "too few rounds"
    elif abs(centre) > threshold:
        verdict = "faster" if centre > 0 else "slower"
    return Ratio(math.exp(centre), math.exp(centre - half), math.exp(centre + half), verdict)


def _half_width(*sides: Values) -> float:
    """Half of Student's 95% interval of a mean, of Welch's for two means' difference; 0 for single values."""
    if min(side.size for side in sides) < 2:
        return 0.0
    sizes = np.array([side.size for side in sides])
    parts = np.array([side.var(ddof=1) for side in sides]) / sizes
    if not parts.any():
        return 0.0
    freedom = parts.sum() ** 2 / (parts**2 / (sizes - 1)).sum()
    return _student(float(freedom)) * math.sqrt(parts.sum())


def _student(freedom: float) -> float:
    """Student's 97.5% quantile."""
    from scipy import special

    return float(special.stdtrit(freedom, 0.975))


def widened(estimate: Estimate, band: float) -> Estimate:
    """An estimate whose interval also holds the error of a model, a fraction."""
    half = math.hypot(math.log(estimate.high / estimate.low) / 2, math.log1p(band))
    return Estimate(estimate.value, estimate.value * math.exp(-half), estimate.value * math.exp(half))


def predicted(ratio: Ratio, band: float) -> Ratio:
    """A ratio of simulated runs: its interval holds the model's error, a fraction; its verdict predicts."""
    wide = widened(Estimate(ratio.ratio, ratio.low, ratio.high), band)
    verdict: Verdict = "too close to predict"
    if wide.low > 1 + MIN_EFFECT:
        verdict = "predicted faster"
    elif wide.high < 1 / (1 + MIN_EFFECT):
        verdict = "predicted slower"
    return Ratio(ratio.ratio, wide.low, wide.high, verdict)


# ---------------------------------------------------------------- when measuring may end


def rounds_needed(log_ratios: Values, precision: float, part: float = 0.0) -> float:
    """After how many rounds measuring may end, judged by the scatter of those so far.

    Usually 10, and as many as make every interval narrow enough. A large effect needs fewer: nobody need wait
    to learn whether it is five or six times as fast. Its interval may be wider, and where it is much narrower
    than it may be, 5 rounds are enough. At a part of 0.15, such an effect is at least 13 standard errors from
    none, so chance hardly decides what ends early. Simulated, the intervals cover the true ratio in 93 to 95%
    of cases, as they do without this rule.

    `log_ratios` has a row for each round and a column for each ratio. Half the width of each interval / ratio
    is to be at most `precision` (at 0 only the budget ends the measuring), or that part of the effect.
    """
    if precision <= 0:
        return math.inf
    if len(log_ratios) < 2:
        return ENDING_ROUNDS
    effects = part * np.abs(log_ratios.mean(axis=0))
    needed = np.maximum(ENDING_ROUNDS, _rounds_for(log_ratios, np.maximum(precision, effects)))
    if part:
        clear = np.maximum(effects * (2 / 3), 1e-9)
        needed = np.minimum(needed, np.maximum(MIN_ROUNDS, _rounds_for(log_ratios, clear)))
    return float(needed.max())


def _rounds_for(log_ratios: Values, half_widths: Values) -> Values:
    """How many rounds would make the intervals that narrow, one value for each column."""
    rounds = len(log_ratios)
    half = _student(rounds - 1) * log_ratios.std(axis=0, ddof=1) / math.sqrt(rounds)
    needed: Values = rounds * (half / half_widths) ** 2
    return needed


def rounds_part(precision: float, noise: float | None) -> float:
    """The part of a half width that is left for the scatter of rounds, when equal processes differ."""
    return math.sqrt(max(precision**2 - (noise or 0.0) ** 2, precision**2 / 4))


def half_width_per_pair(precision: float, count: int) -> float:
    """The half width that each of `count` pairs needs so that their mean has `precision`."""
    return precision * math.sqrt(count) * _NORMAL / _student(count - 1) if count > 1 else precision


# ---------------------------------------------------------------- equal processes


class AAPair(NamedTuple):
    """Two equal processes that were measured beside each other."""

    log_ratio: float
    scatter: float
    """Variance of `log_ratio` that the scatter of the rounds explains."""


def aa_pair(own: Values, other: Values) -> AAPair:
    """A pair of equal sides by their rates, in at least two rounds."""
    logs = np.log(own / other)
    return AAPair(float(logs.mean()), float(logs.var(ddof=1)) / logs.size)


def aa_noise_bound(pairs: Sequence[AAPair]) -> float:
    """How far two equal processes differ for as long as they live: 95% bound, a fraction.

    The rounds of one pair of processes cannot show it: their interval narrows however much the two differ. It
    is the variance of the ratios of many pairs beyond the scatter of their rounds (variance components). The
    scatter is known well; the variance between pairs only as well as their number allows, so it counts with
    Student's quantile. Pairs from other machines count as `_PRIOR_PAIRS` pairs, so that a single pair that
    happens to agree does not show that there is no noise.
    """
    count = len(pairs) + _PRIOR_PAIRS
    scatter = sum(pair.scatter for pair in pairs) / count
    squares = sum(pair.log_ratio**2 for pair in pairs)
    total = max(scatter, (_PRIOR_PAIRS * _PRIOR_NOISE**2 + squares) / count)
    return math.expm1(math.sqrt(max(0.0, _student(count) ** 2 * total - _NORMAL**2 * scatter)))


# ---------------------------------------------------------------- steadiness


def relative_iqr(values: Values) -> float:
    """Interquartile range / median."""
    low, middle, high = np.percentile(values, [25, 50, 75])
    return float((high - low) / middle)


def still_warming(rates: Values) -> bool:
    """Whether the first block is slower than the scatter of the later ones explains: warm-up was not over."""
    if rates.size < 3:
        return False
    later = rates[1:]
    return bool(rates[0] < np.median(later) * (1 - max(0.1, 2 * relative_iqr(later))))
