"""What a search for the fastest recipe tried and picked; `studies.tune` searches."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from perfkit.results.parity import Parity
from perfkit.results.run import Run
from perfkit.results.stats import Ratio


class Score(Struct, frozen=True, kw_only=True):
    """How far predictions were from later measurements: relative errors of the step time."""

    count: int
    median: float
    p90: float


class Tuned(Struct, frozen=True, kw_only=True):
    """What was tried, and the recipe that was picked."""

    best: Run
    settings: str
    """Of the best recipe, in words."""
    gain: Ratio | None
    """Over the baseline, interleaved with it."""
    parity: Parity | None
    tried: Sequence[Run]
    """Every run that was measured, in the order of time."""
    considered: int
    """Recipes that the model ranked."""
    over_memory: Sequence[Run]
    cap_bytes: int | None
    score: Score | None
    """How well the model predicted the runs that were measured after it."""
    seconds: float

    def pareto(self) -> list[Run]:
        """Runs that no other one beats in both speed and memory, the leanest first."""
        measured = [run for run in self.tried if run.samples_per_s and run.peak_memory_bytes]
        measured.sort(key=lambda run: (run.peak_memory_bytes or 0, -rate(run)))
        front: list[Run] = []
        for run in measured:
            if not front or rate(run) > rate(front[-1]):
                front.append(run)
        return front

    def describe(self) -> str:
        """One line for people."""
        gain = self.gain
        over = f", {gain.ratio:.2f}x ({gain.low:.2f}-{gain.high:.2f}) the baseline" if gain else ""
        return (
            f"{self.settings}: {rate(self.best):.0f} samples/s{over}; {len(self.tried)} runs for "
            f"{self.considered} recipes, in {self.seconds:.0f} s"
        )

    def sentences(self) -> list[str]:
        """What was picked, whether it trains the same, and how well the model predicted."""
        lines = [self.describe(), *([self.parity.describe()] if self.parity else [])]
        if self.score:
            errors = f"median error {self.score.median:.0%}, 90th percentile {self.score.p90:.0%}"
            lines.append(f"the model's predictions: {errors}, over {self.score.count} runs")
        return lines


def rate(run: Run) -> float:
    """samples/s of a run; 0 where it was not measured, so that it ranks last."""
    return run.samples_per_s.value if run.samples_per_s else 0.0
