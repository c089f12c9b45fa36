"""Whether a patched script does what setting the same switches from outside did."""

from __future__ import annotations

import msgspec

from perfkit.results.parity import Check
from perfkit.results.stats import Ratio


class Verification(msgspec.Struct, frozen=True):
    """A patched script against the same switches set from outside."""

    ratio: Ratio
    """Samples/s of the patched script over those with the switches set from outside."""
    rounds: int
    losses: Check

    @property
    def ok(self) -> bool:
        """Whether the losses agree and no difference in speed was measured."""
        return self.losses.ok and self.ratio.verdict not in ("faster", "slower")

    def describe(self) -> str:
        """One or two sentences for people."""
        ratio = self.ratio
        speed = f"{ratio.ratio:.3g} times ({ratio.low:.3g} to {ratio.high:.3g}, {self.rounds} rounds)"
        if not self.losses.ok:
            return f"NOT verified: the losses {self.losses.evidence}; {speed} as fast"
        losses = f"losses {self.losses.evidence}"
        if ratio.verdict in ("faster", "slower"):
            return f"NOT verified: {speed} as fast as with the switches set from outside; {losses}"
        if ratio.verdict != "no measurable difference":
            return f"verified by its losses only ({losses}); speed: {ratio.verdict}, {speed} as fast"
        return f"verified: {speed} as fast as with the switches set from outside; {losses}"
