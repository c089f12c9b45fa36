"""`pk.my_train()`: the learner's file against itself as it was before."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from perfkit.additions.my_train import steps
from perfkit.additions.my_train.steps import HERE, NAME, Version
from perfkit.additions.referee.match import Terms, matched
from perfkit.additions.referee.verdict import Outcome, RefereeVerdict
from perfkit.additions.scripts.watched import Launch
from perfkit.additions.shared import kept
from perfkit.errors import InvalidValue
from perfkit.ladder.catalogue import Budget
from perfkit.notebook.shown import Shown, with_line
from perfkit.recipe import Value
from perfkit.results import Comparison
from perfkit.show import figures, sentences
from perfkit.show.document import Code, Content, Notice, Section
from perfkit.studies.compare import Candidate
from perfkit.studies.sources import Progress
from perfkit.workloads.files import photo_folder

_HOW = "Open it (a double click in the file browser), change a line, save it, and run this cell again."
_UNCHANGED = f"Your turn: {NAME} hasn't changed since the last comparison. {_HOW}"
_NO_COPIES = "Not measured: on a CPU no batch is copied, so this edit changes nothing. It is kept."

Judged = tuple[Comparison, RefereeVerdict]


def my_train(
    restore: str | None = None,
    allow: Sequence[str] = (),
    keep: bool = False,
    whole: bool = False,
    budget_s: float | None = None,
    **switches: Value,
) -> Shown[list[Version]]:
    """Compares `my_train.py` with itself as it was before: faster, and does it still train the same?

    A faster version is kept: the next one is compared with it. The file is written if there is none.

    Args:
        restore: a chapter, such as "02": writes the file as it is after it, and starts the climb from there.
        allow: differences that are meant, such as `samples` and `updates` for another batch size.
        keep: whether this version is kept even if it is not faster.
        whole: compare with the first version, not with the one before, and keep nothing.
        budget_s: seconds for measuring, a minute if None.
        switches: what is set outside the file from now on, such as `wait_policy="passive"`.
    """
    if keep and whole:
        raise InvalidValue("whole=True keeps nothing, so keep=True would do nothing", "Leave out one")
    compares = {"allow": allow, "keep": keep, "whole": whole, "budget_s": budget_s}
    if restore is not None and (given := [name for name, value in compares.items() if value]):
        what = f"restore starts a climb and compares nothing, so {' and '.join(given)} would do nothing"
        raise InvalidValue(what, f'Call my_train(restore="{restore}") first, then my_train with the others')
    outside = steps.outside(restore or "00", switches)
    notes = [f"`{name}` isn't set: it is for CPUs." for name in switches if name not in outside]
    versions = steps.load()
    if restore is not None or not HERE.exists() or not versions:
        return _started(restore, outside, notes, dropped=versions)
    before = versions[0] if whole else versions[-1]
    now = Version(kept.program(HERE), {**versions[-1].switches, **outside})
    if now.text == before.text and now.switches == before.switches:
        return Shown(versions, [*notes, _UNCHANGED, steps.chart(versions)])
    now = structs.replace(now, what=steps.named(before, now))
    above: list[Content] = [*notes, Code(steps.diff(before.text, now.text), "diff")]
    if not whole and not steps.can_act(before, now):
        return Shown(steps.save([*versions, now]), [*above, _NO_COPIES])
    judged = with_line(lambda progress: _measured(before, now, allow, budget_s, progress))
    if whole:  # all edits at once, which says nothing of the last one: nothing is kept
        return _shown(versions, above, judged, steps.chart(versions, judged[0].ratio))
    return _judged(versions, now, judged, keep, above)


def _started(
    restore: str | None, outside: dict[str, Value], notes: list[str], dropped: list[Version]
) -> Shown[list[Version]]:
    """Starts a climb in place of the `dropped` one, with the file there is, or one as after a chapter."""
    others = {version.place for version in steps.load(None)} - {"", str(HERE.resolve())}
    said = [*notes]
    if restore is not None or not HERE.exists():
        said.append(_written(HERE, steps.after(restore or "00")))
    if len(dropped) > 1:
        names = "; ".join(version.what for version in dropped[1:])
        said.append(f"The climb starts again, without what was kept: {names}.")
    elif others:
        said.append(f"A new climb starts. Those of other files are kept: {', '.join(sorted(others))}.")
    text = kept.program(HERE)
    changed = f"the file after {restore}" if restore else "your first version"
    what = "the plain loop" if text == steps.after("00") else changed
    return Shown(steps.save([Version(text, outside, what)]), [*said, Code(text, "python"), _HOW])


def _written(file: Path, text: str) -> str:
    """Writes the file. A file with a different text is kept under another name."""
    said = f"Wrote {file.absolute()}."
    if file.exists() and file.read_text(encoding="utf-8-sig", errors="replace") != text:
        old = file.with_name(f"old_{NAME}")
        number = 1
        while old.exists():
            number += 1
            old = file.with_name(f"old_{number}_{NAME}")
        old.write_bytes(file.read_bytes())
        said += f" Its previous text is in {old.name}."
    file.write_text(text, encoding="utf-8")
    return said


def _measured(
    before: Version, now: Version, allow: Sequence[str], budget_s: float | None, progress: Progress
) -> Judged:
    photo_folder(steps.PHOTOS)  # a measured script may not write there
    old, new = (Launch(NAME, replaced=((HERE.resolve(), one.text.encode()),)) for one in (before, now))
    title = now.what if now.text == before.text else "the edited file"
    sides = Candidate("before", before.switches, old), Candidate(title, now.switches, new)
    match = matched(*sides, Terms(allowed=allow))
    rule = match.plan.rule
    if budget_s:
        rule = replace(rule, budget=Budget(budget_s))
    took_s = rule.budget.stage_s if rule.budget else 0.0
    longer = f"measure longer, with pk.my_train(budget_s={2 * max(60, took_s):.0f})"
    found = match._replace(plan=replace(match.plan, rule=rule), longer=longer).compare(progress)
    return found.comparison, found.verdict(rule.precision)


def _shown(
    versions: list[Version], above: Sequence[Content], judged: Judged, *after: Content
) -> Shown[list[Version]]:
    """What was measured of an edit, the verdict, and what comes after it."""
    result, verdict = judged
    runs = [result.a, result.b]
    decided = f"Verdict: {verdict.outcome}: {verdict.reason}."
    details = Section("Details", verdict.sections(result)[:-1], folded=True)
    notices = map(Notice, sentences.notices(runs))
    return Shown(versions, [*notices, *above, figures.headline(runs), decided, *after, details])


def _judged(
    versions: list[Version], now: Version, judged: Judged, keep: bool, above: Sequence[Content]
) -> Shown[list[Version]]:
    """Keeps an edit that is faster or that the learner keeps; otherwise says what to do."""
    result, verdict = judged
    outcome = verdict.outcome
    if outcome == Outcome.TRAINS_DIFFERENTLY or not (keep or outcome == Outcome.FASTER):
        return _shown(versions, above, judged, _not_kept(versions[-1], now, verdict), steps.chart(versions))
    if outcome != Outcome.FASTER:
        now = structs.replace(now, what=f"{now.what}, kept by you ({outcome})")
    first, *later = versions  # the rate of the first one is known once it is measured
    if first.rate is None and result.a.samples_per_s:
        first = structs.replace(first, rate=result.a.samples_per_s.value)
    versions = steps.save([first, *later, structs.replace(now, gain=result.ratio)])
    return _shown(versions, above, judged, steps.chart(versions))


def _not_kept(before: Version, now: Version, verdict: RefereeVerdict) -> str:
    if verdict.outcome == Outcome.TRAINS_DIFFERENTLY:  # which `keep` does not cover
        allow = ", ".join(f'"{one.name}"' for one in verdict.differences)
        return f"It is not kept: undo it or, if that is meant, add `allow=[{allow}]` to the call."
    if now.text == before.text:
        return "It is not kept: what is set outside the file stays as it was."
    return "It is not kept: undo the line, build on it, or call `pk.my_train(keep=True)`."
