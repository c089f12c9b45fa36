"""The verdict on a script that is to replace another: is it faster, and does it still train the same?"""

import math
from collections.abc import Mapping, Sequence, Set
from enum import StrEnum
from statistics import fmean
from typing import NamedTuple

import msgspec

from perfkit.additions.referee.behaviour import LIMIT, OUTSIDE, SAME, Behaviour, Difference, differences
from perfkit.additions.scripts import study
from perfkit.additions.scripts.messages import CHECKPOINTS, EPOCHS, EVALUATION, PARTS, STEPS
from perfkit.additions.scripts.report import sentences
from perfkit.results import Check, Comparison, Ratio, Run
from perfkit.results.stats import MIN_ROUNDS, judged
from perfkit.show import units
from perfkit.show.document import Content, Table

_SENTENCES = sentences(__package__, "verdict.jinja")
_EXPLAIN_LOSSES = {"samples", "updates", "inputs", "model", "optimizer"}  # and the moves of weights


class Outcome(StrEnum):
    """The result of a comparison of two scripts, in a word."""

    FASTER = "faster"
    NOT_FASTER = "not faster"
    NOT_SLOWER = "not slower"
    SLOWER = "slower"
    UNDECIDED = "undecided"
    TRAINS_DIFFERENTLY = "trains differently"
    DOES_LESS = "does less besides"


_EXIT_CODES = {
    Outcome.FASTER: 0, Outcome.NOT_SLOWER: 0, Outcome.NOT_FASTER: 1, Outcome.SLOWER: 1,
    Outcome.UNDECIDED: 3, Outcome.TRAINS_DIFFERENTLY: 4, Outcome.DOES_LESS: 4,
}  # fmt: skip
_BY_GATE = {"passes": Outcome.NOT_SLOWER, "slower": Outcome.SLOWER, "unclear": Outcome.UNDECIDED}
Judgement = tuple[Outcome, str]  # an outcome and its reason


class RefereeVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict with its evidence: `referee` in docs/json.md."""

    outcome: Outcome
    exit_code: int
    reason: str
    differences: list[Difference] = []
    losses: Check
    observed: dict[str, Behaviour] = {}
    run: float | None = None
    is_whole: bool = False

    def sections(self, result: Comparison) -> list[Content]:
        proofs = {"losses": self.losses}
        for difference in self.differences:
            evidence = f"{difference.evidence}: allowed" if difference.allowed else difference.evidence
            proofs[difference.name] = Check(difference.name, difference.allowed, evidence)
        tables = [run_table(self.observed, result, self.is_whole)] if len(self.observed) == 2 else []
        speed = [] if self.is_whole else [result.describe(with_verdict=False)]
        checks = study.sides(result, [*proofs.values()])
        return [*speed, *checks, *tables, f"Verdict: {self.outcome}: {self.reason}"]


def _step_times(sides: Sequence[Behaviour], runs: Sequence[Run]) -> list[dict[str, float]]:
    """Seconds per step of both sides by part; plain steps are those of all rounds, as in the ratio.

    Rare parts are counted in the steps that both sides have taken: one side may just have had one more.
    """
    count = max(1, min(side.steps for side in sides))
    has_epochs = any(side.epochs > 1 for side in sides)  # the first one always has a start
    times_by_side = list[dict[str, float]]()
    for side, run in zip(sides, runs, strict=True):
        parts = [part for part in side.run if has_epochs or part != EPOCHS]
        times = {part: side.run[part] / max(1, side.run_steps) for part in parts}
        for part, name in ((EVALUATION, "evaluations"), (CHECKPOINTS, "checkpoints")):
            if part in times and (number := len(getattr(side, name))):
                times[part] = side.run[part] / number * side.times(name, count) / count
        if run.samples_per_s:
            times[STEPS] = run.samples_per_step / run.samples_per_s.value
        times_by_side.append(times)
    return times_by_side


def run_table(observed: Mapping[str, Behaviour], result: Comparison, is_whole: bool) -> Table:
    """Where the time of both sides goes, whole or for each step, and their memory."""
    sides = [observed["a"], observed["b"]]
    runs = [result.a, result.b]
    steps = " and ".join(dict.fromkeys(f"{side.run_steps:,}" for side in sides))
    note = f"Time between steps: averaged over {steps} steps"
    times = [side.run for side in sides]
    if not is_whole:
        times = _step_times(sides, runs)
        if any(EVALUATION in seconds for seconds in times):
            count = min(side.steps for side in sides)
            numbers = " and ".join(str(side.times("evaluations", count)) for side in sides)
            note += f" (evaluations in the first {count:,}: {numbers})"
    parts = [part for part in PARTS if any(seconds.get(part) for seconds in times)]
    rows = [[part, *(units.duration(seconds.get(part, 0.0)) for seconds in times)] for part in parts]
    rows.append(["total", *(units.duration(sum(seconds.values())) for seconds in times)])
    rows.append(["memory of all processes", *(units.size(side.memory) for side in sides)])
    header = "the whole run" if is_whole else "for each step"
    titles = ["A", "B"] if runs[0].script != runs[1].script else [run.title for run in runs]
    return Table((header, *titles), rows, note=f"{note}.")


class MatchResult(NamedTuple):
    """A comparison of two scripts, with the behaviour of their steps."""

    comparison: Comparison
    behaviours: Mapping[str, Behaviour]  # of `a` and `b`, if they were observed
    allowed: Set[str]  # names of differences that are meant
    longer: str = "raise --budget"  # how a person measures for longer
    is_whole: bool = False  # whether both ran to their end
    failure: str = ""  # that kept the steps of a side from being observed
    is_stopped: bool = False  # whether a person stopped it

    def verdict(self, precision: float, limit: float | None = None) -> RefereeVerdict:
        """The verdict at this `precision`. B must be faster, or with a `limit` not slower than that."""
        losses = study.losses(self.comparison.a, self.comparison.b)
        differences = _differences(self, losses)
        speed = _Speed(self, _ratio(self, precision), _run_ratio(self))
        training = _training_outcome(differences, losses, speed)
        outcome, reason = training or _speed_outcome(speed, precision, limit)
        return RefereeVerdict(
            outcome=outcome,
            exit_code=130 if self.is_stopped else _EXIT_CODES[outcome],
            reason=reason,
            differences=differences,
            losses=losses,
            observed=dict(self.behaviours),
            run=speed.run,
            is_whole=self.is_whole,
        )


def _differences(match: MatchResult, losses: Check) -> list[Difference]:
    result = match.comparison
    allowed = match.allowed
    observed = list(differences(*match.behaviours.values())) if len(match.behaviours) == 2 else []
    if match.is_whole:
        before, now = (side.samples for side in match.behaviours.values())
        if not math.isclose(now, before, rel_tol=1 - SAME):
            observed.append(Difference("samples", f"it trains on {now:,} samples in all, not {before:,}"))
    explaining = _EXPLAIN_LOSSES & {difference.name for difference in observed}
    if allowed & explaining:
        allowed = {*allowed, "losses"}
    workers = {run.recipe.get("workers") for run in (result.a, result.b)}
    draws_differently = len(workers) > 1 and "data" in result.b.facts
    if explaining or draws_differently:  # either moves the weights differently, too
        observed = [difference for difference in observed if difference.name != "moved"]
    if not losses.ok and (result.a.losses or result.b.losses):
        observed.append(Difference("losses", losses.evidence))
    return [msgspec.structs.replace(each, allowed=each.name in allowed) for each in observed]


def judge_speed(ratio: Ratio, run: float | None, clear: float, half_width: float) -> Outcome:
    """Judges the ratio of steps, and that of the run if it has other large parts; the first case decides.

    A side that is `clear` times as fast needs few rounds. A larger `half_width` of the ratio is undecided.
    """
    if ratio.is_slower or ratio.high < 1 / clear:
        return Outcome.SLOWER
    if run is not None and run > LIMIT.run_faster:
        return Outcome.FASTER
    has_faster_steps = ratio.is_faster or ratio.low > clear
    if has_faster_steps and (run is None or run >= 1):
        return Outcome.FASTER
    if ratio.verdict == "undecided" or ratio.half_width > half_width:
        return Outcome.UNDECIDED
    return Outcome.NOT_FASTER


class _Speed(NamedTuple):
    """The measured speed of the steps and of the run, with its sentences."""

    match: MatchResult
    ratio: Ratio
    run: float | None

    @property
    def in_words(self) -> str:
        return str(_SENTENCES.speed(self))

    @property
    def has_other_run(self) -> bool:
        """Whether the run differs from its steps by more than noise, or loses their gain."""
        if self.run is None or self.ratio.low <= self.run <= self.ratio.high:
            return False
        is_far = not 1 / LIMIT.run_faster < self.run / self.ratio.ratio < LIMIT.run_faster
        loses_gain = self.ratio.low > 1 > self.run
        return is_far or loses_gain

    @property
    def remedy(self) -> str:
        return str(_SENTENCES.remedy(self, fmean(self.match.comparison.pairing.rounds.disturbed or [0.0])))


def _training_outcome(differences: list[Difference], losses: Check, speed: _Speed) -> Judgement | None:
    """The outcome if it does not depend on the speed."""
    undeclared = [difference for difference in differences if not difference.allowed]
    if cheats := [difference for difference in undeclared if difference.name not in OUTSIDE]:
        return Outcome.TRAINS_DIFFERENTLY, "; ".join(f"{cheat.name}: {cheat.evidence}" for cheat in cheats)
    if len(speed.match.behaviours) < 2:
        return Outcome.UNDECIDED, f"the steps were not looked at: {speed.match.failure or 'it ended before'}"
    result = speed.match.comparison
    if not (result.a.losses or result.b.losses):
        return Outcome.UNDECIDED, losses.evidence
    if undeclared:
        return Outcome.DOES_LESS, str(_SENTENCES.less(undeclared, speed))
    return None


def _speed_outcome(speed: _Speed, precision: float, limit: float | None) -> Judgement:
    result = speed.match.comparison
    if limit is None:
        clear = LIMIT.overwhelming if result.rounds >= LIMIT.few_rounds else math.inf
        half_width = LIMIT.wide * max(precision, result.pairing.known_spread.sd)
        outcome = judge_speed(speed.ratio, speed.run, clear, half_width)
        unclear = "is too wide to decide"
    else:
        outcome = _BY_GATE[result.gate(limit, fewest=1 if speed.match.is_whole else MIN_ROUNDS)]
        unclear = "neither passes nor fails the gate"
    if outcome == Outcome.UNDECIDED:
        return outcome, f"{speed.in_words}. That interval {unclear}: {speed.remedy}"
    return outcome, speed.in_words


def _ratio(match: MatchResult, precision: float) -> Ratio:
    """How many times as fast the steps are; a ratio of whole runs, which are one round, is judged here."""
    ratio = match.comparison.ratio
    if not match.is_whole:
        return ratio
    return judged(math.log(ratio.ratio), math.log(ratio.high / ratio.ratio), MIN_ROUNDS, precision)


def _run_ratio(match: MatchResult) -> float | None:
    """How many times as fast the run is, if much of it is not plain steps and was seen more than once."""
    sides = [*match.behaviours.values()]
    if match.is_whole or len(sides) < 2 or min(side.marked for side in sides) < LIMIT.often:
        return None
    times = _step_times(sides, [match.comparison.a, match.comparison.b])
    shares = [1 - seconds.get(STEPS, 0.0) / max(1e-9, sum(seconds.values())) for seconds in times]
    if max(shares) < LIMIT.large:
        return None
    a, b = (sum(seconds.values()) for seconds in times)
    samples_a, samples_b = (fmean(side.trained) or fmean(side.loaded) or 1.0 for side in sides)
    return (a / samples_a) / max(1e-12, b / samples_b)
