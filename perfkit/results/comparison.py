"""Two runs compared: the raw rounds are kept, ratio, interval and verdict are derived from them."""

from __future__ import annotations

import msgspec

from perfkit.results.run import Pairing, Run
from perfkit.results.stats import Ratio


class Comparison(msgspec.Struct, frozen=True):
    """B against A: how many times as fast, with interval and verdict."""

    a: Run
    b: Run
    """Of several pairs of processes, both runs are those of the first."""
    pairing: Pairing
    """The rounds of B beside those of A, in every pair of processes."""

    @property
    def ratio(self) -> Ratio:
        """B's speed / A's."""
        return self.pairing.ratio

    @property
    def pairs(self) -> int:
        """Pairs of processes that were measured."""
        return len(self.pairing.pairs)

    @property
    def rounds(self) -> int:
        """Rounds of all pairs of processes."""
        pairs = self.pairing.pairs
        return sum(min(len(pair.own_samples_per_s), len(pair.other_samples_per_s)) for pair in pairs)

    def describe(self) -> str:
        """One line for people."""
        ratio, aa_noise = self.ratio, self.pairing.noise
        if self.pairing.band is not None:
            host = self.a.simulated.host if self.a.simulated else ""
            return (
                f"{self.b.title} / {self.a.title}: {ratio.ratio:.3f}x ({ratio.low:.3f}-{ratio.high:.3f}), "
                f"{ratio.verdict}; simulated on {self.a.device}, host {host}, "
                f"model error of the ratio ±{self.pairing.band:.0%}"
            )
        how = "interleaved" if self.pairing.interleaved else "sequential"
        where = f" in {self.pairs} pairs of processes" if self.pairs > 1 else ""
        noise = "not measured: run perfkit doctor --noise" if aa_noise is None else f"{aa_noise:.1%}"
        noise += " assumed: perfkit doctor --noise measures it" if self.pairing.assumed else ""
        return (
            f"{self.b.title} / {self.a.title}: {ratio.ratio:.3f}x ({ratio.low:.3f}-{ratio.high:.3f}), "
            f"{ratio.verdict}; {self.rounds} {how} rounds{where}, A/A noise {noise}"
        )
