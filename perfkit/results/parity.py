"""Whether a recipe trains the same as the plain program; `studies.parity` checks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec


class Check(msgspec.Struct, frozen=True):
    """One thing that was checked, with its evidence."""

    name: str
    ok: bool
    evidence: str


class Parity(msgspec.Struct, frozen=True):
    """The verdict on one recipe."""

    title: str
    exactness: Literal["bitwise", "tolerance", "changes training"]
    checks: list[Check]
    other_batch: bool
    """Whether an optimizer step uses a different number of samples than the plain program's."""
    losses: Mapping[str, list[float]]
    """Of the candidate, and of the plain program on the same tensors in float32 and in float64."""

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return all(check.ok for check in self.checks)

    def describe(self) -> str:
        """One line for people."""
        failed = [f"{check.name}: {check.evidence}" for check in self.checks if not check.ok]
        if failed:
            return f"{self.title}: NOT the same training: {'; '.join(failed)}"
        same = "bit for bit the same" if self.exactness == "bitwise" else "the same within rounding"
        other = "; the batch size differs, which changes training" if self.other_batch else ""
        return f"{self.title}: on equal batches it trains {same}{other}"
