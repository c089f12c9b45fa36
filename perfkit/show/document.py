"""The content model: text, tables and figures in sections, whatever page they end up on.

`show.terminal` and `show.html` render it. All text is plain text: a renderer removes control characters and
escapes what its page would take for markup.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar

from perfkit.errors import one_of
from perfkit.show.style import Figure


class Cell(NamedTuple):
    """A number of a table, perhaps with an interval, and the function that writes it; a `str` is text."""

    value: Any  # None is a missing number
    format: Callable[[Any], str] = str
    absent: str = "n/a"  # the text in place of a missing number

    def __str__(self) -> str:
        return self.absent if self.value is None else self.format(self.value)


class Col(NamedTuple):
    """A column of a table of things."""

    head: str
    get: str | Callable[[Any], Any]
    """An attribute, perhaps of an attribute, or thing → value; a `Cell` or a `str` is taken as it is."""
    format: Callable[[Any], str] = str

    def cell(self, thing: Any) -> Cell | str:
        value = attrgetter(self.get)(thing) if isinstance(self.get, str) else self.get(thing)
        return value if isinstance(value, Cell | str) else Cell(value, self.format)


class Table(NamedTuple):
    """Rows of cells; the first cell of a row names it. Where there is little room, the last columns go."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    title: str = ""
    note: str = ""  # what a reader must know about the table; without rows, why there are none

    @property
    def numeric(self) -> list[bool]:
        """For each column, whether it holds numbers and no text: such a column is set flush right."""
        found = []
        for at, column in enumerate(zip(*self.rows, strict=True)):
            kinds = {type(cell) for cell in column if cell != ""}
            found.append(at > 0 and kinds == {Cell})
        return found


def tabulate(
    columns: Sequence[Col], things: Sequence[Any], title: str = "", note: str = "", none: str = "none"
) -> Table:
    """A table with a row for each thing; the first column names it. `none`: the note if there are no rows."""
    rows = [[column.cell(thing) for column in columns] for thing in things]
    return Table([column.head for column in columns], rows, title, note if rows else none)


class Notice(NamedTuple):
    """What a reader must not miss."""

    text: str


class Bullets(NamedTuple):
    """A list."""

    items: Sequence[str]


class Code(NamedTuple):
    """Preformatted text; a `diff` has its added and removed lines marked."""

    text: str
    language: str = ""


class Markdown(NamedTuple):
    """Text of perfkit's own in Markdown; a terminal leaves it out."""

    text: str


class Section(NamedTuple):
    """A heading and what is below it; a string is a paragraph.

    A folded section holds details: a page shows them on a click, a terminal leaves them out.
    """

    title: str
    contents: "Sequence[Content]"
    folded: bool = False


Content: TypeAlias = str | Notice | Bullets | Code | Markdown | Table | Figure | Section
Part = TypeVar("Part", Table, Figure)


def find(contents: Iterable[Content], kind: type[Part], name: str = "") -> Part:
    """The first table or figure whose name begins like this, upper and lower case alike."""
    found = [part for part in _walk(contents) if isinstance(part, kind)]
    parts: dict[str, Part] = {getattr(part, "name", part.title): part for part in found}
    for called, part in parts.items():
        if called.lower().startswith(name.lower()):
            return part
    raise one_of(name, list(parts), kind.__name__.lower())


def _walk(contents: Iterable[Content]) -> Iterator[Content]:
    for content in contents:
        yield content
        if isinstance(content, Section):
            yield from _walk(content.contents)
