"""Comparisons: two runs and their ratio."""

from typing import Literal

import msgspec

from perfkit.results.rounds import Pairing
from perfkit.results.run import Run
from perfkit.results.stats import MIN_ROUNDS, Ratio


class Comparison(msgspec.Struct, frozen=True):
    """B compared with A. If there were several pairs of processes, both runs are those of the first."""

    a: Run
    b: Run
    pairing: Pairing  # the rounds of B with those of A, in every pair of processes

    @property
    def ratio(self) -> Ratio:
        return self.pairing.ratio

    @property
    def incarnations(self) -> int:
        """How many times the processes of both sides were started."""
        return len(self.pairing.sizes)

    @property
    def rounds(self) -> int:
        return len(self.pairing.own_samples_per_s)

    def gate(self, limit: float, fewest: int = MIN_ROUNDS) -> Literal["passes", "slower", "unclear"]:
        """Whether B is slower than A by more than `limit`; a verdict needs at least `fewest` rounds."""
        if self.rounds < fewest or self.pairing.has_spoiled_turns:
            return "unclear"
        if self.ratio.low >= 1 - limit:
            return "passes"
        return "slower" if self.ratio.high < 1 - limit else "unclear"

    def describe(self, with_verdict: bool = True) -> str:
        """One line for people, without the verdict if the caller gives a different one for these numbers."""
        ratio = self.ratio
        numbers = f"{ratio.ratio:.3f}× ({ratio.low:.3f}–{ratio.high:.3f})"
        if with_verdict:
            numbers += f", {ratio.verdict}"
        if self.a.simulated and self.pairing.band is not None:
            basis = f"simulated on {self.a.device}, host {self.a.simulated.host}"
            basis += f", model error of the ratio ±{self.pairing.band:.0%}"
        else:
            basis = f"{self.rounds} {'interleaved' if self.pairing.interleaved else 'sequential'} rounds"
            if self.incarnations > 1:
                basis += f" in {self.incarnations} pairs of processes"
            if self.b.disturbed is not None:
                basis += f"; other programs took {self.b.disturbed:.0%} of the cores meanwhile"
        return f"{self.b.title} / {self.a.title}: {numbers}; {basis}"
