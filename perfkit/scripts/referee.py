"""The verdict on a script that is to replace another: is it faster, and does it still train the same?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Literal

import msgspec

from perfkit.errors import InvalidValue, one_of
from perfkit.recipe import parse_settings
from perfkit.results.parity import Check
from perfkit.results.run import Comparison
from perfkit.scripts import study, tables
from perfkit.scripts.behaviour import NAMES, Behaviour, Difference, differences
from perfkit.scripts.launch import Launch
from perfkit.show.document import Content
from perfkit.studies.compare import Candidate
from perfkit.studies.sources import Plan

Outcome = Literal["faster", "not slower", "not faster", "slower", "undecided", "trains differently"]
EXIT_CODES: dict[Outcome, int] = {
    "faster": 0,
    "not slower": 0,
    "not faster": 1,
    "slower": 1,
    "undecided": 3,
    "trains differently": 4,
}
_EXPLAIN_LOSSES = {"samples", "updates", "inputs", "model", "optimizer"}
"""Differences after which other losses are to be expected."""
_DECLARE = {"batch_size": {"samples", "updates"}, "amp": {"precision"}}
"""Switches that declare a difference by being set."""
_WIDE = 2
"""An interval wider than this many times what was asked for, or than the A/A noise, decides nothing."""

_DISTORTED = 2
"""Other programs make a ratio at most so many times what the share of the cores that they took explains."""


class Verdict(msgspec.Struct, frozen=True):
    """What a comparison of two scripts comes to; fields of the document for `--json`."""

    outcome: Outcome
    exit_code: int
    reason: str
    differences: list[Difference]
    losses: Check
    observed: dict[str, Behaviour]
    """What the steps of both sides, `a` and `b`, did."""


@dataclass(frozen=True)
class Match:
    """Two sides to compare, and what is seen of them."""

    plan: Plan
    a: Candidate
    b: Candidate
    allowed: set[str]
    """Names of the differences that are meant."""
    observed: Mapping[str, Behaviour] = field(default_factory=dict)
    """By the titles of the sides, once they are measured."""

    def verdict(self, result: Comparison, precision: float, fails: bool | None = None) -> Verdict:
        """The verdict on a comparison, whose interval was to have a half width of this `precision`.

        `fails`: whether B is slower than a gate allows; None: no gate, B must be faster.
        """
        runs = {"a": result.a, "b": result.b}
        seen = {name: self.observed[run.title] for name, run in runs.items() if run.title in self.observed}
        found = list[Difference]()
        if is_seen := len(seen) == len(runs):
            found = differences(seen["a"], seen["b"])
            for name, side in seen.items():  # of steps, however many backward passes these have
                runs[name] = msgspec.structs.replace(runs[name], losses=side.losses)
        losses = study.losses(**runs, most=study.LOSSES)
        names = self.allowed & {one.name for one in found}
        allowed = self.allowed | ({"losses"} if names & _EXPLAIN_LOSSES else set())
        if not losses.ok:
            found.append(Difference("losses", losses.evidence))
        found = [Difference(one.name, one.evidence, one.name in allowed) for one in found]
        outcome, reason = _decide(result, found, is_seen, precision, fails)
        return Verdict(outcome, EXIT_CODES[outcome], reason, found, losses, seen)

    def sections(self, result: Comparison, verdict: Verdict) -> list[Content]:
        """The verdict for people."""
        proofs = [Check(one.name, one.allowed, one.evidence) for one in verdict.differences]
        steps = [len(side.loaded) for side in verdict.observed.values()]
        if not verdict.differences and steps:
            proofs = [Check("steps", True, f"{min(steps)} steps of each side do the same")]
        proofs += [verdict.losses] * all(proof.name != "losses" for proof in proofs)
        return [*tables.sides(result, proofs), f"{verdict.outcome}: {verdict.reason}"]


def _decide(
    result: Comparison, found: Sequence[Difference], is_seen: bool, precision: float, fails: bool | None
) -> tuple[Outcome, str]:
    """The outcome and its reason. Other training decides first: it makes any speed worthless."""
    ratio, wide = result.ratio, _WIDE * max(precision, result.pairing.noise or 0.0)
    verdict: str = ratio.verdict
    if verdict == "disturbed":
        most = _DISTORTED / (1 - min(0.9, fmean(result.pairing.disturbed)))
        verdict = "faster" if ratio.low > most else "slower" if ratio.high * most < 1 else verdict
    speed = f"{ratio.ratio:.3f} times as fast ({ratio.low:.3f} to {ratio.high:.3f})"
    cheats = [f"{one.name}: {one.evidence}" for one in found if not one.allowed]
    outcome: Outcome = "not faster"
    if cheats:
        outcome, speed = "trains differently", "; ".join(cheats)
    elif not is_seen:
        outcome, speed = "undecided", "the comparison ended before the steps were looked at"
    elif fails is not None:
        outcome = "slower" if fails else "not slower"
    elif verdict == "faster":
        outcome = "faster"
    elif verdict != "slower" and (verdict in ("disturbed", "too few rounds") or ratio.half_width > wide):
        outcome = "undecided"
        speed += f", {verdict}: close other programs, or raise --budget"
    return outcome, speed


def match(
    program: str | None,
    named: Sequence[str],
    module: bool,
    settings: Sequence[str],
    preset: str | None,
    seed: int,
    allowed: Sequence[str] = (),
) -> Match:
    """Two sides, checked before anything starts: `program` as it is and with switches set, or two scripts.

    `named` are the arguments of the program; without one, both scripts, then the arguments of both.
    `allowed` are names of differences.
    """
    for name in allowed:
        if name not in NAMES:
            raise one_of(name, NAMES, "difference")
    observed: dict[str, Behaviour] = {}
    if program:
        if not settings:
            raise InvalidValue("there is nothing to compare the script with", "Add --set switch=value")
        launch, switches = Launch(program, tuple(named), module), parse_settings(list(settings))
        plan = study.script_plan(launch, preset, seed, observed=observed)
        declared = set(allowed).union(*(_DECLARE.get(switch, set()) for switch in switches))
        b = Candidate(", ".join(settings), changes=switches)
        return Match(plan, Candidate("as it is"), b, declared, observed)
    if settings:
        raise InvalidValue("--set goes with --script", "Compare one script: --script FILE --set switch=value")
    files = [Path(side) for side in named[:2]]
    if len(files) != 2 or any(file.suffix != ".py" for file in files):
        raise InvalidValue("one side is a script and the other is not", "Name two scripts, or none")
    first, second = (Launch(str(file), tuple(named[2:])) for file in files)
    titles = named[:2] if files[0].name == files[1].name else [file.name for file in files]
    plan = study.script_plan(first, preset, seed, {titles[1]: second}, observed)
    return Match(plan, Candidate(titles[0]), Candidate(titles[1]), set(allowed), observed)
