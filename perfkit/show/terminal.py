"""Sections in a terminal. A narrow one gets tables with fewer columns; words are not broken."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from perfkit.show.document import Bullets, Code, Content, Figure, Notice, Section, Table, Timeline
from perfkit.show.sentences import clean

_PIPE_WIDTH = 120
"""Characters in a line where the output is a pipe or a file."""
_GAP = 2
_COLOURS = {"ok": "green", "✓": "green", "note": "yellow", "problem": "red", "✗": "red", "NOT as set": "red",
            "NOT the same": "red"}  # fmt: skip
"""Of cells that say nothing else; the word is there too for those who do not see the colour."""
_LONG_WORD = 28
"""Longer words (kernel names, paths) are broken where they must be."""


def show(contents: Iterable[Content], to_stderr: bool = False) -> None:
    """Prints sections, tables and text; figures and folded details are for pages."""
    console = _Console(stderr=to_stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPE_WIDTH
    _print(contents, console)


class _Console(Console):
    """A console that reports a broken pipe (`| head`) to its caller; rich would end the program."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def text(contents: Iterable[Content], width: int = _PIPE_WIDTH) -> str:
    """The same as plain text."""
    # Without force_jupyter=False, rich displays the text in a kernel as well.
    console = Console(width=width, highlight=False, color_system=None, record=True, force_jupyter=False)
    with console.capture() as captured:
        _print(contents, console)
    return captured.get()


def _print(contents: Iterable[Content], console: Console) -> None:
    for content in contents:
        match content:
            case str():
                _print_text(content, console)
            case Notice():
                _print_text(content.text, console, style="bold yellow")
            case Bullets():
                for item in content.items:
                    _print_text(item, console, 2)
            case Code():
                lines = content.text.splitlines()
                text = "\n".join(line if line.isprintable() else clean(line) for line in lines)
                console.print(Text(text), soft_wrap=True)
            case Table():
                _print_table(content, console)
            case Section() if _is_shown(content):
                if content.title:
                    console.print(Text(f"\n{clean(content.title)}", style="bold"))
                _print(content.contents, console)


def _is_shown(content: Content) -> bool:
    if isinstance(content, Section):
        return not content.folded and any(map(_is_shown, content.contents))
    return not isinstance(content, Figure | Timeline)


def _print_text(text: str, console: Console, indent: int = 0, style: str = "") -> None:
    """Wraps at words; where nobody reads it on a screen, a sentence stays on one line."""
    line = Text(clean(text), style=style)
    if console.is_terminal or console.record:
        console.print(Padding(line, (0, 0, 0, indent), expand=False))
    else:
        console.print(Text(" " * indent).append(line), soft_wrap=True)


def _print_table(table: Table, console: Console) -> None:
    if not table.rows:
        return _print_text(": ".join(filter(None, (table.title, table.note or "none"))), console)
    columns = [
        _Column(name, [row[at] for row in table.rows], at == 0 or table.numeric[at])
        for at, name in enumerate(table.columns)
    ]
    chosen = _that_fit(table, columns, console.width)
    left_out = [name for at, name in enumerate(table.columns) if at not in chosen]
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    numeric, widths = table.numeric, _widths([columns[at] for at in chosen], console.width)
    for at, width in zip(chosen, widths, strict=True):
        name = Text(clean(table.columns[at]))
        grid.add_column(name, justify="right" if numeric[at] else "left", width=width, overflow="fold")
    for row in table.rows:
        grid.add_row(*(Text(clean(row[at]), style=_COLOURS.get(row[at], "")) for at in chosen))
    if table.title:
        console.print()
        _print_text(table.title, console, style="italic")
    console.print(grid)
    if table.note:
        _print_text(table.note, console, style="dim")
    if left_out:
        _print_text(f"Too narrow for: {', '.join(left_out)}.", console, style="dim")
    return None


class _Column:
    """The width a column would have, and the least width at which no word is broken."""

    def __init__(self, name: str, cells: Sequence[str], first: bool) -> None:
        self.first = first
        texts = [clean(text) for text in (name, *cells)]
        words = [cell_len(word) for text in texts for word in text.split()]
        self.least = min(max(words, default=1), _LONG_WORD)
        self.full = max([cell_len(text) for text in texts[1:]] + [self.least])
        # With this much, a text has about three lines, and a number and its unit stay together.
        self.legible = max(self.least, min(self.full, 12) if first else min(self.full // 3, _LONG_WORD))
        self.titled = max(self.full, cell_len(texts[0]))


def _that_fit(table: Table, columns: Sequence[_Column], width: int) -> list[int]:
    """The columns that have room: all, or the narrow choice, without its last ones if need be."""
    gaps = _GAP * (len(columns) - 1)
    chosen = list(range(len(columns)))
    if table.narrow and sum(column.legible for column in columns) + gaps > width:
        chosen = [list(table.columns).index(name) for name in table.narrow]
    while len(chosen) > 2 and sum(columns[at].least + _GAP for at in chosen) - _GAP > width:
        chosen.pop()
    return chosen


def _widths(columns: Sequence[_Column], width: int) -> list[int]:
    """Each column's least width plus its share of the remaining room: names and numbers before text."""
    gaps = _GAP * (len(columns) - 1)
    if sum(column.titled for column in columns) + gaps <= width:
        return [column.titled for column in columns]
    widths = [column.least for column in columns]
    for first in (True, False):
        room = max(0, width - sum(widths) - gaps)
        wanted = sum(column.full - column.least for column in columns if column.first == first)
        share = min(1.0, room / wanted) if wanted else 0.0
        for at, column in enumerate(columns):
            if column.first == first:
                widths[at] += int(share * (column.full - column.least))
    return widths
