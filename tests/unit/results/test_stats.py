import math

import numpy as np
import pytest

from perfkit.ladder.catalogue import Goal
from perfkit.results import stats as statistics
from perfkit.results.stats import Estimate, Spread, judged, median, nested, weights


def noisy(seed, n, level=100.0, noise=0.03):
    return level * np.exp(np.random.default_rng(seed).normal(0, noise, n))


def test_a_median_of_one_value_is_that():
    assert median(np.array([])) is None
    assert median(np.array([3.5])) == Estimate(3.5, 3.5, 3.5)


@pytest.mark.parametrize("n", [6, 9, 20, 101])
def test_the_interval_of_a_median_covers_the_truth_of_a_skewed_distribution(n):
    generator = np.random.default_rng(n)
    found = [median(generator.exponential(1.0, n)) for _ in range(1000)]
    covered = np.mean([one is not None and one.low <= math.log(2) <= one.high for one in found])
    assert 0.94 <= covered <= 0.995


EXACTLY = Spread(1e-9, 1e9)
STUDENT = {4: 2.7764, 40: 2.0211}  # the 97.5% quantile by degrees of freedom, from a printed table


def test_one_incarnation_of_equal_rounds_has_the_interval_of_what_equal_processes_differ_by():
    """By hand: Student's quantile for the four degrees of freedom with which 2% are known."""
    found = nested(np.full(20, math.log(1.3)), [20], np.ones(20), Spread(0.02, 4))
    assert found.centre == pytest.approx(math.log(1.3))
    assert found.half == pytest.approx(STUDENT[4] * 0.02, rel=1e-4)


def test_many_incarnations_have_students_interval_of_their_means():
    logs = np.random.default_rng(0).normal(0, 0.05, (40, 10)) + np.random.default_rng(1).normal(
        0, 0.03, (40, 1)
    )
    means = logs.mean(axis=1)
    found = nested(logs.ravel(), [10] * 40, np.ones(400), Spread(0.03, 1))
    assert found.half == pytest.approx(STUDENT[40] * means.std(ddof=1) / math.sqrt(40), rel=0.1)
    assert found.weight == 400


def test_a_round_counts_by_how_clean_it_was():
    counts = weights([0.0, 0.05, 0.5], 3)
    assert counts == pytest.approx([1.0, 0.5, 1 / 101])
    assert weights([], 3).tolist() == [1.0] * 3, "not known"
    found = nested(np.array([0.0, 0.0, 5.0]), [3], counts)
    assert found.centre == pytest.approx(5.0 / 101 / counts.sum())


def bursts(generator, count):
    """Rounds in a room where a program runs in bursts: their scatter, and what it took of the cores."""
    is_busy, taken = False, np.zeros(count)
    for at in range(count):
        if generator.random() < (0.25 if is_busy else 0.12):
            is_busy = not is_busy
        taken[at] = generator.uniform(0.1, 0.45) if is_busy else generator.uniform(0, 0.02)
    heavy = generator.standard_t(3, count) / math.sqrt(3) * 0.1
    return heavy + generator.normal(0, 0.7 * taken), taken


@pytest.mark.integration
@pytest.mark.parametrize(
    ("incarnations", "precision"), [(1, 0.0), (4, 0.0), (8, 0.0), (12, 0.03), (12, 0.05)]
)
def test_the_interval_covers_the_truth_with_heavy_tails_and_bursts_also_where_it_ends_when_narrow(
    incarnations, precision
):
    """Simulated: processes that differ by 2%, ten rounds in each; stopping early makes it no worse."""
    generator, covered = np.random.default_rng(incarnations), []
    for _ in range(600):
        logs, taken = np.empty(0), np.empty(0)
        for number in range(1, incarnations + 1):
            rounds, shares = bursts(generator, 10)
            logs, taken = np.append(logs, rounds + generator.normal(0, 0.02)), np.append(taken, shares)
            found = nested(logs, [10] * number, weights(list(taken), logs.size))
            if Goal(precision, 0.2).is_met(found.centre, found.half):
                break
        covered.append(abs(found.centre) <= found.half)
    assert 0.925 <= np.mean(covered) <= 0.995


@pytest.mark.parametrize(
    ("centre", "half", "rounds", "verdict"),
    [
        (0.05, 0.04, 9, "faster"),
        (-0.05, 0.04, 9, "slower"),
        (0.009, 0.001, 9, "no measurable difference"),  # below 1% nothing is an effect
        (0.03, 0.04, 9, "no measurable difference"),
        (0.03, 0.06, 9, "undecided"),  # it may be 9%, or nothing
        (1.0, 0.01, 4, "undecided"),
    ],
)
def test_the_verdict_follows_from_the_interval(centre, half, rounds, verdict):
    found = judged(centre, half, rounds)
    assert found.verdict == verdict
    expected = tuple(math.exp(centre + offset) for offset in (0, -half, half))
    assert (found.ratio, found.low, found.high) == pytest.approx(expected)


def test_noise_is_what_processes_differ_by_beyond_the_scatter_of_their_rounds():
    """Simulated: pairs that differ by 2% for good, rounds that scatter by 3%; pairs that do not differ."""
    generator = np.random.default_rng(0)

    def spread(between, pairs=400):
        logs = [generator.normal(generator.normal(0, between), 0.03, 9) for _ in range(pairs)]
        return statistics.spread_of([statistics.aa_pair(np.exp(log), np.ones(9)) for log in logs])

    assert spread(0.02).sd == pytest.approx(0.02, rel=0.15)
    assert spread(0.0).sd < 0.007
    assert spread(0.02).freedom == 404


def test_few_pairs_that_agree_do_not_show_that_there_is_no_noise():
    same = statistics.aa_pair(np.full(5, 3.0), np.full(5, 3.0))
    assert same == (0.0, 0.0)
    usual = statistics.UNKNOWN
    assert statistics.spread_of([]) == usual
    assert statistics.spread_of([same]).sd == pytest.approx(usual.sd * (4 / 5) ** 0.5)
    assert statistics.spread_of([same] * 1000).sd == statistics.LEAST_SPREAD
