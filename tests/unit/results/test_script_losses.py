import math

import pytest

from perfkit.results.parity import losses

PLAIN = [2.0, 1.5, 1.0]


def test_equal_losses_prove_an_exact_switch():
    check = losses(PLAIN, PLAIN, "bitwise", False)
    assert check.ok and check.evidence == "equal bit for bit for the first 3"


def test_losses_of_an_exact_switch_may_not_differ_without_a_reason():
    check = losses([2.0, 1.5, 1.0000001], PLAIN, "bitwise", False)
    assert not check.ok and "from number 3 of 3 on" in check.evidence
    apart = losses([2.0, 1.7, 1.0], PLAIN, "bitwise", False, "the data set draws random numbers")
    assert apart.ok and apart.evidence.endswith("says nothing: the data set draws random numbers")


@pytest.mark.parametrize(
    ("off", "sixteen", "ok"), [(1e-4, False, True), (0.01, False, False), (0.01, True, True)]
)
def test_rounding_explains_only_so_much(off, sixteen, ok):
    check = losses([2.0, 1.5 + 2 * off, 1.0], PLAIN, "tolerance", sixteen)
    assert check.ok is ok and "from number 2" in check.evidence


def test_more_samples_in_a_step_are_other_losses():
    assert losses([9.0], PLAIN, "changes training", False).ok


def test_no_losses_prove_nothing():
    check = losses([], PLAIN, "bitwise", False)
    assert not check.ok and "backward" in check.evidence


def test_skipped_steps_have_the_same_infinite_losses():
    assert losses([math.nan, 1.0], [math.nan, 1.0], "bitwise", False).ok
    assert not losses([math.nan, 1.0], [1.0, 1.0], "tolerance", False).ok
