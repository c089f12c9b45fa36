"""`pk.my_train()`: the learner's file against itself as it was before."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from perfkit.additions.my_train import steps
from perfkit.additions.my_train.steps import NAME, Version
from perfkit.additions.referee.match import ScriptSide, Terms, matched
from perfkit.additions.referee.verdict import Outcome
from perfkit.additions.scripts.watched import Launch
from perfkit.ladder.catalogue import Budget
from perfkit.notebook.shown import Shown, with_line
from perfkit.recipe import Value
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
    file, switches = Path(NAME), steps.outside(restore or "00", switches)
    versions, said = steps.load(), list[Content]()
    if restore is not None or not file.exists():
        said, versions = [_written(file, steps.after(restore or "00"))], []
    text = file.read_text(encoding="utf-8-sig")
    if not versions:
        versions = [Version(text, switches, f"as after {restore}" if restore else "the plain loop")]
        steps.save(versions)
        return Shown(versions, [*said, Code(text, "python"), _HOW])
    before = versions[0] if whole else versions[-1]
    now = Version(text, {**versions[-1].switches, **switches})
    if (now.text, now.switches) == (before.text, before.switches):
        what = f"Your turn: {NAME} hasn't changed since the last comparison. {_HOW}"
        return Shown(versions, [*said, what, steps.chart(versions)])
    is_inert = now.switches == before.switches and not steps.can_act(before.text, now.text)
    if is_inert and not whole:
        versions = [*versions, structs.replace(now, what=steps.named(before.text, now.text, {}))]
        steps.save(versions)
        return Shown(versions, [*said, Code(steps.diff(before.text, now.text), "diff"), _NO_COPIES])
    how = _How(allow, keep, whole, budget_s)
    kept, contents = with_line(lambda progress: _compared(versions, before, now, how, progress))
    return Shown(kept, [*said, *contents])


def _written(file: Path, text: str) -> str:
    """Writes the file; one with a different text keeps it under another name."""
    said = f"Wrote {file.absolute()}."
    if file.exists() and file.read_text(encoding="utf-8-sig") != text:
        old, number = file.with_name(f"old_{NAME}"), 1
        while old.exists():
            number += 1
            old = file.with_name(f"old_{number}_{NAME}")
        old.write_bytes(file.read_bytes())
        said += f" What was in it is in {old.name}."
    file.write_text(text, encoding="utf-8")
    return said


class _How(NamedTuple):
    """How two versions are compared: arguments as for `my_train`."""

    allow: Sequence[str]
    keep: bool
    whole: bool
    budget_s: float | None


def _compared(
    versions: list[Version], before: Version, now: Version, how: _How, progress: Progress
) -> tuple[list[Version], list[Content]]:
    """Measures two versions in turn; what was kept, and what is shown."""
    photo_folder(steps.PHOTOS)  # a measured script may not write there
    file = Path(NAME).resolve()
    old, new = (Launch(NAME, replaced=((file, one.text.encode()),)) for one in (before, now))
    sides = ScriptSide(old, "before", before.switches), ScriptSide(new, "the edited file", now.switches)
    match = matched(*sides, Terms(allowed=how.allow))
    rule = match.plan.rule
    if how.budget_s:
        rule = replace(rule, budget=Budget(how.budget_s))
    took_s = rule.budget.stage_s if rule.budget else 0.0
    longer = f"measure longer, with pk.my_train(budget_s={2 * max(60, took_s):.0f})"
    found = match._replace(plan=replace(match.plan, rule=rule), longer=longer).compare(progress)
    result = found.comparison
    verdict = found.verdict(rule.precision)
    added = {name: value for name, value in now.switches.items() if before.switches.get(name) != value}
    what = steps.named(before.text, now.text, added)
    contents: list[Content] = [
        *map(Notice, sentences.notices([result.a, result.b])),
        figures.headline([result.a, result.b]),
        Code(steps.diff(before.text, now.text), "diff"),
        f"Verdict: {verdict.outcome}: {verdict.reason}.",
    ]
    is_wanted = how.keep and verdict.outcome != Outcome.TRAINS_DIFFERENTLY
    if not how.whole and (verdict.outcome == Outcome.FASTER or is_wanted):
        first, *later = versions
        if first.rate is None and result.a.samples_per_s:
            first = structs.replace(first, rate=result.a.samples_per_s.value)
        versions = [first, *later, Version(now.text, now.switches, what, result.ratio)]
        steps.save(versions)
    elif not how.whole and now.text == before.text:
        contents.append("It is not kept: what is set outside the file stays as it was.")
    elif not how.whole:
        contents.append("It is not kept: undo the line, build on it, or call `pk.my_train(keep=True)`.")
    chart = steps.chart(versions, result.ratio if how.whole else None)
    contents += chart, Section("Details", verdict.sections(result)[:-1], folded=True)
    return versions, contents
