"""Sections in a terminal: text and tables, as figures and folded details are for pages."""

import os
from collections.abc import Iterable
from itertools import accumulate

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from perfkit.show.document import Bullets, Code, Content, Notice, Section, Table
from perfkit.show.units import clean

_PIPE_WIDTH = 120
"""Characters in a line where the output is a pipe or a file."""
_BETWEEN = 2
"""Blanks between columns."""
_UNBROKEN = 24
"""Longer words (kernel names, paths) are broken where they must be."""


def show(contents: Iterable[Content], to_stderr: bool = False) -> None:
    """Prints sections."""
    console = _Console(stderr=to_stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPE_WIDTH
    _print(contents, console)


def text(contents: Iterable[Content], width: int = _PIPE_WIDTH) -> str:
    """The same as plain text."""
    # Without force_jupyter=False, rich displays the text in a kernel as well.
    console = Console(width=width, highlight=False, color_system=None, record=True, force_jupyter=False)
    with console.capture() as captured:
        _print(contents, console)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


class _Console(Console):
    """A console that reports a broken pipe (`| head`) to its caller; rich would end the program."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _print(contents: Iterable[Content], console: Console) -> None:
    for content in filter(_is_shown, contents):
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
                code = "\n".join(line if line.isprintable() else clean(line) for line in lines)
                console.print(Text(code), soft_wrap=True)
            case Table():
                _print_table(content, console)
            case Section():
                if content.title:
                    console.print(Text(f"\n{clean(content.title)}", style="bold"))
                _print(content.contents, console)


def _is_shown(content: Content) -> bool:
    if isinstance(content, Section):
        return not content.folded and any(map(_is_shown, content.contents))
    return isinstance(content, str | Notice | Bullets | Code | Table)


def _print_text(text: str, console: Console, indent: int = 0, style: str = "") -> None:
    console.print(Padding(Text(clean(text), style=style), (0, 0, 0, indent), expand=False))


def _print_table(table: Table, console: Console) -> None:
    """Prints the columns that fit: the last ones give way, and a note names them."""
    if not table.rows:
        return _print_text(": ".join(filter(None, (table.title, table.note or "none"))), console)
    heads, least, most = [*map(clean, table.columns)], list[int](), list[int]()
    rows = [[*map(clean, row)] for row in table.rows]
    for at, (head, numeric, *texts) in enumerate(zip(heads, table.numeric, *rows, strict=True)):
        unbroken = texts if numeric or at == 0 else " ".join(texts).split()
        longest = max(map(cell_len, [*head.split(), *unbroken]), default=1)
        least.append(longest if numeric else min(longest, _UNBROKEN))
        most.append(longest if numeric else max(map(cell_len, [head, *texts])))
    space = console.width + _BETWEEN
    count = max(2, sum(used <= space for used in accumulate(width + _BETWEEN for width in least)))
    # rich would cut off what does not fit, and break words where it need not.
    for limit in range(max(most), 0, -1):
        widths = [max(few, min(many, limit)) for few, many in zip(least, most, strict=True)][:count]
        if sum(widths) + _BETWEEN * len(widths) <= space:
            break
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for head, numeric, width in zip(heads, table.numeric, widths, strict=False):
        grid.add_column(Text(head), overflow="fold", width=width, justify="right" if numeric else "left")
    for row in rows:
        grid.add_row(*map(Text, row[:count]))
    if table.title:
        console.print()
        _print_text(table.title, console, style="italic")
    console.print(grid)
    missing = f"Too narrow for: {', '.join(heads[count:])}." if heads[count:] else ""
    for note in filter(None, (table.note, missing)):
        _print_text(note, console, style="dim")
    return None
