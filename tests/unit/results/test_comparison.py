"""A comparison keeps the raw rounds of every pair of processes; all it says is derived from them."""

from __future__ import annotations

import math

import msgspec
import pytest

from perfkit.results.comparison import Comparison
from perfkit.results.run import Pairing, Rounds, Run, decode, encode


def run(run_id: str, pairing: Pairing | None = None) -> Run:
    return Run(
        id=run_id, session="s", created="", stage="x", title=run_id.upper(), workload="w", device="cpu",
        recipe={}, pairings=[pairing] if pairing else [],
    )  # fmt: skip


def pairing(noise: float | None = None, further: tuple[float, ...] = (), interleaved: bool = True) -> Pairing:
    pairs = [Rounds([factor * 100.0] * 5, [100.0] * 5) for factor in further]
    return Pairing(
        [110.0] * 5,
        [100.0] * 5,
        against="a",
        role="previous",
        interleaved=interleaved,
        noise=noise,
        further_pairs=pairs,
    )


def test_one_pair_of_processes() -> None:
    found = Comparison(run("a"), run("b"), pairing(0.02))
    assert (found.pairs, found.rounds, found.pairing.interleaved, found.pairing.noise) == (1, 5, True, 0.02)
    assert found.ratio.ratio == pytest.approx(1.1)
    assert found.ratio.verdict == "faster"
    assert found.describe().endswith("faster; 5 interleaved rounds, A/A noise 2.0%")


def test_noise_that_was_not_measured_is_none_and_says_so() -> None:
    found = Comparison(run("a"), run("b"), pairing(interleaved=False))
    assert found.pairing.noise is None
    assert found.describe().endswith(
        "5 sequential rounds, A/A noise not measured: run perfkit doctor --noise"
    )
    zero = Comparison(run("a"), run("b"), pairing(0.0))
    assert zero.describe().endswith("A/A noise 0.0%"), "measured, and found to be none"


def test_several_pairs_count_once_each_and_are_stored_with_the_run() -> None:
    several = pairing(0.01, (1.1, 1.12, 1.08, 1.1, 1.1))
    found = Comparison(run("a"), run("b", several), several)
    assert (found.pairs, found.rounds) == (6, 30)
    assert len(several.round_ratios) == 30
    factors = [1.1, 1.1, 1.12, 1.08, 1.1, 1.1]
    assert math.log(found.ratio.ratio) == pytest.approx(sum(math.log(f) for f in factors) / 6)
    assert found.ratio.low < found.ratio.ratio < found.ratio.high
    assert found.ratio.verdict == "faster"
    assert msgspec.structs.replace(several, further_pairs=several.further_pairs[:1]).ratio.verdict == (
        "too few rounds"
    )
    assert decode(encode(found.b)).pairings == [several]
    assert decode(encode(found.b)).speedup("previous") == found.ratio


def test_rounds_that_were_not_interleaved_have_no_ratios_of_their_own() -> None:
    assert pairing(interleaved=False).round_ratios == pytest.approx([1.1])
