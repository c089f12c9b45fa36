"""How every figure looks: palette, theme, and the way to SVG and PNG.

A figure is painted and saved under `theme`: text, lines and ticks have the theme's ink and sizes by
themselves, and a dollar sign in a name starts no formula.
"""

import io
import math
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

from perfkit.show.sentences import clean, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito 2008: distinct with any colour vision. Each use has a hatch or a label too.
BLUE, SKY, GREEN, ORANGE = "#0072b2", "#56b4e9", "#009e73", "#e69f00"
VERMILLION, PURPLE, YELLOW, GREY = "#d55e00", "#cc79a7", "#f0e442", "#999999"

_INK, _PAPER = {False: "#212223", True: "#dedfe1"}, {False: "#ffffff", True: "#16181c"}
"""By whether the page is dark. The inks occur nowhere else, so that SVG can follow its page's colour."""

_WIDTH = 9.6
_SIZE = 10.0
"""Points of ordinary text."""

_lock = threading.RLock()
"""matplotlib's settings belong to the process; figures may be drawn in several threads."""


@contextmanager
def theme(dark: bool = False) -> Iterator[None]:
    """The look of every figure that is painted and saved inside."""
    import matplotlib

    ink = _INK[dark]
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color",
             "legend.labelcolor", "patch.edgecolor", "lines.color", "lines.markeredgecolor")  # fmt: skip
    small = ("axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize")
    look: dict[Any, Any] = dict.fromkeys(inked, ink) | dict.fromkeys(small, 0.9 * _SIZE) | {
        "font.size": _SIZE, "axes.titlesize": _SIZE, "figure.labelsize": 0.9 * _SIZE,
        "axes.titlelocation": "left",
        "figure.titlesize": 1.2 * _SIZE, "figure.titleweight": "bold", "figure.facecolor": _PAPER[dark],
        "axes.facecolor": "none", "axes.spines.top": False, "axes.spines.right": False,
        "axes.axisbelow": True, "grid.alpha": 0.15, "grid.linewidth": 0.6, "legend.frameon": False,
        "patch.force_edgecolor": True, "patch.linewidth": 0.7, "text.parse_math": False,
        "svg.fonttype": "none", "svg.hashsalt": "perfkit",
    }  # fmt: skip
    with _lock, matplotlib.rc_context(look):
        yield


def empty(title: str, height: float) -> "Figure":
    """An empty matplotlib figure with its title; call it inside `theme`.

    matplotlib's object API: pyplot's global state is not safe in a notebook's threads.
    """
    from matplotlib.figure import Figure

    figure = Figure((_WIDTH, height))
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.06)
    figure.suptitle(wrapped(title, characters(0.73), 2), x=0.01, ha="left")
    return figure


def ink() -> str:
    """The theme's colour of text and lines, for the few artists that do not take it by themselves."""
    import matplotlib

    return str(matplotlib.rcParams["text.color"])


def characters(share: float) -> int:
    """About how many characters fit in a share of a figure's width."""
    return max(4, int(_WIDTH * share * 72 / (0.58 * _SIZE)))


def rows_height(rows: int) -> float:
    """Inches for a row of two lines for each thing, title and axis."""
    return 1.25 + 0.43 * rows


def say(ax: "Axes", text: str) -> None:
    """Words in place of a picture."""
    ax.set_axis_off()
    words = wrapped(text, characters(0.8), 4)
    ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", va="center")


def legend_below(ax: "Axes", columns: int) -> None:
    """What the marks mean, below the axes."""
    if figure := ax.get_figure(root=True):
        figure.legend(ncols=columns, loc="outside lower center")


def split_outliers(values: Iterable[float]) -> tuple[list[float], list[float]]:
    """Values that an axis should reach, and those far above most: named in a note, not drawn to.

    Far above is more than 3 times the quartiles' distance above the upper one (Tukey 1977, "far out"), and
    half as much again as the median.
    """
    import numpy as np

    finite = np.array([value for value in values if math.isfinite(value)])
    if not finite.size:
        return [], []
    low, middle, high = np.percentile(finite, (25, 50, 75))
    fence = max(high + 3 * (high - low), middle + 0.5 * abs(middle))
    return finite[finite <= fence].tolist(), finite[finite > fence].tolist()


def outliers_note(values: Iterable[float], what: str, text: Callable[[float], str]) -> str:
    """`2 steps above 120 ms, up to 1.10 s`; empty where an axis reaches all values.

    Args:
        values: that are drawn.
        what: the name of one value, such as "step".
        text: a value with its unit.
    """
    kept, outside = split_outliers(values)
    if not outside:
        return ""
    count = f"{len(outside)} {what}{'s' * (len(outside) > 1)}"
    return f"{count} above {text(max(kept))}, up to {text(max(outside))}"


def to_svg(figure: "Figure", alt: str) -> str:
    """Inline SVG: transparent, with real text, in the ink of its page, with ids that occur nowhere else."""
    prefix, buffer = f"pk{uuid.uuid4().hex[:10]}", io.StringIO()
    figure.savefig(
        buffer, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
    )
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    # The style element of an inline SVG would act on the whole page; its one rule is inherited as well.
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    svg = svg.replace(_INK[False], f"var(--jp-content-font-color1, {_INK[False]})")
    label = escape(clean(alt), quote=True)
    css = "max-width:100%;height:auto;stroke-linejoin:round;stroke-linecap:butt"
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}" style="{css}"', 1)


def to_png(figure: "Figure", dpi: int = 120) -> bytes:
    """A PNG file of the figure on its paper."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()
