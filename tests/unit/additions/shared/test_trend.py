"""How steps change: by a slope, a jump, or within epochs; small changes and few steps say nothing."""

import numpy as np
import pytest

from perfkit.additions.shared.trend import trend

NUMBERS = [*range(1, 121)]
NOISE = np.random.default_rng(0).normal(0, 0.02, 120)


def test_steps_that_grow_have_a_slope_with_its_interval():
    found = trend(NUMBERS, list(1 + 0.05 * np.arange(120) + NOISE))
    assert found.kind == "grows" and found.low <= found.per_step <= found.high
    assert found.per_step == pytest.approx(0.05, rel=0.05)


def test_a_late_change_is_a_jump_with_its_step():
    found = trend(NUMBERS, list(np.where(np.arange(120) < 70, 1.0, 3.0) + NOISE))
    assert (found.kind, found.at) == ("jumps", 71) and found.last == pytest.approx(3.0, rel=0.05)


def test_growth_within_epochs_is_a_saw_tooth_not_a_trend():
    values = list(1 + 0.1 * (np.arange(120) % 30) + NOISE)
    assert trend(NUMBERS, values, epochs=[1, 31, 61, 91]).kind == "saw-tooth"
    assert trend(NUMBERS, list(1 + NOISE), epochs=[1, 31, 61, 91]).kind == "steady"


def test_too_few_steps_say_nothing_and_thousands_are_thinned_out():
    assert trend(NUMBERS[:8], [1.0] * 8) is None
    assert trend(range(4000), [1.0 + at / 4000 for at in range(4000)]).kind == "grows"
