"""The result of watching a script, for people: one sentence, the run, the lines, what to try."""

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import jinja2

from perfkit.additions.advice.finding import UNITS, Finding, advice_table
from perfkit.additions.inside import looks
from perfkit.additions.scripts.advice import ordered
from perfkit.additions.scripts.messages import BETWEEN, CHECKPOINTS, EPOCHS, EVALUATION, START, STEPS, limits
from perfkit.recipe import shown
from perfkit.results.stats import CLEAN
from perfkit.show import units
from perfkit.show.document import Bullets, Content, Section, Table
from perfkit.show.units import clean

LIMIT = limits("watching")
# Parts of a run by the part of their lines; other lines are of its steps.
_OF_RUN = {"start": EPOCHS, "checkpoint": CHECKPOINTS, EVALUATION: EVALUATION, BETWEEN: BETWEEN}


def sentences(package: str, name: str, **filters: Any) -> Any:
    """The macros of a template in a package, as functions that return sentences."""
    environment = jinja2.Environment(loader=jinja2.PackageLoader(package, "."))
    environment.filters |= UNITS | filters
    return environment.get_template(name, globals={"clean": CLEAN}).module


SENTENCES = sentences(__package__, "watched.jinja", clean=clean, shown=shown, median=median)


def first_sentence(result: Any) -> str:
    """The largest avoidable cost, which is the first row of *What to try*, and its greatest gain."""
    is_steady = result.trend is None or result.trend.kind == "steady"
    # A switch does not explain why steps change with time.
    first = next((idea for idea in _to_try(result) if is_steady or idea in result.findings), None)
    enough_s = 10 * math.ceil(LIMIT.costs * result.seen.step_s / (1 - LIMIT.observing) / 10)  # for a look
    return str(SENTENCES.first(result, first if first and first.is_worth_a_sentence else None, enough_s))


def _to_try(result: Any) -> list[Finding]:
    """The rows of *What to try*: all but switches of unknown gain, and those that do not help."""
    ideas = ordered([*result.findings, *result.suggestions])
    rows = [idea for idea in ideas if idea.measured or idea.share or not idea.settings]
    return [idea for idea in rows if idea.may_help]


def sections(result: Any) -> list[Content]:
    """All contents of the report."""
    contents: list[Content] = [first_sentence(result), Section("Where the run goes", list(_run(result)))]
    if result.evidence.lines:
        contents.append(Section("Where in the script", [_lines(result)]))
    text = SENTENCES.switches(ordered([*result.findings, *result.suggestions]), result.suggestions)
    notes = filter(None, str(text).splitlines())
    ideas = _to_try(result)
    bound = "about" if result.is_disturbed else "up to about"
    first = advice_table(ideas, bound) if ideas else str(SENTENCES.nothing(result))
    contents.append(Section("What to try", [first, *notes]))
    syncs = [looks.sync_table(result.syncs)] if result.syncs else []
    contents.append(Section("Details", [clean(result.command), _steps(result), *syncs]))
    return contents + warned(result.warnings, result.printed)


def warned(warnings: Sequence[str], printed: Sequence[str]) -> list[Content]:
    """Sections for the warnings of perfkit and of the script, if there are any."""
    titles = {"Take note": warnings, "What the script itself warned of": printed}
    return [Section(title, [Bullets(list(map(clean, texts)))]) for title, texts in titles.items() if texts]


def _run(result: Any) -> Iterator[Content]:
    run = result.run
    rows = _rows(SENTENCES.run(run))
    yield Table(("part of the run", "time", "of the run", ""), rows, note=str(SENTENCES.run_note(run)))
    yield str(SENTENCES.observed(result))


def _rows(text: Any) -> list[list[str]]:
    """The rows of a table: the lines of a text, with cells divided at |."""
    return [line.split("|") for line in str(text).splitlines() if line]


def _lines(result: Any) -> Table:
    evidence, run = result.evidence, result.run
    rows = list[list[str]]()
    for line in [*evidence.lines[: LIMIT.most_lines], *evidence.operators[: LIMIT.most_operators]]:
        if part := _OF_RUN.get(line.part):
            of_part = line.seconds / max(evidence.parts[line.part], 1e-9)
            time = f"{units.duration(of_part * run.parts.get(part, 0.0))} in all"
        else:
            part, of_part = STEPS, line.seconds / evidence.steps_s
            step_s = evidence.steps_s / evidence.steps if evidence.one_thread else result.seen.step_s
            time = f"{units.duration(of_part * step_s)} a step"
        share = units.percent(of_part * run.running(part))
        rows.append([line.where, line.part, share, time, clean(line.text, 60)])
    for line in evidence.loading.lines[:3] if evidence.loading else []:
        time = f"{units.duration(line.seconds / max(1, evidence.loading.batches))} a batch"
        rows.append([line.where, line.part, "in workers", time, clean(line.text, 60)])
    for line in run.start_lines[: LIMIT.most_of_start]:
        of_start = units.percent(line.seconds / max(run.parts.get(START, 0.0), line.seconds))
        time = f"{units.duration(line.seconds)} in all"
        rows.append([line.where, line.part, f"{of_start} of it", time, clean(line.text, 60)])
    note = SENTENCES.lines_note(evidence)
    return Table(("line", "part", "of the run", "time", "code"), rows, note=str(note))


def _steps(result: Any) -> Table:
    note = str(SENTENCES.steps_note(result))
    count = units.plural(len(result.seen.block.step_s), "timed step")
    return Table(("quantity", "value"), _rows(SENTENCES.steps(result)), count, note)
