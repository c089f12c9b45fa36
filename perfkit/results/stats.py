"""Pure functions on measured values: medians, bootstrap intervals, steadiness, verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

Values = np.ndarray[Any, np.dtype[np.float64]]
Verdict = Literal[
    "faster", "slower", "no measurable difference", "too few rounds", "disturbed",
    "predicted faster", "predicted slower", "too close to predict",
]  # fmt: skip
"""The last three are of simulated runs."""

MIN_EFFECT = 0.01
"""An effect below 1% is not called one, however narrow its interval (metrics §1)."""

MIN_ROUNDS = 5
"""Fewer rounds than this never give a verdict (metrics §1): their interval means little."""

ENDING_ROUNDS = 10
"""Fewer rounds are no reason to stop, however narrow their interval: a few come out close together by chance,
and stopping there gives 88% coverage instead of 95% (Chow and Robbins 1965). Large effects are excepted."""

_SEEN_WELL = 2 / 3
"""Fewer rounds than those are enough for an effect whose interval is this much narrower than was asked."""

_RESAMPLES = 4000

_PRIOR_PAIRS, _PRIOR_NOISE = 4, 0.015
"""Equal processes differed by 1.5% (standard deviation, 204 groups of processes, two cores, torch 2.15)."""


class Estimate(msgspec.Struct, frozen=True):
    """A value with its 95% interval, in the unit of the values: a median of times, a mean of rates."""

    value: float
    low: float
    high: float


class Ratio(msgspec.Struct, frozen=True):
    """How many times faster one side is: above 1 is faster. With its 95% interval and the verdict."""

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
    """Median and 95% bootstrap interval; None without values, an interval of no width for one value."""
    return Estimate(float(np.median(values)), *_interval(values, np.median)) if values.size else None


def geometric_mean(values: Values) -> Estimate:
    """Geometric mean and 95% bootstrap interval of at least one value: the mean of rates and of ratios."""
    logs = np.log(values)
    return Estimate(*(math.exp(value) for value in (float(logs.mean()), *_interval(logs, np.mean))))


def ratio(own: Values, other: Values, *, paired: bool, noise: float | None = None) -> Ratio:
    """Ratio of two sides' rates, its 95% bootstrap interval over rounds, and the verdict.

    Args:
        own: rate of this side, one a round.
        other: rate of the other side; of the same rounds where `paired`.
        paired: whether the rounds were interleaved, so that drift cancels within a round.
        noise: A/A noise of this machine as a fraction (see `aa_noise_bound`), None if unknown. It widens the
            interval, and smaller effects are not called effects.
    """
    if paired:
        logs = np.log(own / other)
        centre = float(logs.mean())
        low, high = _interval(logs, np.mean)
    else:
        centre = float(np.log(own).mean() - np.log(other).mean())
        low, high = _unpaired_interval(np.log(own), np.log(other))
    log_noise = math.log1p(noise or 0.0)
    low = centre - math.hypot(centre - low, log_noise)
    high = centre + math.hypot(high - centre, log_noise)
    return _with_verdict(centre, low, high, log_noise, min(own.size, other.size))


def ratio_over_pairs(pairs: Sequence[tuple[Values, Values]], *, noise: float | None = None) -> Ratio:
    """Ratio of two sides' rates over several pairs of fresh processes, with its 95% interval and the verdict.

    Each pair counts once, with the mean of its rounds, so that the interval covers the differences between
    processes as well as the scatter of rounds (Kalibera and Jones 2013, doi:10.1145/2491894.2464160).

    Args:
        pairs: rates of this side and of the other, a round each; each pair in processes of its own.
        noise: A/A noise of one pair as a fraction (see `aa_noise_bound`), None if unknown. The mean of n
            pairs has 1/√n of it; smaller effects are not called effects.
    """
    from scipy import special

    logs = np.array([float(np.log(own).mean() - np.log(other).mean()) for own, other in pairs])
    n, centre = logs.size, float(logs.mean())
    # Each is a mean already, so Student's interval covers 95%; a bootstrap of five values covers 92%.
    half = float(special.stdtrit(n - 1, 0.975) * logs.std(ddof=1)) / math.sqrt(n) if n > 1 else 0.0
    return _with_verdict(centre, centre - half, centre + half, math.log1p(noise or 0.0) / math.sqrt(n), n)


def _with_verdict(centre: float, low: float, high: float, noise: float, count: int) -> Ratio:
    """The ratio of these logarithms, with its verdict."""
    threshold = max(math.log1p(MIN_EFFECT), noise)
    verdict: Verdict = "no measurable difference"
    if count < MIN_ROUNDS:
        verdict = "too few rounds"
    elif low > 0 and centre > threshold:
        verdict = "faster"
    elif high < 0 and centre < -threshold:
        verdict = "slower"
    return Ratio(math.exp(centre), math.exp(low), math.exp(high), verdict)


def widened(estimate: Estimate, band: float) -> Estimate:
    """An estimate whose interval also holds the error of a model, a fraction."""
    log_band = math.log1p(band)
    centre, low, high = (math.log(value) for value in (estimate.value, estimate.low, estimate.high))
    low, high = centre - math.hypot(centre - low, log_band), centre + math.hypot(high - centre, log_band)
    return Estimate(estimate.value, math.exp(low), math.exp(high))


def predicted(ratio: Ratio, band: float) -> Ratio:
    """A ratio of simulated runs: its interval holds the model's error too, and its verdict is a prediction.

    Args:
        ratio: as it was computed from rounds.
        band: the model's error of this ratio to expect, as a fraction.
    """
    if ratio.verdict in ("too few rounds", "disturbed"):
        return ratio
    wide = widened(Estimate(ratio.ratio, ratio.low, ratio.high), band)
    verdict: Verdict = "too close to predict"
    if wide.low > 1 + MIN_EFFECT:
        verdict = "predicted faster"
    elif wide.high < 1 / (1 + MIN_EFFECT):
        verdict = "predicted slower"
    return Ratio(ratio.ratio, wide.low, wide.high, verdict)


def rounds_needed(
    log_ratios: Values, precision: float, part: float = 0.0, equal: Values | None = None
) -> float:
    """After how many rounds measuring may end, judged by the scatter of those so far.

    Usually 10, and as many as make every interval narrow enough. A large effect needs fewer: nobody need wait
    to learn whether it is five or six times as fast. Its interval may be wider, and where it is much narrower
    than it may be, 5 rounds are enough. At a part of 0.15, such an effect is at least 13 standard errors from
    none, so chance hardly decides what ends early. Simulated, the intervals cover the true ratio in 93 to 95%
    of cases, as they do without this rule.

    Args:
        log_ratios: one row a round, one column for each ratio.
        precision: half the width of each interval / ratio, at most … At 0 only the budget ends the measuring.
        part: … or this part of the effect, if that is more.
        equal: of two equal processes, one row a round. Their ratio need not be known better than the effects.
    """
    if precision <= 0:
        return math.inf
    if len(log_ratios) < 2:
        return ENDING_ROUNDS
    effects = part * np.abs(log_ratios.mean(axis=0))
    asked = np.maximum(precision, effects)
    needed = np.maximum(ENDING_ROUNDS, _rounds_for(log_ratios, asked))
    if part:
        well = np.maximum(_SEEN_WELL * effects, 1e-9)
        needed = np.minimum(needed, np.maximum(MIN_ROUNDS, _rounds_for(log_ratios, well)))
    most = needed if equal is None else np.append(needed, _rounds_for(equal, asked.min()))
    return float(most.max())


def _rounds_for(log_ratios: Values, half_widths: Values) -> Values:
    """How many rounds would make the intervals as narrow as that, one value for each column."""
    from scipy import special

    rounds = len(log_ratios)
    half = special.stdtrit(rounds - 1, 0.975) * log_ratios.std(axis=0, ddof=1) / math.sqrt(rounds)
    needed: Values = rounds * (half / half_widths) ** 2
    return needed


def rounds_part(precision: float, noise: float | None) -> float:
    """The part of a half width that is left for the scatter of rounds, when equal processes differ."""
    return math.sqrt(max(precision**2 - (noise or 0.0) ** 2, precision**2 / 4))


def half_width_per_pair(precision: float, count: int) -> float:
    """The half width that each of `count` pairs (two or more) needs so that their mean has `precision`."""
    from scipy import special

    wider = float(special.stdtrit(count - 1, 0.975) / special.ndtri(0.975))
    return precision * math.sqrt(count) / wider


class AAPair(NamedTuple):
    """Two equal processes that were measured beside each other."""

    log_ratio: float
    scatter: float
    """Variance of `log_ratio` that the scatter of the rounds explains."""


def aa_pair(own: Values, other: Values) -> AAPair:
    """A pair of equal sides by their rates, round by round, in two rounds or more."""
    logs = np.log(own / other)
    return AAPair(float(logs.mean()), float(logs.var(ddof=1)) / logs.size)


def aa_noise_bound(pairs: Sequence[AAPair]) -> float:
    """How far two equal processes differ for as long as they live: 95% bound, a fraction.

    The rounds of one pair of processes cannot show it: their interval narrows however much the two differ. It
    is the variance of the ratios of many pairs beyond the scatter of their rounds (variance components). The
    scatter is known well; the variance between pairs only as well as their number allows, so it counts with
    Student's quantile. Until there are many, they are pooled with what was found elsewhere: that counts as
    `_PRIOR_PAIRS` pairs, so that one pair that happens to agree does not show that there is no noise.
    """
    from scipy import special

    count = len(pairs) + _PRIOR_PAIRS
    scatter = sum(pair.scatter for pair in pairs) / count
    total = max(scatter, (_PRIOR_PAIRS * _PRIOR_NOISE**2 + sum(pair.log_ratio**2 for pair in pairs)) / count)
    of_few, of_many = float(special.stdtrit(count, 0.975)), float(special.ndtri(0.975))
    return math.expm1(math.sqrt(max(0.0, of_few**2 * total - of_many**2 * scatter)))


def _tail(n: int) -> float:
    """Lower percentile level of a 95% interval, widened for few values.

    The plain percentile bootstrap of n = 5 covers about 82%, not 95%. The expanded percentile interval
    (Hesterberg 2015, doi:10.1080/00031305.2015.1089789, section 3.3) uses the level at which it matches
    the t interval: Φ(−√(n/(n−1)) · t(0.025, n−1)).
    """
    from scipy import special

    return float(special.ndtr(math.sqrt(n / (n - 1)) * special.stdtrit(n - 1, 0.025)))


def _interval(values: Values, statistic: Any) -> tuple[float, float]:
    n = values.size
    if n == 1:
        return float(values[0]), float(values[0])
    generator = np.random.default_rng(0)
    resampled = statistic(values[generator.integers(0, n, (_resamples(n), n))], axis=1)
    return _percentiles(resampled, n)


def _unpaired_interval(own: Values, other: Values) -> tuple[float, float]:
    if min(own.size, other.size) < 2:
        return float(own.min() - other.max()), float(own.max() - other.min())
    generator = np.random.default_rng(0)
    sides = [
        side[generator.integers(0, side.size, (_RESAMPLES, side.size))].mean(axis=1) for side in (own, other)
    ]
    return _percentiles(sides[0] - sides[1], min(own.size, other.size))


def _percentiles(resampled: Values, n: int) -> tuple[float, float]:
    tail = 100 * _tail(n)
    low, high = np.percentile(resampled, [tail, 100 - tail])
    return float(low), float(high)


def _resamples(n: int) -> int:
    """Number of resamples: fewer for long series, so that memory stays bounded (about 4 million draws)."""
    return max(200, min(_RESAMPLES, 4_000_000 // n))


def relative_iqr(values: Values) -> float:
    """Interquartile range / median; 0 for fewer than two values."""
    if values.size < 2:
        return 0.0
    low, high = np.percentile(values, [25, 75])
    return float((high - low) / np.median(values))


def still_warming(rates: Values) -> bool:
    """Whether the first block is slower than the scatter of the later ones explains: warm-up was not over."""
    if rates.size < 3:
        return False
    later = rates[1:]
    slack = max(0.1, 2 * relative_iqr(later))
    return bool(rates[0] < np.median(later) * (1 - slack))


def steady(step_s: Values, window: int) -> bool:
    """Whether the medians of the last two windows of steps differ by at most 5%."""
    if step_s.size < 2 * window:
        return False
    before, last = np.median(step_s[-2 * window : -window]), np.median(step_s[-window:])
    return bool(abs(before - last) <= 0.05 * before)
