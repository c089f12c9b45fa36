"""The verdict on a script that is to replace another: is it faster, and does it still train the same?"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from perfkit.additions.scripts import study
from perfkit.additions.scripts.behaviour import NAMES, Behaviour, Difference, differences
from perfkit.additions.scripts.watched import Launch
from perfkit.errors import one_of
from perfkit.recipe import Value, shown
from perfkit.results.comparison import Comparison
from perfkit.results.parity import Check
from perfkit.show.document import Content
from perfkit.studies.compare import Candidate
from perfkit.studies.sources import Plan

_EXPLAIN_LOSSES = {"samples", "updates", "inputs", "model"}
"""Differences after which other losses are to be expected."""
_WIDE = 2
"""An interval wider than this many times what was asked for, or than the A/A noise, decides nothing."""


class Verdict(msgspec.Struct, frozen=True):
    """What a comparison of two scripts comes to: `referee` in docs/json.md."""

    outcome: str
    exit_code: int
    reason: str
    differences: list[Difference]
    losses: Check
    observed: dict[str, Behaviour]
    """What the steps of both sides, `a` and `b`, did."""

    def sections(self, result: Comparison) -> list[Content]:
        """The verdict for people."""
        proofs = {"losses": self.losses}
        proofs |= {one.name: Check(one.name, one.allowed, one.evidence) for one in self.differences}
        return [*study.sides(result, [*proofs.values()]), f"Verdict: {self.outcome}: {self.reason}"]


class Match(NamedTuple):
    """Two sides that are checked before anything starts."""

    plan: Plan
    a: Candidate
    b: Candidate
    observed: dict[str, Behaviour]
    """What the steps of both sides do, by title; filled while they are measured."""
    allowed: set[str]
    """Names of differences that are meant."""

    def verdict(self, result: Comparison, precision: float, gate: int | None = None) -> "Verdict":
        """The verdict on what was measured; the arguments are those of the function `verdict`."""
        return verdict(self.observed, self.allowed, result, precision, gate)


def two_scripts(
    old: Launch | str,
    new: Launch | str,
    preset: str | None = None,
    seed: int = 0,
    allowed: Sequence[str] = (),
) -> Match:
    """Two scripts as they stand."""
    first, second = (Launch(side) if isinstance(side, str) else side for side in (old, new))
    observed: dict[str, Behaviour] = {}
    title = second.program
    plan = study.script_plan(first, preset, seed, more={title: second}, observed=observed)
    return Match(plan, Candidate(first.program), Candidate(title), observed, named_differences(allowed))


def with_switches(
    launch: Launch,
    settings: Mapping[str, Value],
    preset: str | None = None,
    seed: int = 0,
    allowed: Sequence[str] = (),
) -> Match:
    """A script as it is, and with switches that are set from outside."""
    observed: dict[str, Behaviour] = {}
    title = ", ".join(f"{name}={shown(value)}" for name, value in settings.items())
    declared = named_differences(allowed)
    if "batch_size" in settings:
        declared |= {"samples", "updates"}
    plan = study.script_plan(launch, preset, seed, observed=observed)
    return Match(plan, Candidate("as it is"), Candidate(title, settings), observed, declared)


def named_differences(allowed: Sequence[str]) -> set[str]:
    """The names of differences; an `InvalidValue` if there is no such difference."""
    for name in allowed:
        if name not in NAMES:
            raise one_of(name, NAMES, "difference")
    return set(allowed)


def verdict(
    observed: dict[str, Behaviour],
    allowed: set[str],
    result: Comparison,
    precision: float,
    gate: int | None,
) -> Verdict:
    """The verdict on a comparison, whose interval was to have a half width of this `precision`.

    `observed`: what the steps of both sides did, by their titles. `gate`: its exit code, 1 if B is slower
    than it allows and 3 if it cannot see that; None: no gate, B must be faster.
    """
    sides = {"a": result.a, "b": result.b}
    seen = {name: observed[run.title] for name, run in sides.items() if run.title in observed}
    found = [*differences(*seen.values())] if len(seen) == len(sides) else []
    losses = study.losses(result.a, result.b)
    if allowed & _EXPLAIN_LOSSES & {one.name for one in found}:
        allowed = {*allowed, "losses"}
    are_none = not (result.a.losses or result.b.losses)
    if not (losses.ok or are_none):
        found.append(Difference("losses", losses.evidence))
    found = [msgspec.structs.replace(one, allowed=one.name in allowed) for one in found]
    cheats = [f"{one.name}: {one.evidence}" for one in found if not one.allowed]

    ratio, wide = result.ratio, _WIDE * max(precision, result.pairing.known_spread.sd)
    speed = f"{ratio.ratio:.3f} times as fast ({ratio.low:.3f} to {ratio.high:.3f})"
    is_open = ratio.verdict == "undecided" or ratio.half_width > wide
    outcomes = (
        (cheats, "trains differently", 4, "; ".join(cheats)),  # which makes any speed worthless
        (len(seen) < len(sides), "undecided", 3, "the comparison ended before the steps were looked at"),
        (are_none, "undecided", 3, losses.evidence),
        (gate == 1, "slower", 1, speed),
        (gate == 0, "not slower", 0, speed),
        (gate == 3, "undecided", 3, f"{speed}: the gate cannot see that; raise --budget"),
        (ratio.is_faster, "faster", 0, speed),
        (ratio.is_slower or not is_open, "not faster", 1, speed),
        (True, "undecided", 3, f"{speed}, {ratio.verdict}: raise --budget, or continue with --more"),
    )
    outcome, code, reason = next(row[1:] for row in outcomes if row[0])
    return Verdict(outcome, code, reason, found, losses, seen)
