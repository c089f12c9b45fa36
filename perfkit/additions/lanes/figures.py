"""The picture: what workers, host, copies and kernels do in steady steps, before above after, on one axis."""

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from perfkit.additions.shared.intervals import merge
from perfkit.results.stats import Ratio
from perfkit.show import style
from perfkit.show.style import Figure, Look

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

ROWS = ("worker", "host", "copy", "kernels")
KINDS = {
    "load": style.LOADS, "wait": style.WAITS, "launch": style.LAUNCHES, "ahead": style.AHEAD,
    "copy": style.COPIES, "compute": style.COMPUTES,
    "own": Look("own code", style.YELLOW, ".."), "exchange": Look("exchanges", style.VERMILLION, "xx"),
}  # fmt: skip
"""What each kind of bar shows."""
_OFF = 0.05  # how much two steps may deviate from the interval of many, or from a ceiling
_CHARACTER = 0.0105  # the width of a character, as a part of the axis
_PIXEL = 0.002  # about one pixel, as a part of the axis: a narrower bar would be all edge
_NUMBERED = 2  # how many lanes of a row have room for numbers


class Bar(msgspec.Struct, frozen=True, array_like=True):
    """The start and end of some work for a batch, in ms from the start of the first step shown."""

    start_ms: float
    end_ms: float
    kind: str
    batch: int | None = None
    lane: int = 0  # the number of the worker, or of the stream
    words: str = ""  # written in it: what it waits for, such as `data` or `scaler`, or how long it takes

    def __post_init__(self) -> None:
        if self.kind not in KINDS:  # in the file of a picture, which may be of another version
            raise ValueError(f"there is no kind of bar '{self.kind}'")


class DrawnSide(msgspec.Struct, frozen=True, kw_only=True):
    """Some steady steps of one training: the bars of each row, in any order."""

    title: str
    step_ms: float
    rows: dict[str, list[Bar]]
    steps: int = 2
    samples: int = 1  # of a step
    middle_ms: float | None = None  # where the second step begins, if the two differ
    ceiling_ms: float | None = None  # the time of a step on a batch that is already on the device
    note: str = ""  # the origin of the steps; and why a row is missing

    @property
    def length_ms(self) -> float:
        """The length of all its steps."""
        return self.steps * self.step_ms

    @property
    def shown(self) -> list[str]:
        """The rows that have bars. Rows other than `ROWS` come last."""
        return [name for name in [*ROWS, *sorted(self.rows.keys() - ROWS)] if self.rows.get(name)]

    @property
    def computing(self) -> list[tuple[float, float]]:
        """The intervals in which kernels run in the steps."""
        bars = self.rows.get("kernels", [])
        times = np.array([[bar.start_ms, bar.end_ms] for bar in bars]).reshape(-1, 2)
        return merge(*times.clip(0.0, self.length_ms).T).pairs()

    @property
    def computing_ms(self) -> float:
        """The time of a step in which kernels run."""
        return sum(end - start for start, end in self.computing) / self.steps

    @property
    def drawn_ceiling_ms(self) -> float | None:
        """The ceiling; None if these steps take or compute less than it, so that one of them is wrong."""
        most_ms = min(self.step_ms, (1 + _OFF) * (self.computing_ms or self.step_ms))
        return self.ceiling_ms if self.ceiling_ms and self.ceiling_ms < most_ms else None

    @property
    def idle(self) -> list[tuple[float, float]]:
        """The intervals in which no kernel runs."""
        edges = [0.0, *(time for span in self.computing for time in span), self.length_ms]
        return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]


class Lanes(msgspec.Struct, frozen=True, omit_defaults=True):
    """The picture of one side or of two sides."""

    sides: list[DrawnSide]
    verdict: str = ""  # of the comparison that it belongs to; empty if its times are exact

    @property
    def closed(self) -> tuple[str, tuple[float, float]] | None:
        """What became shorter, as `idle 55 → 12 ms`, and where it is in the first side.

        Both are for the samples of the first side's step. Two steps cannot decide anything, so this is only
        said if a comparison found that the second side is faster.
        """
        if self.verdict not in ("", "faster", "predicted faster"):
            return None
        first, last = self.sides[0], self.sides[-1]
        scale = first.samples / last.samples
        computing = first.computing_ms, last.computing_ms * scale
        idle = first.step_ms - computing[0], last.step_ms * scale - computing[1]
        if idle[0] - idle[1] >= computing[0] - computing[1]:
            name, places, (before, after) = "idle", first.idle, idle
        else:
            name, places, (before, after) = "kernels", first.computing, computing
        samples = f" for {first.samples} samples" if last.samples != first.samples else ""
        if before <= after or not places or "kernels" not in first.shown:
            return None
        longest = max(places, key=lambda span: span[1] - span[0])
        return f"{name} {in_ms(before)} → {in_ms(after)} ms{samples}", longest

    def contradicts(self, ratio: Ratio | None) -> bool:
        """Whether these steps contradict the measured ratio."""
        if ratio is None or len(self.sides) < 2:
            return False
        before, after = (side.samples / side.step_ms for side in self.sides)
        return not ratio.low / (1 + _OFF) <= after / before <= ratio.high * (1 + _OFF)

    @property
    def alt(self) -> str:
        """The picture in words."""
        steps = [f"{side.title}: {in_ms(side.step_ms)} ms a step" for side in self.sides]
        return "; ".join([*steps, self.closed[0]] if self.closed else steps)

    def draw(self) -> "Drawing":
        """The matplotlib figure, in the look of `style.theme`."""
        from matplotlib.figure import Figure as Drawing

        closed = self.closed if len(self.sides) > 1 else None
        lines = sum(1 + len(side.shown) for side in self.sides) + (1 if closed else 0)
        drawing = Drawing((style.WIDTH, 1.1 + 0.28 * lines))
        drawing.set_layout_engine("constrained", w_pad=0.08, h_pad=0.06)
        ax = drawing.add_subplot()
        ticks = dict[float, str]()
        legend = dict[str, Any]()
        top = 0.0
        most = max(side.samples for side in self.sides)
        ax.set_xlim(0, max(side.length_ms * most / side.samples for side in self.sides))
        for side in self.sides:
            _draw(ax, side, top, most / side.samples, legend)
            ticks |= {top + number: name for number, name in enumerate(side.shown, 1)}
            top += 1 + len(side.shown)
            if closed and side is self.sides[0]:
                _arrow(ax, closed, 1 + side.shown.index("kernels"), top)
                top += 1
        ax.set_yticks([*ticks], [*ticks.values()])
        ax.tick_params(axis="y", length=0)
        bars = [bar for side in self.sides for row in side.rows.values() for bar in row]
        numbered = {bar.kind for bar in bars if bar.batch is not None}
        one = "bucket" if numbered == {"exchange"} else "batch"
        ax.set(xlabel=f"ms; a number for each {one}" if numbered else "ms", ylim=(top - 0.4, -0.6))
        ax.legend([*legend.values()], [*legend], loc="lower left", bbox_to_anchor=(0, 1), ncols=len(legend))
        return drawing

    def figure(self) -> Figure:
        """The picture as a figure for a page or a notebook."""
        return Figure("lanes", "", (), "ms", self.alt, drawn=self.draw)


def _draw(ax: Any, side: DrawnSide, top: float, times: float, legend: dict[str, Any]) -> None:
    """Draws a side below its title. Its steps are repeated up to the number of samples of the other side."""
    until = side.length_ms * times
    bottom = top + len(side.shown) + 0.5
    ink = ax.xaxis.label.get_color()
    mean = f" a step (these {side.steps})" if side.steps > 1 else ""  # a table has the median of all
    ax.text(0, top, f"{side.title}: {in_ms(side.step_ms)} ms{mean}", va="center", weight="bold")
    ax.text(ax.get_xlim()[1], top, side.note, va="center", ha="right", size=7)
    for number, name in enumerate(side.shown, 1):
        for repeat in range(math.ceil(times - 1e-9)):
            begin = repeat * side.length_ms
            length = min(side.length_ms, until - begin)  # only a part of the last one may be needed
            _row(ax, side.rows[name], top + number, (begin, length), legend)
    edges = [side.middle_ms or until / 2, until] if side.steps == 2 and times == 1 else [until]
    ax.vlines(edges, top + 0.5, bottom, ink, linewidth=0.8, alpha=0.6)
    if ceiling_ms := side.drawn_ceiling_ms:
        x = side.steps * ceiling_ms * times
        line = ax.vlines(x, top + 0.5, bottom, ink, linestyle="--", linewidth=1.4)
        legend.setdefault("ceiling: a cached batch", line)


def _row(ax: Any, row: list[Bar], at: float, place: tuple[float, float], legend: dict[str, Any]) -> None:
    """Draws the bars of a row from a start on, with the numbers of their batches if there is room."""
    begin, length = place
    lanes = sorted({bar.lane for bar in row})
    height = 0.8 / len(lanes)
    numbered = lanes[:: math.ceil(len(lanes) / _NUMBERED)]
    numbers = {"ha": "center", "va": "center", "size": 7, "color": "black"}
    box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.6}
    ink = ax.xaxis.label.get_color()
    alike = defaultdict[tuple[int, str, bool], list[tuple[float, float]]](list)
    for bar in row:
        start, end = max(0.0, bar.start_ms), min(length, bar.end_ms)
        if end <= start:
            continue
        width = (end - start) / ax.get_xlim()[1]
        alike[bar.lane, bar.kind, width > _PIXEL].append((begin + start, end - start))
        words = _inside(bar, width)
        if words and not begin and bar.lane in numbered:
            y = at - 0.4 + height * (lanes.index(bar.lane) + 0.5)
            ax.text((start + end) / 2, y, words, bbox=box, **numbers)
    for (lane, kind, is_wide), bars in alike.items():  # hundreds of bars, each drawn alone, take seconds
        look = KINDS[kind]
        edge = {"linewidth": 0.3} if is_wide else {"linewidth": 0.0, "snap": False}
        bottom = at - 0.4 + height * (lanes.index(lane) + 0.04)
        how = {"facecolor": look.colour, "edgecolor": ink, "hatch": look.hatch, **edge}
        drawn = ax.broken_barh(bars, (bottom, height * 0.92), **how)
        legend.setdefault(look.label, drawn)


def _inside(bar: Bar, width: float) -> str:
    """The text in a bar of this width: its words, or else the number of its batch."""
    number = "" if bar.batch is None else str(bar.batch)
    for words in (f"{number} {bar.words}".strip(), number):
        if width > _CHARACTER * (len(words) + 1):
            return words
    return ""


def _arrow(ax: Any, closed: tuple[str, tuple[float, float]], at: float, below: float) -> None:
    """Marks the gap of the first side that closed, in its kernels' row, with its words below the rows."""
    text, (start, end) = closed
    arrow = {"arrowstyle": "<->", "lw": 1.6, "color": style.VERMILLION, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", xy=(start, at), xytext=(end, at), arrowprops=arrow)
    most = ax.get_xlim()[1]
    half = _CHARACTER * (len(text) + 2) * most / 2  # it must not cover the names of the rows
    x = min(max((start + end) / 2, half), most - half)
    box = {"facecolor": "white", "edgecolor": style.VERMILLION, "linewidth": 0.8, "pad": 1.5}
    look = {"size": 8, "color": "#a04000", "weight": "bold", "bbox": box}
    ax.text(x, below, text, ha="center", va="center", **look)


def in_ms(value: float) -> str:
    """A time of a picture: `0.4`, `12`, `20.3`."""
    return f"{value:.3g}" if value >= 1 else f"{value:.1f}"
