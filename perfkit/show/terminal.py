"""Sections in a terminal: text and tables. Figures and folded details are only on pages."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from perfkit.show.document import Bullets, Code, Content, Notice, Section, Table
from perfkit.show.style import Figure
from perfkit.show.units import clean

_PIPE_WIDTH = 120  # characters in a line if the output is a pipe or a file
_BETWEEN = 2  # spaces between columns
_UNBROKEN = 24  # longer words (kernel names, paths) may be broken


def show(contents: Iterable[Content], to_stderr: bool = False) -> None:
    """Prints sections."""
    console = Console(stderr=to_stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPE_WIDTH
    with contextlib.suppress(SystemExit):  # rich raises it at a closed pipe, but the command has its own code
        _print(contents, console, figures=False)


def text(contents: Iterable[Content], width: int = _PIPE_WIDTH, figures: bool = False) -> str:
    """Sections as plain text. With `figures`, each figure is described in words."""
    # Without force_jupyter=False, rich displays the text in a kernel as well.
    console = Console(width=width, highlight=False, color_system=None, force_jupyter=False)
    with console.capture() as captured:
        _print(contents, console, figures)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def _print(contents: Iterable[Content], console: Console, figures: bool) -> None:
    for part in _parts(contents, console.width, figures):
        console.print(part, soft_wrap=isinstance(part, Text))


def _parts(contents: Iterable[Content], width: int, figures: bool) -> Iterator[RenderableType]:
    """The printable parts of contents. A `Text` is not wrapped."""
    for content in contents:
        match content:
            case str():
                yield _wrapped(content)
            case Figure() if figures:
                yield _wrapped(content.alt)
            case Notice():
                yield _wrapped(content.text, style="bold yellow")
            case Bullets():
                yield from (_wrapped(item, indent=2) for item in content.items)
            case Code():
                yield Text("\n".join(map(_printable, content.text.splitlines())))
            case Table():
                yield from _table(content, width)
            case Section(folded=False):
                if parts := list(_parts(content.contents, width, figures)):
                    yield Text(f"\n{clean(content.title)}", style="bold")
                    yield from parts


def _printable(line: str) -> str:
    """A line of code without control characters; spaces and tabs are kept."""
    return "".join(c if c.isprintable() or c == "\t" else " " for c in line)


def _wrapped(text: str, indent: int = 0, style: str = "") -> Padding:
    return Padding(Text(clean(text), style=style), (0, 0, 0, indent), expand=False)


def _table(table: Table, width: int) -> Iterator[RenderableType]:
    """The columns that fit. The last ones are left out if necessary, and a note names them."""
    if not table.rows:
        yield _wrapped(": ".join(filter(None, (table.title, table.note or "none"))))
        return
    heads = [clean(head) for head in table.columns]
    rows = [[clean(cell) for cell in row] for row in table.rows]
    columns = [_column(heads, rows, number, numeric) for number, numeric in enumerate(table.numeric)]
    widths = _fitting(columns, width)
    count = len(widths)
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for head, numeric, wide in zip(heads, table.numeric, widths, strict=False):
        grid.add_column(Text(head), overflow="fold", width=wide, justify="right" if numeric else "left")
    for row in rows:
        grid.add_row(*map(Text, row[:count]))
    if table.title:
        yield Text()
        yield _wrapped(table.title, style="italic")
    yield grid
    if table.note:
        yield _wrapped(table.note, style="dim")
    if heads[count:]:
        yield _wrapped(f"Too narrow for: {', '.join(heads[count:])}.", style="dim")


class _Column(NamedTuple):
    """The width of a column: the least that breaks no short word, and the most that it can use."""

    least: int
    most: int


def _column(heads: Sequence[str], rows: Sequence[Sequence[str]], number: int, numeric: bool) -> _Column:
    texts = [row[number] for row in rows]
    unbroken = texts if numeric or number == 0 else " ".join(texts).split()
    longest = max(map(cell_len, [*heads[number].split(), *unbroken]), default=1)
    if numeric:
        return _Column(longest, longest)
    return _Column(min(longest, _UNBROKEN), max(map(cell_len, [heads[number], *texts])))


def _fitting(columns: Sequence[_Column], width: int) -> list[int]:
    """The widths of the first columns: as many as fit, at least two; the widest ones are narrowed.

    rich by itself would cut off what does not fit, and break words without need.
    """
    space = width + _BETWEEN
    used = list(accumulate(column.least + _BETWEEN for column in columns))
    count = max(2, sum(end <= space for end in used))
    most = max(column.most for column in columns)
    widths = list[int]()
    for limit in range(max(1, most), 0, -1):
        widths = [max(column.least, min(column.most, limit)) for column in columns[:count]]
        if sum(widths) + _BETWEEN * len(widths) <= space:
            break
    return widths
