"""Pure functions on measured values: means and medians with their intervals, weights, verdicts."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

Values = np.ndarray[Any, np.dtype[np.float64]]
MeasuredVerdict = Literal["faster", "slower", "no measurable difference", "undecided"]
Verdict = MeasuredVerdict | Literal["predicted faster", "predicted slower", "too close to predict"]

MIN_EFFECT = 0.01  # an effect below 1% gets no verdict, however narrow its interval
MIN_ROUNDS = 5  # fewer rounds give no verdict, because their interval means little
ENDING_ROUNDS = 10
"""Measuring never ends after fewer rounds, however narrow their interval: a few rounds can agree by chance,
and stopping there gives 88% coverage instead of 95% (Chow and Robbins 1965)."""
PRECISION = 0.05
"""The half width / ratio up to which an interval without an effect means that there is no difference."""
LARGEST = 300.0  # logarithm of a ratio: a recording from others may hold any, and exp would overflow
CLEAN = 0.05
"""A slice counts half if others took this share of the cores during it, and less the more they took."""


class Estimate(msgspec.Struct, frozen=True):
    """A value with its 95% interval: a median of times, or a mean of rates."""

    value: float
    low: float
    high: float


class Ratio(msgspec.Struct, frozen=True):
    """How many times as fast one side is, with the 95% interval and the verdict."""

    ratio: float
    low: float
    high: float
    verdict: Verdict

    @property
    def is_faster(self) -> bool:
        return self.verdict in ("faster", "predicted faster")

    @property
    def is_slower(self) -> bool:
        return self.verdict in ("slower", "predicted slower")

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2 / self.ratio


def median(values: Values) -> Estimate | None:
    """The median and its 95% interval, whatever the distribution; None without values.

    The bounds are order statistics: the number of values below the true median is binomial. Five values or
    fewer cannot give 95%, so their interval is their range.
    """
    if not values.size:
        return None
    from scipy import special

    ordered = np.sort(values)
    rank = max(0, math.ceil(float(special.bdtrik(0.025, values.size, 0.5))) - 1)
    return Estimate(float(np.median(ordered)), float(ordered[rank]), float(ordered[-1 - rank]))


class Spread(NamedTuple):
    """How much equal processes differ: the deviation of the log ratio, with its degrees of freedom."""

    sd: Annotated[float, Meta(ge=0, lt=10)]  # the bounds are for files from outside
    freedom: Annotated[float, Meta(ge=1, lt=1e6)]


LEAST_SPREAD = 0.005  # no number of pairs can show that equal processes do not differ at all
UNKNOWN = Spread(0.025, 4)
"""The spread if no pair of equal processes was measured: they differed by 1.5% (204 groups of processes), or
by 2.4% (336 pairs on a different day; two cores, torch 2.15), and with a loader worker by 4 to 7%."""
ONE_PROCESS = Spread(0.0, UNKNOWN.freedom)  # for rounds of the same processes, or computed ones
WITH_WORKERS = Spread(0.04, 4)  # for a training on a CPU whose loader workers share its cores


def usual_spread(device: str, workers: bool) -> Spread:
    """How much equal processes usually differ."""
    return WITH_WORKERS if workers and device == "cpu" else UNKNOWN


class Nested(NamedTuple):
    """A mean of logarithms of rounds in several incarnations of the same processes."""

    centre: float
    half: float  # half of its 95% interval
    weight: float  # of its rounds: as many undisturbed ones would tell as much


def shares(disturbed: Sequence[float], count: int) -> list[float]:
    """The share of the cores that others took in each of `count` rounds; 0 if it was not measured."""
    return [*disturbed] if len(disturbed) == count else [0.0] * count


def weights(disturbed: Sequence[float], count: int) -> Values:
    """The weight of each of `count` rounds, by the share of the cores that others took."""
    values: Values = 1 / (1 + (np.array(shares(disturbed, count)) / CLEAN) ** 2)
    return values


def is_spoiled(disturbed: Sequence[float], count: int) -> bool:
    """Whether others spoiled more than half of `count` rounds, by the shares of the cores that they took."""
    return bool(weights(disturbed, count).mean() <= 0.5)


def nested(logs: Values, sizes: Sequence[int], weights: Values, spread: Spread = UNKNOWN) -> Nested:
    """The mean of rounds nested in incarnations, with its 95% interval (Kalibera and Jones 2013).

    Each incarnation has its own mean, around which its rounds scatter. The variances between and within
    incarnations tell how wrong the overall mean may be. A few incarnations show little of the variance
    between them, so what is known of equal processes counts as well, with its own degrees of freedom. With
    one incarnation it is all that is known; with many it hardly matters.

    `logs` has the rounds in the order of time, `sizes` the number of rounds of each incarnation, `weights`
    the weight of each round, and `spread` is how much equal processes differ.
    """
    from scipy import special

    parts = np.split(np.arange(logs.size), np.cumsum(sizes)[:-1])
    totals = np.array([weights[at].sum() for at in parts])
    means = np.array([np.average(logs[at], weights=weights[at]) for at in parts])
    shares = totals / totals.sum()
    centre = float(shares @ means)
    scatter = sum(float(weights[at] @ (logs[at] - mean) ** 2) for at, mean in zip(parts, means, strict=True))
    within = scatter / max(1, logs.size - len(parts))
    expected = np.maximum(spread.sd**2 + within / totals, 1e-18)
    # How much larger than expected the variance is. Several incarnations count in this, one alone does not.
    observed = float(((means - centre) ** 2 / expected).sum())
    freedom = spread.freedom + len(parts) - 1
    excess = (spread.freedom + observed) / freedom
    student = float(special.stdtrit(freedom, 0.975))
    half = student * math.sqrt(excess * float(shares**2 @ expected))
    return Nested(centre, half, float(weights.sum()))


def difference(own: Nested, other: Nested) -> Nested:
    """The difference of two means that were measured independently."""
    return Nested(own.centre - other.centre, math.hypot(own.half, other.half), min(own.weight, other.weight))


def judged(centre: float, half: float, round_count: int, precision: float = PRECISION) -> Ratio:
    """A ratio from the mean of its logarithm and half the width of its 95% interval, which give the verdict.

    A wide interval that includes no effect is undecided: more rounds would decide.
    """
    verdict: Verdict = "undecided"
    if round_count >= MIN_ROUNDS:
        if abs(centre) > max(half, math.log1p(MIN_EFFECT)):
            verdict = "faster" if centre > 0 else "slower"
        elif half <= math.log1p(precision):
            verdict = "no measurable difference"
    bounds = np.clip([centre, centre - half, centre + half], -LARGEST, LARGEST)
    ratio, low, high = (math.exp(bound) for bound in bounds)
    return Ratio(ratio, low, high, verdict)


def widened(estimate: Estimate, band: float) -> Estimate:
    """An estimate whose interval also covers the error of a model, given as a fraction."""
    half = math.hypot(math.log(estimate.high / estimate.low) / 2, math.log1p(band))
    return Estimate(estimate.value, estimate.value * math.exp(-half), estimate.value * math.exp(half))


def predicted(ratio: Ratio, band: float) -> Ratio:
    """A ratio of simulated runs: its interval covers the model's error (a fraction), its verdict predicts."""
    wide = widened(Estimate(ratio.ratio, ratio.low, ratio.high), band)
    verdict: Verdict = "too close to predict"
    if wide.low > 1 + MIN_EFFECT:
        verdict = "predicted faster"
    elif wide.high < 1 / (1 + MIN_EFFECT):
        verdict = "predicted slower"
    return Ratio(ratio.ratio, wide.low, wide.high, verdict)


class AAPair(NamedTuple):
    """Two equal processes that were measured together."""

    log_ratio: float
    scatter: float  # the variance of `log_ratio` explained by the scatter of the rounds


def aa_pair(own: Values, other: Values) -> AAPair:
    """A pair of equal sides, from their rates in at least two rounds."""
    logs = np.log(own / other)
    return AAPair(float(logs.mean()), float(logs.var(ddof=1)) / logs.size)


def spread_of(pairs: Sequence[AAPair], usual: Spread = UNKNOWN) -> Spread:
    """How much equal processes differ, from pairs of them that were measured on this machine.

    The rounds of one pair of processes cannot show it: their interval narrows however much the two differ. It
    is the variance of the ratios of many pairs beyond the scatter of their rounds (variance components). What
    is known from other machines counts like a few more pairs, so that a single pair that happens to agree
    does not suggest that processes never differ.
    """
    count = len(pairs) + usual.freedom
    squares = sum(pair.log_ratio**2 - pair.scatter for pair in pairs)
    variance = (usual.freedom * usual.sd**2 + squares) / count
    return Spread(math.sqrt(max(variance, LEAST_SPREAD**2)), count)
