"""Whether a recipe trains the same as the plain program: the verdict, however it was checked."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

Losses = list[float]
if not TYPE_CHECKING:  # JSON has no NaN and no infinity, so a file has null instead
    Losses = list[float | None]


def restore(losses: list[Any]) -> None:
    """Replaces null from a file by NaN: a training that diverged has losses as well."""
    for number, loss in enumerate(losses):
        if loss is None:
            losses[number] = math.nan


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
    other_batch: bool  # whether an optimizer step uses a different number of samples than the plain program's
    losses: Mapping[str, Losses]
    """The losses of the candidate, and of the plain program on the same tensors in float32 and float64."""

    def __post_init__(self) -> None:
        for losses in self.losses.values():
            restore(losses)

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    @property
    def outcome(self) -> str:
        failed = [f"{check.name}: {check.evidence}" for check in self.checks if not check.ok]
        if failed:
            return f"NOT the same training: {'; '.join(failed)}"
        same = "bit for bit the same" if self.exactness == "bitwise" else "the same within rounding"
        text = f"on equal batches it trains {same}"
        if self.other_batch:
            text += "; but its batch size is not the plain loop's, which changes training"
        return text

    def describe(self) -> str:
        return f"{self.title}: {self.outcome}"


def check_losses(own: Sequence[float], plain: Sequence[float], exactness: str, sixteen_bits: bool) -> Check:
    """Whether the first losses of a training equal those of the plain one, up to rounding.

    They must be equal if the switches are exact. Otherwise they may differ by 0.1% of the largest loss, or by
    2% if the model computes in 16 bits.
    """
    if exactness == "changes training":
        return Check("losses", True, "different losses, because a step has more or fewer samples")
    count = min(len(own), len(plain))
    new = np.array(own[:count])
    old = np.array(plain[:count])
    if not count:
        return Check("losses", False, "there are no losses to compare: nothing called backward")
    differing = np.flatnonzero((new != old) & ~(np.isnan(new) & np.isnan(old)))
    if not differing.size:
        return Check("losses", True, f"equal bit for bit for the first {count}")
    largest = np.abs(old[np.isfinite(old)]).max(initial=0.0) or 1e-12
    furthest = np.abs(new - old)[differing].max() / largest
    text = f"differ from number {differing[0] + 1} of {count} on, by at most {100 * furthest:.2g}%"
    if exactness == "bitwise":
        return Check("losses", False, f"{text}, which no switch explains")
    allowed = 2e-2 if sixteen_bits else 1e-3
    within = bool(furthest <= allowed)
    rounding = f"{'within' if within else 'more than'} the {allowed:.1%} that rounding explains"
    return Check("losses", within, f"{text}, {rounding}")
