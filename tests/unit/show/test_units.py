"""Numbers as text."""

import math

import pytest

from perfkit.results.stats import Estimate, Ratio
from perfkit.show import units

TEXTS = {
    units.number: {0: "0", 0.01234: "0.0123", 1.234: "1.23", 12.34: "12.3", 1234.4: "1,234", math.nan: "NaN",
                   math.inf: "∞", -math.inf: "-∞", -1.5: "-1.50", None: "n/a"},
    units.size: {0: "0 B", 999: "999 B", 3072: "3.07 kB", 999_999: "1.00 MB", 11.3e9: "11.3 GB", 2e12: "2.00 TB"},
    units.percent: {0: "0%", 0.001: "<1%", 0.005: "<1%", 0.995: ">99%", 0.41: "41%", 0.999: ">99%", 1: "100%",
                    None: "n/a"},  # templates hand on what is not known
    units.times: {1.338: "1.34×", None: "n/a"},
    units.duration: {12e-6: "12.0 µs", 0.0801: "80.1 ms", 1.5: "1.50 s", 0.9999: "1.00 s", 0.9996e-3: "1.00 ms"},
}  # fmt: skip


@pytest.mark.parametrize("unit", TEXTS)
def test_a_number_has_sensible_digits_and_a_unit(unit):
    assert [unit(value) for value in TEXTS[unit]] == [*TEXTS[unit].values()]


def test_an_interval_has_the_digits_of_its_middle():
    assert units.interval(Estimate(80.14, 79.5, 101.3)) == "80.1 (79.5–101.3)"
    assert units.duration_interval(Estimate(0.08014, 0.0795, 0.081)) == "80.1 ms (79.5–81.0)"
    assert units.duration_interval(Estimate(1.5, 1.4, 1.6)) == "1.50 s (1.40–1.60)"
    for value, text in {
        (1.338, 1.28, 1.41): "1.34× (1.28–1.41)",
        (65.14, 64.2, 66.0): "65.1× (64.2–66.0)",
        (0.01234, 0.012, 0.013): "0.0123× (0.0120–0.0130)",
    }.items():
        assert units.ratio(Ratio(*value, "faster")) == text


def test_text_from_outside_is_one_clean_line():
    assert units.clean("a\x00b\n c\u202e") == "a b c"
    assert units.clean("abcdef", 4) == "abc…"
