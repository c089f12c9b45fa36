"""Figures: palette, theme, rows with bars, and the way to SVG and PNG.

A figure is drawn and saved inside `theme`, which sets the colours and sizes of text, lines and ticks, and
keeps a dollar sign in a name from starting a formula.
"""

import io
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from perfkit import lookup
from perfkit.results.stats import Estimate, Ratio
from perfkit.show.units import clean, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# Okabe & Ito 2008: distinct with any colour vision. Each use also has a hatch or a label.
BLUE = "#0072b2"
SKY = "#56b4e9"
GREEN = "#009e73"
ORANGE = "#e69f00"
VERMILLION = "#d55e00"
PURPLE = "#cc79a7"
YELLOW = "#f0e442"
GREY = "#999999"

_PAPER = {False: "#ffffff", True: "#16181c"}
_INK = {False: "#212223", True: "#dedfe1"}
"""Colours of a light and a dark page. The inks occur nowhere else, so that SVG can follow its page's."""
_INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color",
          "patch.edgecolor")  # fmt: skip
_LOOK = lookup.toml("perfkit.show", "style")
WIDTH = 8.2
_lock = threading.RLock()
"""matplotlib's settings are global, but figures may be drawn in several threads."""


@contextmanager
def theme(dark: bool = False) -> Iterator[None]:
    """The look of every figure that is drawn and saved while it is active."""
    import matplotlib

    look: dict[Any, Any] = _LOOK | dict.fromkeys(_INKED, _INK[dark]) | {"figure.facecolor": _PAPER[dark]}
    with _lock, matplotlib.rc_context(look):
        yield


class Look(NamedTuple):
    """The meaning of a piece of a bar, with its colour and hatch."""

    label: str
    colour: str
    hatch: str = ""


LOADS = Look("loads", GREEN, "\\\\")
WAITS = Look("waits", ORANGE, "///")
AHEAD = Look("is ahead", GREY)
LAUNCHES = Look("launches", SKY)
COPIES = Look("copies", PURPLE)
COMPUTES = Look("computes", BLUE)
"""The parts of a step, in every picture of it: lanes, bars, timelines, and the pipeline's page."""


class Row(NamedTuple):
    """A line of a figure. Without a label it is a heading."""

    label: str
    pieces: Sequence[tuple[float, Look]] = ()  # the parts of its bar from 0 on, each with its width
    text: str = ""
    """The numbers, or why there are none: on the right, or in place of the bars if no row has one."""
    interval: Estimate | Ratio | None = None  # drawn on the bar
    climbs: bool = False  # whether the figure's line goes through the end of its bar


class Figure(NamedTuple):
    """A picture of rows with bars above an axis. It is drawn when a page needs it."""

    name: str  # for code that looks it up
    title: str
    rows: Sequence[Row]
    unit: str  # of the axis
    nothing: str = "Nothing of this was measured."
    """The text if no row has a bar, or the description in words of a picture that `drawn` draws."""
    drawn: "Callable[[], Drawing] | None" = None  # draws something other than rows

    @property
    def alt(self) -> str:
        clauses = [": ".join(filter(None, (row.label, row.text))) for row in self.rows if row.text]
        return clean(". ".join(filter(None, (self.title, "; ".join(clauses) or self.nothing))))

    def svg(self) -> str:
        """Inline SVG: transparent, with real text, the text colour of its page, and unique ids."""
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        with theme():
            self.draw().savefig(buffer, format="svg", transparent=True, metadata=nothing)
        svg = buffer.getvalue()
        svg = svg[svg.index("<svg") :]
        # The style element of an inline SVG would act on the whole page. Its only rule is set below instead.
        svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
        svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>pk{uuid.uuid4().hex[:10]}-", svg)
        ink = _INK[False]
        svg = svg.replace(ink, f"var(--jp-content-font-color1, var(--vscode-foreground, {ink}))")
        css = "display:block;max-width:100%;height:auto;stroke-linejoin:round;stroke-linecap:butt"
        return svg.replace("<svg", f'<svg role="img" aria-label="{escape(self.alt)}" style="{css}"', 1)

    def png(self, dark: bool = False) -> bytes:
        buffer = io.BytesIO()
        with theme(dark):
            self.draw().savefig(buffer, dpi=120)
        return buffer.getvalue()

    def draw(self) -> "Drawing":
        """The figure in the current `theme`, without pyplot, which is not thread-safe."""
        from matplotlib.figure import Figure as Drawing

        if self.drawn:
            drawing = self.drawn()
            drawing.suptitle(wrapped(self.title, 74, 2), x=0.01, ha="left")
            return drawing
        is_empty = not any(width for row in self.rows for width, _ in row.pieces)
        has_numbers = any(row.text and row.pieces for row in self.rows)
        height = 1.25 + 0.43 * len(self.rows) if has_numbers else 1.05 + 0.21 * len(self.rows)
        drawing = Drawing((WIDTH, 1.2 if is_empty else height))
        drawing.set_layout_engine("constrained", w_pad=0.08, h_pad=0.06)
        drawing.suptitle(wrapped(self.title, 74, 2), x=0.01, ha="left")
        if is_empty:
            drawing.text(0.5, 0.4, wrapped(self.nothing, 90, 4), ha="center", va="center")
        else:
            self._draw_rows(drawing.add_subplot(), has_numbers)
        return drawing

    def _draw_rows(self, ax: Any, has_numbers: bool) -> None:
        """Draws the rows and their axis, with numbers to the right of the bars, or words in place of them."""
        bars: dict[str, Any] = {}
        for y, row in enumerate(self.rows):
            words = row.text if has_numbers else wrapped(row.text, 86, 1)
            weight = "normal" if row.label else "bold"
            x = 1.01 if has_numbers else 0.01
            ax.text(x, y, words, transform=ax.get_yaxis_transform(), va="center", weight=weight)
            end = 0.0
            for width, look in row.pieces:
                if width > 0:
                    bars[look.label] = ax.barh(y, width, 0.62, left=end, color=look.colour, hatch=look.hatch)
                    end += width
            if row.interval:
                ends = [row.interval.low, row.interval.high]
                ax.plot(ends, [y, y], "|-", color=ax.xaxis.label.get_color(), linewidth=1.4, markersize=8)
        climb = [y for y, row in enumerate(self.rows) if row.climbs]
        if climb:
            ends = [self.rows[y].pieces[0][0] for y in climb]
            ax.plot(ends, climb, "o-", color=BLUE, linewidth=2, markersize=4, zorder=3)
        ax.set_yticks(range(len(self.rows)), [wrapped(row.label, 25, 2) for row in self.rows])
        ax.tick_params(axis="y", length=0)
        ax.set(xlabel=self.unit, ylim=(len(self.rows) - 0.45, -0.55))
        ax.set_xlim(left=0)
        ax.grid(axis="x")
        ax.locator_params(axis="x", nbins=6)
        ax.xaxis.set_major_formatter("{x:,g}")
        if bars:
            ax.legend([*bars.values()], [*bars], loc="lower left", bbox_to_anchor=(0, 1), ncols=len(bars))
