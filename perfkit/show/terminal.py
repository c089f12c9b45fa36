"""Sections in a terminal. Where it is narrow a table has fewer columns, and no word is broken for room."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from perfkit import machine
from perfkit.results.run import Run
from perfkit.show import tables
from perfkit.show.document import Bullets, Code, Content, Section, Table
from perfkit.show.sentences import clean

_PIPE_WIDTH = 120
"""Characters where the output is a pipe or a file, which have no width."""
_GAP = 2
_LONG_WORD = 20
"""Longer words (kernel names, paths) are broken where they must be."""


def show(contents: Iterable[Content], to_stderr: bool = False) -> None:
    """Prints sections, tables and text; figures and folded details are for pages."""
    console = Console(stderr=to_stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPE_WIDTH
    _print(contents, console)


def text(contents: Iterable[Content], width: int = _PIPE_WIDTH) -> str:
    """The same as plain text."""
    console = Console(width=width, highlight=False, color_system=None)
    with console.capture() as captured:
        _print(contents, console)
    return captured.get()


def _print(contents: Iterable[Content], console: Console) -> None:
    for content in contents:
        match content:
            case str():
                console.print(Text(clean(content)), soft_wrap=True)
            case Bullets():
                for item in content.items:
                    console.print(Text(f"  {clean(item)}"), soft_wrap=True)
            case Code():
                lines = (
                    clean(line) if not line.isprintable() else line for line in content.text.splitlines()
                )
                console.print(Text("\n".join(lines)), soft_wrap=True)
            case Table():
                _print_table(content, console)
            case Section() if not content.folded:
                if content.title:
                    console.print(Text(f"\n{clean(content.title)}", style="bold"))
                _print(content.contents, console)


def _print_table(table: Table, console: Console) -> None:
    if not table.rows:
        reason = ": ".join(filter(None, (table.title, table.note or "nothing")))
        return console.print(Text(clean(reason)), soft_wrap=True)
    columns = [_Column(name, [row[at] for row in table.rows]) for at, name in enumerate(table.columns)]
    chosen = _that_fit(table, columns, console.width)
    left_out = [name for at, name in enumerate(table.columns) if at not in chosen]
    notes = [table.note, f"Too narrow for: {', '.join(left_out)}." if left_out else ""]
    grid = Grid(
        title=clean(table.title) or None, title_justify="left", title_style="italic",
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0),
    )  # fmt: skip
    numeric, widths = table.numeric, _widths([columns[at] for at in chosen], console.width)
    for at, width in zip(chosen, widths, strict=True):
        name = Text(clean(table.columns[at]))
        grid.add_column(name, justify="right" if numeric[at] else "left", width=width, overflow="fold")
    for row in table.rows:
        grid.add_row(*(Text(clean(row[at])) for at in chosen))
    console.print(grid)
    for note in filter(None, notes):
        console.print(Text(note, style="italic"))
    return None


class _Column:
    """How wide a column would be, and how wide it must be so that no word is broken."""

    def __init__(self, name: str, cells: Sequence[str]) -> None:
        texts = [clean(text) for text in (name, *cells)]
        words = [cell_len(word) for text in texts for word in text.split()]
        self.least = min(max(words, default=1), _LONG_WORD)
        self.full = max(1, *(cell_len(text) for text in texts[1:]), self.least)


def _that_fit(table: Table, columns: Sequence[_Column], width: int) -> list[int]:
    """The columns that have room: all, or the narrow choice, without its last ones if need be."""
    every = list(range(len(columns)))
    for chosen in (every, [list(table.columns).index(name) for name in table.narrow] or every):
        if _least(columns, chosen) <= width:
            return chosen
    while len(chosen) > 2 and _least(columns, chosen) > width:
        chosen = chosen[:-1]
    return chosen


def _least(columns: Sequence[_Column], chosen: Sequence[int]) -> int:
    return sum(columns[at].least for at in chosen) + _GAP * (len(chosen) - 1)


def _widths(columns: Sequence[_Column], width: int) -> list[int]:
    """Each column's least width, and its share of the room that is left."""
    wanted = sum(column.full - column.least for column in columns)
    room = max(0, width - _least(columns, range(len(columns))))
    share = min(1.0, room / wanted) if wanted else 0.0
    return [column.least + int(share * (column.full - column.least)) for column in columns]


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
    console.print(machine.describe(first.machine), markup=False)
    console.print(
        f"{first.workload} {first.options} · preset {first.preset} · {first.device} · seed {first.seed}",
        markup=False,
    )
    shown = Grid(caption="≈ no measurable difference · ? too few rounds", caption_justify="left")
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
