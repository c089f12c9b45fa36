"""How every figure looks: colours, hatches, type, and its way to SVG and PNG."""

from __future__ import annotations

import io
import math
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from perfkit.show.sentences import clean, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito 2008: distinct with any colour vision. Each use has a hatch or a label too.
BLUE, SKY, GREEN, ORANGE, VERMILLION, PURPLE, YELLOW, GREY = (
    "#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#f0e442", "#999999",
)  # fmt: skip
WAIT_HATCH, GAIN_HATCH, LOSS_HATCH, SPARE_HATCH, AGAIN_HATCH = "///", "//", "xx", "\\\\", ".."
SIMULATED, SIMULATED_HATCH = PURPLE, "--"
"""Of every value that no device has shown."""

_INK_LIGHT, _INK_DARK = "#212223", "#dedfe1"
"""Used for nothing else, so that they can be found in an SVG and replaced by the colour of the page."""
_PAPER_LIGHT, _PAPER_DARK = "#ffffff", "#16181c"

_WIDTH = 9.6
_TYPE, _LARGE_TYPE = 10.0, 15.0
"""Points; in a browser a point is 1.33 pixels."""
_LARGE_SCALE = 1.25
"""A figure for a projector is this much wider and higher: its type grows more than its room."""

_rc_lock = threading.Lock()
"""matplotlib's settings are of the whole process; figures may be written in several threads."""


def ink(dark: bool = False) -> str:
    """The colour of text and lines."""
    return _INK_DARK if dark else _INK_LIGHT


def rows_height(runs: Sequence[object]) -> float:
    """Inches for a row of two lines for each stage, title and axis."""
    return 1.25 + 0.43 * len(runs)


def new_figure(height: float, dark: bool = False, large: bool = False) -> Figure:
    """An empty figure, `height` inches high at ordinary type; large type has more room.

    Object API: pyplot's global state is not safe in a notebook's threads.
    """
    from matplotlib.figure import Figure

    scale = _LARGE_SCALE if large else 1.0
    figure = Figure((_WIDTH * scale, height * scale), facecolor=_PAPER_DARK if dark else _PAPER_LIGHT)
    figure.set_layout_engine("constrained", w_pad=0.08, h_pad=0.06)
    # The draw functions get only an Axes: they read the size of type from its figure.
    figure.set_gid(f"type-{_LARGE_TYPE if large else _TYPE}")
    return figure


def type_size(place: Axes | Figure) -> float:
    """Points of ordinary text in a figure, or on axes of it."""
    figure = place.get_figure(root=True)
    gid = (figure.get_gid() if figure else "") or ""
    return float(gid.removeprefix("type-")) if gid.startswith("type-") else _TYPE


def characters(ax: Axes, share: float) -> int:
    """About how many characters fit in a share of the figure's width."""
    figure = ax.get_figure(root=True)
    width = figure.get_figwidth() if figure else _WIDTH
    return max(4, int(width * share * 72 / (0.58 * type_size(ax))))


def title(figure: Figure, text: str, colour: str) -> None:
    """The figure's heading, at its left, on one or two lines."""
    size = 1.2 * type_size(figure)
    text = mark(wrapped(text, int(figure.get_figwidth() * 72 / (0.66 * size)), 2))
    figure.suptitle(text, x=0.01, ha="left", color=colour, fontsize=size, weight="bold")


def mark(text: str) -> str:
    """Text for matplotlib in which a dollar sign does not start a formula."""
    return text.replace("$", r"\$")


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
        what: they are, one of them.
        text: a value with its unit.
    """
    kept, outside = split_outliers(values)
    if not outside:
        return ""
    count = f"{len(outside)} {what}{'s' * (len(outside) > 1)}"
    return f"{count} above {text(max(kept))}, up to {text(max(outside))}"


def say(ax: Axes, text: str, colour: str) -> None:
    """Words in place of a picture."""
    ax.set_axis_off()
    ax.text(
        0.5, 0.5, mark(wrapped(text, characters(ax, 0.8), 4)), transform=ax.transAxes, ha="center",
        va="center", color=colour, fontsize=type_size(ax),
    )  # fmt: skip


def plain_axes(ax: Axes, colour: str) -> None:
    """Ink for everything that matplotlib draws by itself, and no box."""
    ax.set_facecolor("none")
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(colour)
    ax.tick_params(colors=colour, labelsize=0.9 * type_size(ax))
    ax.set_axisbelow(True)


def axis_labels(ax: Axes, colour: str, across: str, up: str = "") -> None:
    """What the two axes show."""
    ax.set_xlabel(across, color=colour, fontsize=type_size(ax))
    ax.set_ylabel(up, color=colour, fontsize=type_size(ax))


def legend_below(ax: Axes, colour: str, columns: int) -> None:
    """What the marks mean, below the axes."""
    if figure := ax.get_figure(root=True):
        size = 0.9 * type_size(ax)
        figure.legend(
            frameon=False, labelcolor=colour, fontsize=size, ncols=columns, loc="outside lower center"
        )


def to_svg(figure: Figure) -> str:
    """Inline SVG: transparent, with real text, in the ink of the page's theme, with unique ids.

    The figure's label becomes its description for screen readers.
    """
    import matplotlib

    own, buffer = f"pk{uuid.uuid4().hex[:10]}", io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with _rc_lock, matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": own}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    # The style element of an inline SVG would act on the whole page; its one rule is inherited as well.
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{own}-', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{own}-", svg)
    for colour in (_INK_LIGHT, _INK_DARK):
        fallback = "#222" if colour == _INK_LIGHT else colour
        svg = svg.replace(colour, f"var(--jp-content-font-color1, {fallback})")
    label = escape(clean(figure.get_label() or "figure"), quote=True)
    style = "max-width:100%;height:auto;stroke-linejoin:round;stroke-linecap:butt"
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}" style="{style}"', 1)


def to_png(figure: Figure, dpi: int = 120) -> bytes:
    """The figure on its paper."""
    buffer = io.BytesIO()
    with _rc_lock:
        figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()
