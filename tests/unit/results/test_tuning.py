"""What a search says of what it tried."""

from __future__ import annotations

from perfkit.recipe import Recipe
from perfkit.results.run import Raw, Run
from perfkit.results.stats import Ratio
from perfkit.search.tuning import Score, Tuned


def run(size: int, rate: float, memory: int) -> Run:
    recipe = Recipe(batch_size=size).to_dict()
    raw = Raw(block_samples_per_s=[rate] * 3)
    return Run(
        id=str(size), session="s", created="", stage="x", workload="w", device="cpu", recipe=recipe, raw=raw,
        peak_memory_bytes=memory,
    )  # fmt: skip


RUNS = [run(*given) for given in ((8, 10, 1), (16, 30, 3), (32, 20, 4), (64, 40, 9), (128, 5, 1))]


def tuned(gain: Ratio | None = None, score: Score | None = None) -> Tuned:
    return Tuned(
        best=RUNS[3], settings="batch_size=64", gain=gain, parity=None, tried=RUNS, considered=9,
        over_memory=[], cap_bytes=None, score=score, seconds=12.3,
    )  # fmt: skip


def test_the_front_holds_what_nothing_beats_in_both() -> None:
    assert [r.recipe["batch_size"] for r in tuned().pareto()] == [8, 16, 64]


def test_in_words_only_what_is_known() -> None:
    assert tuned().sentences() == ["batch_size=64: 40 samples/s; 5 runs for 9 recipes, in 12 s"]
    gain, score = Ratio(4.0, 3.8, 4.2, "faster"), Score(count=3, median=0.05, p90=0.1)
    first, last = tuned(gain, score).sentences()
    assert "40 samples/s, 4.00x (3.80-4.20) the baseline;" in first
    assert last == "the model's predictions: median error 5%, 90th percentile 10%, over 3 runs"
