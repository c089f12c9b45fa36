"""The content model: text, tables and figures in sections, whatever page they end up on.

`show.terminal` and `show.html` render it. All text is plain text: a renderer removes control characters and
escapes what its page would take for markup.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

from perfkit.errors import one_of
from perfkit.results.stats import Estimate, Ratio
from perfkit.show import style
from perfkit.show.units import wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

Tone: TypeAlias = Literal["", "ok", "warning", "problem"]


class Cell(NamedTuple):
    """A value of a table and the function that writes it. A plain `str` in a table is text."""

    value: Any
    """None is a missing number."""
    format: Callable[[Any], str] = str
    absent: str = "n/a"
    """The text in place of a missing number."""
    tone: Tone = ""
    """The colour where a page has colours; the text alone must say the same."""

    @property
    def is_number(self) -> bool:
        """Whether the value is a number, perhaps with an interval, or a missing one."""
        return isinstance(self.value, int | float | Estimate | Ratio | None)

    def __str__(self) -> str:
        return self.absent if self.value is None else self.format(self.value)


class Col(NamedTuple):
    """A column of a table of things."""

    head: str
    get: str | Callable[[Any], Any]
    """An attribute's name, or thing → value; a value that is a `Cell` or a `str` is taken as it is."""
    format: Callable[[Any], str] = str

    def cell(self, thing: Any) -> Cell | str:
        """The cell of one thing."""
        value = getattr(thing, self.get) if isinstance(self.get, str) else self.get(thing)
        return value if isinstance(value, Cell | str) else Cell(value, self.format)


class Table(NamedTuple):
    """Rows of cells; the first cell of a row names it. Where there is little room, the last columns go."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    title: str = ""
    note: str = ""
    """What a reader must know beside the table; without rows, why there are none."""

    @property
    def name(self) -> str:
        """What code calls it by."""
        return self.title

    @property
    def numeric(self) -> list[bool]:
        """For each column, whether it holds numbers and no text: such a column is set flush right."""
        columns = [[row[at] for row in self.rows if row[at] != ""] for at in range(len(self.columns))]
        numbers = [[isinstance(cell, Cell) and cell.is_number for cell in cells] for cells in columns]
        return [at > 0 and bool(flags) and all(flags) for at, flags in enumerate(numbers)]


def tabulate(
    columns: Sequence[Col],
    things: Sequence[Any],
    title: str = "",
    note: str = "",
    none: str = "none",
    most: int | None = None,
) -> Table:
    """A table with a row for each thing.

    Args:
        columns: the first one names the thing.
        things: any objects.
        title: above the table.
        note: what a reader must know beside the table.
        none: why there are no rows, where there are none.
        most: how many rows to show; the note says how many there are.
    """
    rows = [[column.cell(thing) for column in columns] for thing in things[:most]]
    if len(rows) < len(things):
        note = f"The first {most} of {len(things)}. {note}".strip()
    return Table([column.head for column in columns], rows, title, note if rows else none)


@dataclass(frozen=True)
class Figure:
    """A picture that is drawn when a page needs it."""

    name: str
    """What code calls it by."""
    title: str
    alt: str
    """The same in words, with the numbers."""
    paint: "Callable[[Drawing], object]" = field(repr=False)
    """Draws it on an empty matplotlib figure, under `style.theme`."""
    height: float = 4.2
    """Inches."""
    nothing: str = ""
    """Why there is nothing to draw; empty where there is something."""

    def draw(self) -> "Drawing":
        """The matplotlib figure, in the look of the `style.theme` around the call."""
        drawing = style.empty(self.title, 1.2 if self.nothing else self.height)
        if self.nothing:
            drawing.text(0.5, 0.4, wrapped(self.nothing, 90, 4), ha="center", va="center")
        else:
            self.paint(drawing)
        return drawing

    def svg(self) -> str:
        """Inline SVG in the ink of its page, so that it suits light and dark themes."""
        with style.theme():
            return style.to_svg(self.draw(), self.alt)

    def png(self, dark: bool = False) -> bytes:
        """A PNG file on its own paper."""
        buffer = io.BytesIO()
        with style.theme(dark):
            self.draw().savefig(buffer, dpi=120)
        return buffer.getvalue()


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


class Interactive(NamedTuple):
    """A picture with a script of its own, for pages and notebooks; a terminal leaves it out."""

    title: str
    """What it shows, for those who do not see it."""
    markup: str
    """HTML, escaped by whoever made it."""
    script: str
    """JavaScript that draws it; nothing else on a page may run or load anything."""
    height: int
    """Pixels of its frame in a notebook."""


class Section(NamedTuple):
    """A heading and what stands below it; a string is a paragraph.

    A folded section holds details: a page shows them on a click, a terminal leaves them out.
    """

    title: str
    contents: "Sequence[Content]"
    folded: bool = False


Content: TypeAlias = str | Notice | Bullets | Code | Markdown | Table | Figure | Interactive | Section
Part = TypeVar("Part", Table, Figure)


def find(contents: Iterable[Content], kind: type[Part], name: str = "") -> Part:
    """The first table or figure whose name begins like this, upper and lower case alike.

    Raises:
        InvalidValue: no such table or figure.
    """
    parts = [part for part in _walk(contents) if isinstance(part, kind)]
    for part in parts:
        if part.name.lower().startswith(name.lower()):
            return part
    raise one_of(name, [part.name for part in parts], kind.__name__.lower())


def _walk(contents: Iterable[Content]) -> Iterator[Content]:
    for content in contents:
        yield content
        if isinstance(content, Section):
            yield from _walk(content.contents)
