"""The verdict on a script that is to replace another: is it faster, and does it still train the same?"""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from perfkit.cli import options
from perfkit.errors import InvalidValue, one_of
from perfkit.recipe import parse_settings
from perfkit.results.parity import Check
from perfkit.results.run import Comparison
from perfkit.scripts import study
from perfkit.scripts.behaviour import NAMES, Behaviour, Difference, differences
from perfkit.scripts.watched import Launch
from perfkit.show.document import Content
from perfkit.studies.compare import Candidate
from perfkit.studies.sources import Plan

EXIT_CODES = {"faster": 0, "not slower": 0, "undecided": 3, "trains differently": 4}
"""Of outcomes; 1 of all others."""
_EXPLAIN_LOSSES = {"samples", "updates", "inputs", "model"}
"""Differences after which other losses are to be expected."""
_DECLARE = {"batch_size": {"samples", "updates"}, "amp": {"precision"}}
"""Switches that declare a difference by being set."""
_WIDE = 2
"""An interval wider than this many times what was asked for, or than the A/A noise, decides nothing."""
_DISTORTED = 2
"""Other programs make a ratio at most so many times what the share of the cores that they took explains."""


class Verdict(msgspec.Struct, frozen=True):
    """What a comparison of two scripts comes to; fields of the document for `--json`."""

    outcome: str
    exit_code: int
    reason: str
    differences: list[Difference]
    losses: Check
    observed: dict[str, Behaviour]
    """What the steps of both sides, `a` and `b`, did."""

    def sections(self, result: Comparison) -> list[Content]:
        """The verdict for people."""
        proofs = [Check(one.name, one.allowed, one.evidence) for one in self.differences]
        if not proofs and self.observed:
            steps = min(len(side.loaded) for side in self.observed.values())
            proofs = [Check("steps", True, f"{steps} steps of each side do the same")]
        proofs += [self.losses] * all(proof.name != "losses" for proof in proofs)
        why = f": {self.reason}" if self.outcome == "undecided" else ""  # else it stands above
        return [*study.sides(result, proofs), f"Verdict: {self.outcome}{why}"]


Judge = Callable[[Comparison, float, bool | None], Verdict]
"""`verdict` of two sides: takes what was measured, the precision, and what a gate says."""


def match(
    script: options.Script, training: options.Recipe, named: Sequence[str], allowed: Sequence[str]
) -> tuple[Plan, Candidate, Candidate, Judge]:
    """Two sides, checked before anything starts, and their judge.

    They are a script as it is and with switches set, or the two scripts that are `named` first; what else is
    `named` are arguments of both sides. `allowed`: names of differences that are meant.
    """
    for name in allowed:
        if name not in NAMES:
            raise one_of(name, NAMES, "difference")
    observed: dict[str, Behaviour] = {}
    settings, declared, more = training.settings or [], set(allowed), dict[str, Launch]()
    if program := script.script:
        if not settings:
            raise InvalidValue("there is nothing to compare the script with", "Add --set switch=value")
        changes = parse_settings(settings)
        launch = Launch(program, tuple(named), script.module)
        old, new = Candidate("as it is"), Candidate(", ".join(settings), changes=changes)
        declared.update(*(_DECLARE.get(switch, set()) for switch in changes))
    else:
        files = [Path(side) for side in named[:2]]
        if settings:
            remedy = "Compare one script: --script FILE --set switch=value"
            raise InvalidValue("--set goes with --script", remedy)
        if len(files) != 2 or any(file.suffix != ".py" for file in files):
            raise InvalidValue("one side is a script and the other is not", "Name two scripts, or none")
        launch, second = (Launch(str(file), tuple(named[2:])) for file in files)
        titles = named[:2] if files[0].name == files[1].name else [file.name for file in files]
        old, new = map(Candidate, titles)
        more[new.title] = second
    plan = study.script_plan(launch, training.preset, training.seed, more, observed)
    return plan, old, new, functools.partial(verdict, observed, declared)


def verdict(
    observed: Mapping[str, Behaviour],
    allowed: set[str],
    result: Comparison,
    precision: float,
    fails: bool | None = None,
) -> Verdict:
    """The verdict on a comparison, whose interval was to have a half width of this `precision`.

    `observed`: what the steps of both sides did, by their titles. `fails`: whether B is slower than a gate
    allows; None: no gate, B must be faster.
    """
    sides = {"a": result.a, "b": result.b}
    seen = {name: observed[run.title] for name, run in sides.items() if run.title in observed}
    is_seen = len(seen) == len(sides)
    found = differences(seen["a"], seen["b"]) if is_seen else []
    losses = same_losses(result, observed)
    if allowed & _EXPLAIN_LOSSES & {one.name for one in found}:
        allowed = {*allowed, "losses"}
    if not losses.ok:
        found.append(Difference("losses", losses.evidence))
    found = [Difference(one.name, one.evidence, one.name in allowed) for one in found]
    outcome, reason = _decide(result, found, is_seen, precision, fails)
    return Verdict(outcome, EXIT_CODES.get(outcome, 1), reason, found, losses, seen)


def same_losses(result: Comparison, observed: Mapping[str, Behaviour]) -> Check:
    """Whether the first steps of both sides have the same losses, however many backward passes these have."""
    runs = [
        msgspec.structs.replace(run, losses=observed[run.title].losses) if run.title in observed else run
        for run in (result.a, result.b)
    ]
    return study.losses(*runs)


def _decide(
    result: Comparison, found: Sequence[Difference], is_seen: bool, precision: float, fails: bool | None
) -> tuple[str, str]:
    """The outcome and its reason. Other training decides first: it makes any speed worthless."""
    if cheats := [f"{one.name}: {one.evidence}" for one in found if not one.allowed]:
        return "trains differently", "; ".join(cheats)
    if not is_seen:
        return "undecided", "the comparison ended before the steps were looked at"
    ratio, wide = result.ratio, _WIDE * max(precision, result.pairing.noise or 0.0)
    speed = f"{ratio.ratio:.3f} times as fast ({ratio.low:.3f} to {ratio.high:.3f})"
    if fails is not None:
        return "slower" if fails else "not slower", speed
    most = 1.0
    if ratio.verdict == "disturbed":
        most = _DISTORTED / (1 - min(0.9, fmean(result.pairing.disturbed)))
    if ratio.is_faster or ratio.low > most > 1:
        return "faster", speed
    is_open = ratio.verdict in ("disturbed", "too few rounds") or ratio.half_width > wide
    if is_open and not (ratio.is_slower or ratio.high * most < 1 < most):
        return "undecided", f"{speed}, {ratio.verdict}: close other programs, or raise --budget"
    return "not faster", speed
