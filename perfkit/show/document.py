"""The one shape for what is shown: sections of text, tables and figures, whatever page they end up on.

`show.terminal` and `show.html` render it; a notebook shows the fragment that `show.html` makes. All text is
plain text: a renderer removes control characters and escapes what its page would take for markup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from perfkit.errors import one_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn

    from perfkit.trace import Lanes

_NUMBER = re.compile(r"[-+<>≈~]?[\d∞]\S*( [^\s(]+)?( \(.*\))?( \S+)?")
_ABSENT = ("", "n/a", "–", "—")


@dataclass(frozen=True)
class Table:
    """Rows of text cells; the first cell of a row names it.

    Without rows the note says why there are none; otherwise it is what a reader must know beside the table.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    note: str = ""
    narrow: Sequence[str] = ()
    """The columns to keep where there is little room, the least important last; all of them if empty."""

    @property
    def numeric(self) -> list[bool]:
        """For each column, whether all its cells are numbers (or absent): these are set flush right."""
        return [at > 0 and _is_numeric([row[at] for row in self.rows]) for at in range(len(self.columns))]

    def only(self, columns: Sequence[str]) -> Table:
        """The same table with these columns."""
        chosen = [list(self.columns).index(column) for column in columns]
        return Table(columns, [[row[at] for at in chosen] for row in self.rows], self.title, self.note)


def _is_numeric(cells: Sequence[str]) -> bool:
    values = [cell for cell in cells if cell not in _ABSENT]
    return all(map(_NUMBER.fullmatch, values)) and (bool(values) or "n/a" in cells)


@dataclass(frozen=True)
class Figure:
    """A picture that is drawn when a page needs it."""

    name: str
    """What code calls it by."""
    title: str
    alt: str
    """The same in words, with the numbers."""
    paint: Callable[[Axes, str], None] = field(repr=False)
    """Draws it on axes, its text and lines in the ink colour."""
    height: float = 4.2
    """Inches at ordinary type."""
    nothing: str = ""
    """Why there is nothing to draw; empty where there is something."""

    def draw(self, dark: bool = False, large: bool = False) -> Drawn:
        """The finished matplotlib figure for a light or dark page, with large type for a projector.

        Its label is the text for those who do not see it.
        """
        from perfkit.show import style

        figure = style.new_figure(1.2 if self.nothing else self.height, dark, large)
        ax, ink = figure.add_subplot(), style.ink(dark)
        if self.nothing:
            style.say(ax, self.nothing, ink)
        else:
            self.paint(ax, ink)
        style.title(figure, self.title, ink)
        figure.set_label(self.alt)
        return figure


@dataclass(frozen=True)
class Notice:
    """What a reader must not miss."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A list."""

    items: Sequence[str]


@dataclass(frozen=True)
class Code:
    """Preformatted text; a `diff` has its added and removed lines marked."""

    text: str
    language: str = ""


@dataclass(frozen=True)
class Timeline:
    """The lanes of a step, to zoom and pan in; only a page or a notebook can show them."""

    lanes: Lanes


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it; a string is a paragraph.

    A folded section holds details: a page shows them on a click, a terminal leaves them out.
    """

    title: str
    contents: Sequence[Content]
    folded: bool = False


Content: TypeAlias = "str | Notice | Bullets | Code | Table | Figure | Timeline | Section"
_Named = TypeVar("_Named", Table, Figure)


def walk(contents: Iterable[Content]) -> Iterator[Content]:
    """Everything in reading order, sections before what is in them."""
    for content in contents:
        yield content
        if isinstance(content, Section):
            yield from walk(content.contents)


def table(contents: Iterable[Content], title: str) -> Table:
    """A table by the beginning of its title, upper and lower case alike.

    Raises:
        InvalidValue: no such table.
    """
    return _first([(one.title, one) for one in walk(contents) if isinstance(one, Table)], title, "table")


def figure(contents: Iterable[Content], name: str) -> Figure:
    """A figure by its name; otherwise as `table`."""
    return _first([(one.name, one) for one in walk(contents) if isinstance(one, Figure)], name, "figure")


def _first(named: Sequence[tuple[str, _Named]], start: str, word: str) -> _Named:
    for name, one in named:
        if name.lower().startswith(start.lower()):
            return one
    raise one_of(start, [name for name, _ in named], word)
