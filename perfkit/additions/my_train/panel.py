"""`pk.my_train()`: the learner's file against itself as it was before."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from perfkit.additions.my_train import steps
from perfkit.additions.my_train.steps import HERE, NAME, Version
from perfkit.additions.referee.match import ScriptSide, Terms, matched
from perfkit.additions.referee.verdict import Outcome, RefereeVerdict
from perfkit.additions.scripts.watched import Launch
from perfkit.ladder.catalogue import Budget
from perfkit.notebook.shown import Shown, with_line
from perfkit.recipe import Value
from perfkit.results import Comparison
from perfkit.show import figures, sentences
from perfkit.show.document import Code, Content, Notice, Section
from perfkit.studies.sources import Progress
from perfkit.workloads.files import photo_folder

_HOW = "Open it (a double click in the file browser), change a line, save it, and run this cell again."
_NO_COPIES = "Verdict: n/a: a CPU copies no batches, so the edit changes nothing. It is kept, unmeasured."


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
        whole: compare with the first version, not with the one before.
        budget_s: seconds for measuring, a minute if None.
        switches: what is set outside the file from now on, such as `wait_policy="passive"`.
    """
    outside = steps.outside(restore or "00", switches)
    said: list[Content] = [f"`{name}` isn't set: it is for CPUs." for name in switches if name not in outside]
    versions = steps.load()
    if restore is not None or not HERE.exists() or not versions:
        return _started(restore, outside, said, dropped=versions)
    text = HERE.read_text(encoding="utf-8-sig")
    before = versions[0] if whole else versions[-1]
    now = Version(text, {**versions[-1].switches, **outside})
    if (now.text, now.switches) == (before.text, before.switches):
        what = f"Your turn: {NAME} hasn't changed since the last comparison. {_HOW}"
        return Shown(versions, [*said, what, steps.chart(versions)])
    added = {name: value for name, value in now.switches.items() if before.switches.get(name) != value}
    now = structs.replace(now, what=steps.named(before.text, now.text, added))
    diff = Code(steps.diff(before.text, now.text), "diff")
    if not (added or whole or steps.can_act(before.text, now.text)):
        versions = [*versions, now]
        steps.save(versions)
        return Shown(versions, [*said, diff, _NO_COPIES])
    result, verdict = with_line(lambda progress: _measured(before, now, allow, budget_s, progress))
    said += map(Notice, sentences.notices([result.a, result.b]))
    said += figures.headline([result.a, result.b]), diff, f"Verdict: {verdict.outcome}: {verdict.reason}."
    if not whole:  # which says nothing of the last edit
        versions, remarks = _decided(versions, now, result, verdict, keep)
        said += remarks
    chart = steps.chart(versions, result.ratio if whole else None)
    return Shown(versions, [*said, chart, Section("Details", verdict.sections(result)[:-1], folded=True)])


def _started(
    restore: str | None, outside: dict[str, Value], said: list[Content], dropped: list[Version]
) -> Shown[list[Version]]:
    """Starts a climb in place of the `dropped` one, with the file there is, or one as after a chapter."""
    others = {version.place for version in steps.load(None)} - {"", str(HERE.resolve())}
    if restore is not None or not HERE.exists():
        said.append(_written(HERE, steps.after(restore or "00")))
    if len(dropped) > 1:
        names = "; ".join(version.what for version in dropped[1:])
        said.append(f"The climb starts again, without what was kept: {names}.")
    elif others:
        said.append(f"A new climb starts. Those of other files are kept: {', '.join(sorted(others))}.")
    text = HERE.read_text(encoding="utf-8-sig")
    changed = f"the file after {restore}" if restore else "your first version"
    what = "the plain loop" if text == steps.after("00") else changed
    versions = [Version(text, outside, what)]
    steps.save(versions)
    return Shown(versions, [*said, Code(text, "python"), _HOW])


def _written(file: Path, text: str) -> str:
    """Writes the file. A file with a different text is kept under another name."""
    said = f"Wrote {file.absolute()}."
    if file.exists() and file.read_text(encoding="utf-8-sig") != text:
        old, number = file.with_name(f"old_{NAME}"), 1
        while old.exists():
            number += 1
            old = file.with_name(f"old_{number}_{NAME}")
        old.write_bytes(file.read_bytes())
        said += f" Its previous text is in {old.name}."
    file.write_text(text, encoding="utf-8")
    return said


def _measured(
    before: Version, now: Version, allow: Sequence[str], budget_s: float | None, progress: Progress
) -> tuple[Comparison, RefereeVerdict]:
    """Measures two versions in turn."""
    photo_folder(steps.PHOTOS)  # a measured script may not write there
    old, new = (Launch(NAME, replaced=((HERE.resolve(), one.text.encode()),)) for one in (before, now))
    sides = ScriptSide(old, "before", before.switches), ScriptSide(new, "the edited file", now.switches)
    match = matched(*sides, Terms(allowed=allow))
    rule = match.plan.rule
    if budget_s:
        rule = replace(rule, budget=Budget(budget_s))
    took_s = rule.budget.stage_s if rule.budget else 0.0
    longer = f"measure longer, with pk.my_train(budget_s={2 * max(60, took_s):.0f})"
    found = match._replace(plan=replace(match.plan, rule=rule), longer=longer).compare(progress)
    return found.comparison, found.verdict(rule.precision)


def _decided(
    versions: list[Version], now: Version, result: Comparison, verdict: RefereeVerdict, keep: bool
) -> tuple[list[Version], list[str]]:
    """The versions, with the new one if it is kept, or else what to do. Those that are kept are stored."""
    outcome = verdict.outcome
    if outcome == Outcome.TRAINS_DIFFERENTLY:  # which `keep` does not cover
        allow = ", ".join(f'"{one.name}"' for one in verdict.differences)
        return versions, [f"It is not kept: undo it or, if that is meant, add `allow=[{allow}]` to the call."]
    if outcome != Outcome.FASTER and keep:
        now = structs.replace(now, what=f"{now.what}, kept by you ({outcome})")
    elif outcome != Outcome.FASTER:
        if now.text == versions[-1].text:
            return versions, ["It is not kept: what is set outside the file stays as it was."]
        return versions, ["It is not kept: undo the line, build on it, or call `pk.my_train(keep=True)`."]
    first, *later = versions  # the rate of the first one is known once it is measured
    if first.rate is None and result.a.samples_per_s:
        first = structs.replace(first, rate=result.a.samples_per_s.value)
    versions = [first, *later, structs.replace(now, gain=result.ratio)]
    steps.save(versions)
    return versions, []
