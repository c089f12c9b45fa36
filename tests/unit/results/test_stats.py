import math

import numpy as np
import pytest
from scipy import stats

from perfkit.results import stats as statistics
from perfkit.results.stats import MIN_EFFECT, MIN_ROUNDS, Estimate, geometric_mean, median, ratio


def noisy(seed, n, level=100.0, noise=0.03):
    return level * np.exp(np.random.default_rng(seed).normal(0, noise, n))


def test_a_mean_has_students_interval_and_a_median_of_one_value_is_that():
    assert median(np.array([])) is None
    assert median(np.array([3.5])) == Estimate(3.5, 3.5, 3.5)
    values = noisy(1, 12)
    expected = stats.t.interval(0.95, 11, np.log(values).mean(), stats.sem(np.log(values)))
    found = geometric_mean(values)
    assert (found.low, found.high) == pytest.approx(tuple(np.exp(expected)))


@pytest.mark.parametrize("n", [6, 9, 20, 101])
def test_the_interval_of_a_median_covers_the_truth_of_a_skewed_distribution(n):
    generator = np.random.default_rng(n)
    found = [median(generator.exponential(1.0, n)) for _ in range(1000)]
    covered = np.mean([one is not None and one.low <= math.log(2) <= one.high for one in found])
    assert 0.94 <= covered <= 0.995


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("n", [5, 7])
def test_a_against_a_is_rarely_called_an_effect_and_the_interval_covers_it(paired, n):
    found = [ratio(noisy(s, n), noisy(s + 10_000, n), paired=paired) for s in range(400)]
    assert np.mean([one.verdict != "no measurable difference" for one in found]) <= 0.075
    assert 0.91 <= np.mean([one.low <= 1 <= one.high for one in found]) <= 0.985


def test_drift_cancels_where_rounds_are_paired_and_only_there():
    drift = np.array([1.0, 0.8, 0.6, 0.5, 0.4])
    own, other = noisy(1, 5, 105, 0.002) * drift, noisy(2, 5, 100, 0.002) * drift
    assert ratio(own, other, paired=True).verdict == "faster"
    assert ratio(own, other, paired=True).ratio == pytest.approx(1.05, abs=0.005)
    assert ratio(own, other, paired=False).verdict == "no measurable difference"


@pytest.mark.parametrize(
    ("factor", "noise", "rounds", "verdict"),
    [
        (1 + MIN_EFFECT * 0.9, None, 9, "no measurable difference"),
        (0.98, None, 9, "slower"),
        (1.04, 0.05, 9, "no measurable difference"),
        (1.06, 0.05, 9, "faster"),
        (3.0, None, MIN_ROUNDS - 1, "too few rounds"),
    ],
)
def test_an_effect_must_exceed_one_percent_and_the_noise_in_five_rounds(factor, noise, rounds, verdict):
    base, wide = noisy(3, rounds), 1 + (noise or 0)
    found = ratio(factor * base, base, paired=True, noise=noise)
    assert (found.ratio, found.verdict) == (pytest.approx(factor), verdict)
    assert (found.low, found.high) == pytest.approx((factor / wide, factor * wide))


def test_unpaired_sides_may_differ_in_length():
    own, other = noisy(1, 9, 200), noisy(2, 5, 100)
    found = ratio(own, other, paired=False)
    means = geometric_mean(own).value / geometric_mean(other).value
    assert found.ratio == pytest.approx(means), "the ratio of what is shown as rates"
    welch = stats.ttest_ind(np.log(own), np.log(other), equal_var=False).confidence_interval()
    assert (found.low, found.high) == pytest.approx((math.exp(welch.low), math.exp(welch.high)))
    assert found.verdict == "faster"


@pytest.mark.parametrize(
    ("values", "warming"),
    [
        ([], False),
        ([50, 100, 100], True),
        ([91, 100, 100, 100], False),  # within the tolerance
        ([89, 100, 100, 100], True),
        ([70, 80, 100, 120, 90], False),  # the later ones are as wild
    ],
)
def test_warm_up_is_over_when_the_first_block_is_like_the_later_ones(values, warming):
    assert statistics.still_warming(np.array(values, dtype=float)) is warming


def test_noise_is_what_processes_differ_by_beyond_the_scatter_of_their_rounds():
    """Simulated: pairs that differ by 2% for good, rounds that scatter by 3%; pairs that do not differ."""
    generator = np.random.default_rng(0)

    def bound(between, pairs=400):
        logs = [generator.normal(generator.normal(0, between), 0.03, 9) for _ in range(pairs)]
        return statistics.aa_noise_bound([statistics.aa_pair(np.exp(log), np.ones(9)) for log in logs])

    assert bound(0.02) == pytest.approx(1.966 * 0.02, rel=0.15)
    assert bound(0.0) < 0.01


def test_few_pairs_that_agree_do_not_show_that_there_is_no_noise():
    """By hand: four pairs of 1.5% stand for what is not known yet; Student's quantile for 4 and for 5."""
    same = statistics.aa_pair(np.full(5, 3.0), np.full(5, 3.0))
    assert same == (0.0, 0.0)
    nothing, one = statistics.aa_noise_bound([]), statistics.aa_noise_bound([same])
    assert np.log1p(nothing) == pytest.approx(2.776 * 0.015, rel=1e-3)
    assert np.log1p(one) == pytest.approx(2.571 * 0.015 * (4 / 5) ** 0.5, rel=1e-3)
    assert statistics.aa_noise_bound([same] * 1000) < 0.003


def test_over_pairs_of_processes_the_interval_holds_what_processes_differ_by():
    """Simulated: pairs that differ by 5% for good, 5 rounds each; the interval is that of their means."""
    generator = np.random.default_rng(0)

    def pairs(slower=0.0):
        differ = np.log1p(-slower) + generator.normal(0, 0.05, 9)
        return [(np.exp(generator.normal(one, 0.02, 5)), np.ones(5)) for one in differ]

    found = [statistics.ratio_over_pairs(pairs()) for _ in range(400)]
    assert np.mean([one.low <= 1 <= one.high for one in found]) == pytest.approx(0.95, abs=0.025)
    one = pairs(0.1)
    means = np.array([np.log(own).mean() for own, _ in one])
    half = stats.t.ppf(0.975, 8) * means.std(ddof=1) / 3
    judged = statistics.ratio_over_pairs(one)
    assert judged.ratio == pytest.approx(np.exp(means.mean()))
    low, high = means.mean() - half, means.mean() + half
    assert np.log((judged.low, judged.high)) == pytest.approx((low, high), abs=0.01)
    assert judged.verdict == "slower"
    assert statistics.ratio_over_pairs(one, noise=0.5).verdict == "no measurable difference"


def test_stopping_early_at_a_clear_effect_covers_the_ratio_as_often():
    """Simulated: rounds that scatter by 10% and 20% around 1.5×, 2× and 5.5×; 5% or 0.15 asked."""
    generator = np.random.default_rng(3)

    def end(effect, scatter, part):
        logs = generator.normal(math.log(effect), scatter, (40, 1))
        needed = lambda count: statistics.rounds_needed(logs[:count], 0.05, part)
        ends = (count for count in range(5, 40) if count >= needed(count))
        count = next(ends, 40)
        found = ratio(np.exp(logs[:count, 0]), np.ones(count), paired=True)
        return count, found.low <= effect <= found.high

    cases = [(effect, scatter) for effect in (1.5, 2.0, 5.5) for scatter in (0.1, 0.2)]
    early = [end(*case, 0.15) for case in cases for _ in range(100)]
    late = [end(*case, 0.0) for case in cases for _ in range(100)]
    covered = [np.mean([is_covered for _, is_covered in ends]) for ends in (early, late)]
    assert covered[1] >= 0.92 and covered[0] >= covered[1] - 0.02
    assert np.mean([count for count, _ in early]) < 0.75 * np.mean([count for count, _ in late])


@pytest.mark.parametrize(
    ("rounds", "effect", "scatter", "precision", "part", "needed"),
    [
        (9, 0.0, 1e-4, 0.02, 0.0, 10),
        (10, 0.0, 0.03, 0.02, 0.0, 11.51),
        (20, 0.0, 0.06, 0.02, 0.0, 39.43),
        (20, 0.0, 0.06, 0.0, 0.0, math.inf),
        (10, 0.0, 0.2, 0.05, 0.15, 81.88),  # no effect: half of the interval is 0.143, and is to be 0.05
        (10, 1.0, 0.2, 0.05, 0.15, 10),  # it is to be 0.15 of the effect; at 0.1 it would be seen well
        (10, 2.0, 0.2, 0.05, 0.15, 5.117),  # half is to be 0.2
        (10, 3.0, 0.2, 0.05, 0.15, 5),
    ],
)
def test_measuring_ends_sooner_for_a_clear_effect(rounds, effect, scatter, precision, part, needed):
    """By hand: of ten values, half the interval is 2.262 / √10 = 0.715 of their standard deviation."""
    wide = np.resize([-1.0, 1.0], rounds)
    wide = effect + wide * scatter / wide.std(ddof=1)
    both = np.column_stack([np.full(rounds, effect), wide])
    assert statistics.rounds_needed(both, precision, part) == pytest.approx(needed, rel=0.01)
    assert statistics.rounds_needed(both[:1], precision, part) == (10 if precision else math.inf)
