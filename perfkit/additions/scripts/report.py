"""What watching a script has shown, as a person reads it: one sentence, the run, the lines, what to try."""

from collections.abc import Iterator
from typing import Any

from perfkit.additions.advice.finding import WORTH_A_SENTENCE, advice_table, ordered, warned
from perfkit.additions.inside import looks
from perfkit.additions.inside.trend import Trend
from perfkit.additions.scripts import run_account
from perfkit.additions.scripts.evidence import NOT_STEPS
from perfkit.show import units
from perfkit.show.document import Bullets, Content, Section, Table
from perfkit.show.units import clean

_BAR, _MOST_LINES = 30, 8
"""Characters of a whole bar; lines of a script that are listed."""


def first_sentence(seen: Any) -> str:
    """The largest avoidable thing, with its place and what it is worth at most."""
    if seen.findings and seen.findings[0].weight >= WORTH_A_SENTENCE:
        gain, bound = seen.findings[0].gain, "at most about" if seen.is_disturbed else "at most"
        worth = f" Without it, the run is {bound} {units.times(gain)} as fast." if gain else ""
        return str(seen.findings[0].in_words(worth))
    if seen.trend and seen.trend.kind != "steady":
        return f"{trend_in_words(seen.trend, seen.growing)}."
    if known := [idea for idea in seen.suggestions if idea.weight >= WORTH_A_SENTENCE and idea.may_help]:
        return f"{known[0].evidence}. Try {known[0].change} ({known[0].expected('up to')})."
    parts, total = sorted(seen.step.items(), key=lambda item: -item[1]), max(sum(seen.step.values()), 1e-9)
    shares = ", ".join(f"{seconds / total:.0%} {name}" for name, seconds in parts[:4] if seconds)
    return f"Nothing avoidable is seen: a step of {units.duration(seen.seen.step_s)} is {shares}."


def trend_in_words(trend: Trend, part: str = "") -> str:
    """What changes with the steps."""
    where = f", all of it in {part}" if part else ""
    first, last = units.duration(trend.first), units.duration(trend.last)
    if trend.kind == "jumps":
        return f"Steps take {last} from step {trend.at:,} on, and {first} before{where}"
    if trend.kind == "saw-tooth":
        return f"Steps get slower within each epoch, from {first} to {last}, and fall back at its end{where}"
    if trend.kind == "grows":
        low, high = units.duration(trend.low), units.duration(trend.high)
        return (
            f"Each step takes {units.duration(trend.per_step)} ({low}–{high}) more than the one before, "
            f"{first} at first and {last} at last{where}"
        )
    return f"The time of a step is steady ({first} at first, {last} at last)"


def sections(seen: Any) -> list[Content]:
    """All of it, for people."""
    contents: list[Content] = [first_sentence(seen), Section("Where the run goes", [*_run(seen)])]
    if seen.evidence.lines:
        contents.append(Section("Where in the script", [_lines(seen)]))
    contents.append(Section("What to try", [*_advice(seen)]))
    contents.append(Section("Details", [clean(seen.command), _steps(seen), *_details(seen)]))
    return contents + warned(seen.warnings, seen.printed)


def _run(seen: Any) -> Iterator[Content]:
    run = seen.run
    rows: list[list[str]] = []
    for name, seconds in run.parts.items():
        share = seconds / max(run.seconds, 1e-9)
        bar = "█" * max(1, round(_BAR * share))
        rows.append([_part_in_words(name, run), units.duration(seconds), units.percent(share), bar])
    rows.append(["all that was seen", units.duration(run.seconds), "100%", ""])
    yield Table(("part of the run", "time", "share", ""), rows)
    yield _seen(seen)


def _part_in_words(name: str, run: Any) -> str:
    if name == run_account.START and run.imports_s:
        return f"start (imports {units.duration(run.imports_s)}; then data, model, first batch)"
    counts = {run_account.EPOCHS: len(run.epochs), run_account.EVALUATION: run.evaluations}
    return f"{name} ({counts[name]})" if counts.get(name) else name


def _seen(seen: Any) -> str:
    until = "to its end" if seen.seen.ended else f"up to step {seen.run.last:,}"
    text = f"Seen: {seen.run.steps:,} steps, {until}, {units.duration(seen.run.seconds)} of this run."
    if seen.trend and seen.trend.kind != "steady":
        text += f" {trend_in_words(seen.trend, seen.growing)}."
    elif not seen.seen.ended:
        later = max(100, int(float(f"{2 * seen.run.last:.1g}")))  # one digit and noughts
        text += f" What changes later is not seen: --after {later}, or --whole."
    if seen.run.steps_share < 0.9:
        most = 1 / max(1 - seen.run.steps_share, 0.01)
        text += f" Without its start, steps are {seen.run.steps_share:.0%} of it: no switch gains more than "
        text += f"{units.times(most)}."
    return text


def _lines(seen: Any) -> Table:
    evidence, rows = seen.evidence, list[list[str]]()
    of_all = max(sum(evidence.parts.values()), 1e-9)
    steps = max(1, evidence.steps)
    found = list(evidence.lines)
    if evidence.loading:
        found += evidence.loading.lines[:3]
    for line in found[:_MOST_LINES]:
        is_workers = line not in evidence.lines
        share = "in workers" if is_workers else f"{line.seconds / of_all:.0%}"
        each = units.duration(line.seconds / (steps if not is_workers else max(1, evidence.loading.batches)))
        per = "" if line.part in NOT_STEPS else " a batch" if is_workers else " a step"
        rows.append([line.where, line.part, share, f"{each}{per}", clean(line.text, 60)])
    note = "Sampled briefly, outside the timed steps. A line includes everything it calls."
    return Table(("line", "part", "share", "time", "code"), rows, note=note)


def _advice(seen: Any) -> Iterator[Content]:
    found = ordered([*seen.findings, *seen.suggestions])
    tried = [each for each in found if not each.may_help]
    others = [each for each in found if each.settings and not (each.share or each.measured)]
    bound = "up to about" if seen.is_disturbed else "up to"
    yield advice_table([each for each in found if each not in tried and each not in others], bound)
    for each in tried:
        yield f"Tried for nothing: {each.change}, {each.expected(bound)}."
    if changes := "; ".join(each.change for each in others):
        yield f"Only a measurement can judge: {changes}."


def _steps(seen: Any) -> Table:
    block, script = seen.seen.block, seen.script
    trains = f"{', '.join(script.models)} ({script.parameters:,} parameters) on {script.device}"
    count = len(block.step_s)
    samples = round(block.samples / count)  # batches may differ, as in epochs of two
    split = [f"{name} {units.duration(seconds)}" for name, seconds in seen.step.items() if seconds]
    rows = [
        ["samples/s", units.number(block.samples_per_s)],
        ["step", f"{units.duration(seen.seen.step_s)} ({script.step_is}; samples: {samples})"],
        ["a mean step of all", ", ".join(split)],
        ["waiting for data", units.percent(seen.seen.waiting if script.loader else None)],
        ["peak memory of the steps", units.size(seen.peak.allocated)],
        ["profile", seen.trace or units.NOT_AVAILABLE],
        ["trains", trains.strip()],
    ]
    known = [row for row in rows if row[1] != units.NOT_AVAILABLE]
    title = f"{units.plural(count, 'plain training step')}, without a profiler"
    return Table(("what", "how much"), known, title)


def _details(seen: Any) -> Iterator[Content]:
    # Waiting for data is seen better in the steps above, which no profiler slows down.
    known = [each for each in seen.bottlenecks if each.bottleneck != "data-bound"]
    if texts := [clean(f"{each.bottleneck}, {each.message}") for each in known]:
        yield Section("What a profile shows", [Bullets(texts)])
    if seen.syncs:
        yield looks.sync_table(seen.syncs)
