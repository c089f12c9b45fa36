"""The frame of most views: a row for each stage, its name at the left, its numbers at the right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from perfkit.results.run import Run
from perfkit.results.stats import Estimate
from perfkit.show import results, sentences, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Look: TypeAlias = "tuple[str, str, str]"
"""What a piece of a bar means, its colour and hatch. A hatch `|` is a line, `^` marks a disturbed row."""

BAR = 0.62
"""Height of a bar; rows are 1 apart."""
_MARK = 10
"""Points: the mark of a disturbed row."""


def frame(ax: Axes, ink: str, runs: Sequence[Run], numbers: Callable[[Run], str], unit: str) -> None:
    """Names, numbers and axis; where `numbers` is empty, the reason is in place of the stage's bar."""
    texts = [numbers(run) for run in runs]
    named(ax, ink, [sentences.name(run) for run in runs], texts, unit)
    for at, (run, shown) in enumerate(zip(runs, texts, strict=True)):
        if not shown:
            reason(ax, ink, at, sentences.outcome(run) or "n/a: this was not measured")


def named(ax: Axes, ink: str, names: Sequence[str], texts: Sequence[str], unit: str) -> None:
    """The frame alone: a row for each name, from the top, its text at the right, the axis below."""
    style.plain_axes(ax, ink)
    size, rows = style.type_size(ax), range(len(names))
    labels = [style.mark(sentences.wrapped(name, style.characters(ax, 0.2), 2)) for name in names]
    ax.set_yticks(rows, labels, fontsize=size, color=ink)
    ax.set_ylim(len(names) - 0.45, -0.55)
    ax.set_xlim(0, 1)
    scale(ax, ink, unit)
    right = ax.secondary_yaxis("right")
    right.set_yticks(rows, [style.mark(text) for text in texts], fontsize=0.9 * size, color=ink)
    right.tick_params(length=0)
    right.spines["right"].set_visible(False)


def scale(ax: Axes, ink: str, unit: str) -> None:
    """The axis below the rows."""
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(style.mark(unit), color=ink, fontsize=0.9 * style.type_size(ax))
    ax.grid(axis="x", color=ink, alpha=0.15, linewidth=0.6)
    ax.locator_params(axis="x", nbins=6)
    ax.xaxis.set_major_formatter("{x:,g}")


def reason(ax: Axes, ink: str, at: int, text: str) -> None:
    """Words in place of a row's bar."""
    ax.text(
        0.01, at, style.mark(sentences.wrapped(text, style.characters(ax, 0.42), 2)), color=ink,
        style="italic", transform=ax.get_yaxis_transform(), va="center", fontsize=0.9 * style.type_size(ax),
    )  # fmt: skip


def bar(ax: Axes, ink: str, at: int, start: float, width: float, colour: str, hatch: str = "") -> None:
    """A piece of a row's bar, outlined in ink so that it is seen on any paper."""
    ax.barh(at, width, BAR, left=start, color=colour, edgecolor=ink, hatch=hatch, linewidth=0.7)


def stack(ax: Axes, ink: str, at: int, pieces: Iterable[tuple[float, str, str]]) -> None:
    """A row's bar of pieces from 0 on, each its width, colour and hatch."""
    end = 0.0
    for width, colour, hatch in pieces:
        if width > 0:
            bar(ax, ink, at, end, width, colour, hatch)
            end += width


def whisker(ax: Axes, ink: str, at: float, estimate: Estimate, scale: float = 1.0) -> None:
    """The 95% interval about the value."""
    middle, low, high = (scale * value for value in (estimate.value, estimate.low, estimate.high))
    ends = [[max(0.0, middle - low)], [max(0.0, high - middle)]]
    ax.errorbar(middle, at, xerr=ends, fmt="none", ecolor=ink, elinewidth=1.4, capsize=4)


def disturbed(ax: Axes, ink: str, runs: Sequence[Run]) -> list[Look]:
    """A mark at the foot of each bar that rests on disturbed rounds; its entry for the legend, if any."""
    rows = [at for at, run in enumerate(runs) if results.disturbed(run) is not None]
    ax.plot(
        [0.012] * len(rows), rows, "^", color=style.YELLOW, markeredgecolor="black", markersize=_MARK,
        transform=ax.get_yaxis_transform(), zorder=5,
    )  # fmt: skip
    return [("disturbed by other programs", style.YELLOW, "^")] if rows else []


def legend(ax: Axes, ink: str, entries: Sequence[Look], columns: int = 0) -> None:
    """What the pieces mean, above the rows: all in one line, or `columns` to a line."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    lines = {
        "|": {"markersize": 10, "markeredgewidth": 2.5},
        "^": {"markersize": _MARK, "markeredgecolor": "black"},
    }
    keys = [
        Line2D([], [], color=colour, marker=hatch, linestyle="none", **lines[hatch])  # type: ignore[arg-type]
        if hatch in lines
        else Patch(facecolor=colour, edgecolor=ink, hatch=hatch)
        for _, colour, hatch in entries
    ]
    ax.legend(
        keys, [label for label, _, _ in entries], loc="lower left", bbox_to_anchor=(0, 1), frameon=False,
        ncols=columns or len(entries), labelcolor=ink, fontsize=0.9 * style.type_size(ax), borderaxespad=0.2,
        columnspacing=1.2, handlelength=1.6, handletextpad=0.5,
    )  # fmt: skip
