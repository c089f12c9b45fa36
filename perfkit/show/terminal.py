"""Results in the terminal: the table of a session, the proofs, the notes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from perfkit import machine as environment
from perfkit.results.run import Run
from perfkit.show import tables


def one_line(run: Run) -> str:
    """A run that has just ended."""
    cells = dict(zip(tables.COLUMNS, tables.row(run), strict=True))
    return f"  {run.title or run.stage:<18} " + (
        "  ".join(list(cells.values())[1:4]) if run.status == "ok" else f"{run.status}: {run.reason}"
    )


def print_session(runs: list[Run], to_stderr: bool = False) -> None:
    """Machine, table, proofs and notes of a session."""
    console = Console(stderr=to_stderr, highlight=False)
    first = runs[0]
    console.print(environment.describe_machine(first.machine), markup=False)
    console.print(
        f"{first.workload} {first.options} · preset {first.preset} · {first.device} · seed {first.seed}",
        markup=False,
    )
    shown = Table(caption="≈ no measurable difference · ? too few rounds", caption_justify="left")
    for at, column in enumerate(_SHOWN):
        shown.add_column(column, justify="left" if at == 0 else "right", overflow="fold", no_wrap=at == 0)
    for cells in tables.table(runs):
        named = dict(zip(tables.COLUMNS, cells, strict=True))
        shown.add_row(*(_short(named[column]) for column in _SHOWN))
    console.print(shown, markup=False)
    for line in proofs(runs):
        console.print(f"  {line}", markup=False, soft_wrap=True)
    for text, titles in notes(runs).items():
        where = "" if len(titles) == len(runs) else f"{', '.join(titles)}: "
        console.print(f"  {where}{text}", markup=False, soft_wrap=True)


def _short(cell: str) -> str:
    return cell.replace("no measurable difference", "≈").replace("too few rounds", "?")


def proofs(runs: list[Run]) -> Iterator[str]:
    """What proves that each stage's switches act, beside what it was before."""
    measured = [run for run in runs if run.status == "ok"]
    for before, run in itertools.pairwise(measured):
        for switch, value in run.recipe.items():
            if value != before.recipe[switch]:
                yield f"{run.title}: {run.evidence(switch)} (was: {before.evidence(switch)})"


_SHOWN = (
    "stage",
    "samples/s",
    "× previous",
    "× baseline",
    "waits for data",
    "pipeline efficiency",
    "peak memory",
)


def notes(runs: list[Run]) -> dict[str, list[str]]:
    """What there is to say beside the table, each once, with the stages it is about."""
    notes: dict[str, list[str]] = {}
    for run in runs:
        said = [f"{name}: {fact}" for name, fact in run.facts.items()]
        said += [f"warning: {warning}" for warning in run.warnings]
        said += [f"{run.status.replace('_', ' ')}: {run.reason}"] if run.reason else []
        for text in said:
            notes.setdefault(text, []).append(run.title or run.stage)
    return notes
