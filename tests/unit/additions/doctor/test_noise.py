"""The A/A noise says what it follows from: the pairs that count, and what is usual."""

from types import SimpleNamespace

import pytest

from perfkit.additions.doctor import noise
from perfkit.results import Pairing, RunStore, aa_pairs
from perfkit.studies import planning


def measured(disturbed):
    """Two incarnations of a comparison; other programs took a share of the cores in the rounds of the second."""
    rates = [100.0 + number % 3 for number in range(20)]
    shares = [0.0] * 10 + [disturbed] * 10
    pairing = Pairing(
        rates,
        rates[::-1],
        against="a",
        role="baseline",
        interleaved=True,
        disturbed=shares,
        incarnations=[10, 10],
    )
    return SimpleNamespace(pairing=pairing, incarnations=2)


@pytest.mark.parametrize(
    ("disturbed", "pairs"),
    [
        (0.0, "3 pairs of equal processes, 2 of the 2 measured now"),
        (0.9, "2 pairs of equal processes, 1 of the 2 measured now"),  # a disturbed pair does not count
    ],
)
def test_the_pairs_that_count_are_counted(disturbed, pairs, tmp_path):
    store, result = RunStore(tmp_path / "runs.sqlite"), measured(disturbed)
    (earlier, *_) = aa_pairs(measured(0.0).pairing)
    store.add_aa_pairs("cpu", "default", False, [earlier])
    store.add_aa_pairs("cpu", "default", False, aa_pairs(result.pairing))
    start = f"A/A noise of cpu: {store.spread('cpu').sd:.2%} (standard deviation), from {pairs}"
    assert noise.told("cpu", store, result) == f"{start}; what is usual elsewhere counts like 4 more"


@pytest.mark.parametrize("pairs", [0, 2])
def test_noise_that_was_measured_until_ctrl_c_is_kept(pairs, data_dir, monkeypatch):
    """Five minutes of measuring were lost in their last second."""

    def stopped(a, b, plan, progress, store):
        progress.found = measured(0.0) if pairs else None
        raise KeyboardInterrupt

    monkeypatch.setattr(noise, "compare_candidates", stopped)
    store = RunStore()
    before = store.spread("cpu").freedom
    with pytest.raises(KeyboardInterrupt):
        noise.measure_noise(planning.plan("photos", device="cpu"), store)
    assert store.spread("cpu").freedom - before == pairs
