"""The model's error, applied to rates and ratios."""

from __future__ import annotations

import pytest

from perfkit.recipe import Recipe
from perfkit.simulate import bands
from perfkit.simulate.gpus import gpu

V100 = gpu("v100")


def test_a_rate_is_as_uncertain_as_kernels_decide_it() -> None:
    whole, half, none = (bands.of_rate(V100, share) for share in (1.0, 0.5, 0.0))
    assert whole > half > none == 0
    assert (1 + half) ** 2 == pytest.approx(1 + whole)


def test_an_error_that_both_sides_have_in_common_cancels() -> None:
    one, other = Recipe(workers=8), Recipe(workers=8, pin_memory=True)
    assert bands.of_ratio(V100, (one, 0.9), (other, 0.9)) == 0
    assert bands.of_ratio(V100, (one, 0.9), (other, 0.5)) > 0


def test_a_change_of_kernels_has_an_error_of_its_own() -> None:
    plain, amp = Recipe(), Recipe(amp="fp16")
    alone = bands.of_ratio(V100, (amp, 1.0), (plain, 1.0))
    both = bands.of_ratio(V100, (amp.replace(compile=True), 1.0), (plain, 1.0))
    assert both > alone > 0
    assert bands.of_ratio(V100, (amp, 0.01), (plain, 0.01)) < 0.1 * alone, "a loader that decides hides it"
