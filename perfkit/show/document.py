"""The content model: text, tables and figures in sections, independent of the page that shows them.

`show.terminal` and `show.html` render it. All text is plain text: a renderer removes control characters and
escapes whatever its page would interpret as markup.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar

from perfkit.errors import one_of
from perfkit.show.style import Figure


class Cell(NamedTuple):
    """A number in a table, perhaps with an interval, and the function that formats it. A `str` is text."""

    value: Any  # None if the number is missing
    format: Callable[[Any], str] = str
    absent: str = "n/a"  # the text for a missing number

    def __str__(self) -> str:
        return self.absent if self.value is None else self.format(self.value)


class Col(NamedTuple):
    """A column of a table of things."""

    head: str
    get: str | Callable[[Any], Any]
    """An attribute (`a` or `a.b`), or a function of the thing. A `Cell` or a `str` is used unchanged."""
    format: Callable[[Any], str] = str

    def cell(self, thing: Any) -> Cell | str:
        value = attrgetter(self.get)(thing) if isinstance(self.get, str) else self.get(thing)
        return value if isinstance(value, Cell | str) else Cell(value, self.format)


class Table(NamedTuple):
    """Rows of cells; the first cell names its row. If there is little room, the last columns are left out."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    title: str = ""
    note: str = ""  # what a reader must know about the table; if it has no rows, the reason

    @property
    def numeric(self) -> list[bool]:
        """For each column, whether it holds only numbers; such a column is right-aligned."""
        numeric = []
        for number, column in enumerate(zip(*self.rows, strict=True)):
            kinds = {type(cell) for cell in column if cell != ""}
            numeric.append(number > 0 and kinds == {Cell})
        return numeric


def tabulate(
    columns: Sequence[Col], things: Sequence[Any], title: str = "", note: str = "", none: str = "none"
) -> Table:
    """A table with a row for each thing, which the first column names. `none` is the note without rows."""
    rows = [[column.cell(thing) for column in columns] for thing in things]
    return Table([column.head for column in columns], rows, title, note if rows else none)


class Notice(NamedTuple):
    """A text that the reader must not miss."""

    text: str


class Bullets(NamedTuple):
    """A list."""

    items: Sequence[str]


class Code(NamedTuple):
    """Preformatted text. The added and removed lines of a `diff` are marked."""

    text: str
    language: str = ""


class Markdown(NamedTuple):
    """Markdown text that perfkit itself wrote; a terminal leaves it out."""

    text: str


class Section(NamedTuple):
    """A heading and its contents; a string is a paragraph. Pages fold details, and terminals omit them."""

    title: str
    contents: "Sequence[Content]"
    folded: bool = False


Content: TypeAlias = str | Notice | Bullets | Code | Markdown | Table | Figure | Section
Part = TypeVar("Part", Table, Figure)


def find(contents: Iterable[Content], kind: type[Part], name: str = "") -> Part:
    """The first table or figure whose name begins with `name`, ignoring case."""
    parts = [part for part in _walk(contents) if isinstance(part, kind)]
    names = [getattr(part, "name", part.title) for part in parts]
    for part_name, part in zip(names, parts, strict=True):
        if part_name.lower().startswith(name.lower()):
            return part
    raise one_of(name, names, kind.__name__.lower())


def _walk(contents: Iterable[Content]) -> Iterator[Content]:
    for content in contents:
        yield content
        if isinstance(content, Section):
            yield from _walk(content.contents)
