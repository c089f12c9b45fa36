"""Whether the losses of a script are still the same."""

import math

import pytest

from perfkit.results.parity import check_losses

PLAIN = [2.0, 1.5, 1.0]


@pytest.mark.parametrize(
    ("ours", "exactness", "sixteen_bits", "ok", "evidence"),
    [
        (PLAIN, "bitwise", False, True, "equal bit for bit for the first 3"),
        ([2.0, 1.5, 1.1], "bitwise", False, False, "from number 3 of 3 on, by at most 5%, which"),
        ([2.0, 1.5002, 1.0], "tolerance", False, True, "within the 0.1%"),
        ([2.0, 1.52, 1.0], "tolerance", False, False, "more than the 0.1%"),
        ([2.0, 1.52, 1.0], "tolerance", True, True, "within the 2.0%"),
        ([9.0], "changes training", False, True, "different losses"),
        ([], "bitwise", False, False, "nothing called backward"),
        ([math.nan, 1.5], "bitwise", False, False, "from number 1 of 2"),
    ],
)
def test_losses_are_compared_as_far_as_rounding_goes(ours, exactness, sixteen_bits, ok, evidence):
    check = check_losses(ours, PLAIN, exactness, sixteen_bits)
    assert check.ok is ok
    assert evidence in check.evidence
    skipped = [math.nan, *ours]
    nearly = [math.nan, *(loss * 1.0001 for loss in ours)]
    assert check_losses(nearly, skipped, "tolerance", False).ok, "only those that differ are compared"
    assert check_losses(skipped, skipped, "bitwise", False).ok, "skipped steps have the same infinite losses"
