"""The frame of most figures: a row for each thing, its name at the left, its numbers at the right."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from perfkit.results.run import Run
from perfkit.results.stats import Estimate
from perfkit.show import sentences, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Look(NamedTuple):
    """What a piece of a bar means, its colour and hatch; a hatch `|` is a line, `^` a disturbed row."""

    label: str
    colour: str
    hatch: str = ""


BAR = 0.62
"""Height of a bar; rows are 1 apart."""
_DISTURBED = Look("disturbed by other programs", style.YELLOW, "^")


def frame(ax: "Axes", runs: Sequence[Run], numbers: Callable[[Run], str], unit: str) -> None:
    """Names, numbers and axis; a run without numbers has the reason in place of its bar."""
    texts = [numbers(run) for run in runs]
    named(ax, [sentences.name(run) for run in runs], texts, unit)
    for at, (run, text) in enumerate(zip(runs, texts, strict=True)):
        if not text:
            reason(ax, at, sentences.outcome(run) or "n/a: this was not measured")


def named(ax: "Axes", names: Sequence[str], texts: Sequence[str], unit: str) -> None:
    """The frame alone: a row for each name, from the top, its text at the right, the axis below."""
    rows = range(len(names))
    ax.set_yticks(rows, [sentences.wrapped(name, style.characters(0.25), 2) for name in names])
    ax.tick_params(axis="y", length=0)
    ax.set(xlabel=unit, xlim=(0, 1), ylim=(len(names) - 0.45, -0.55))
    ax.grid(axis="x")
    ax.locator_params(axis="x", nbins=6)
    ax.xaxis.set_major_formatter("{x:,g}")
    right = ax.secondary_yaxis("right")
    right.set_yticks(rows, texts)
    right.tick_params(length=0)
    right.spines["right"].set_visible(False)


def reason(ax: "Axes", at: int, text: str) -> None:
    """Words in place of a row's bar."""
    place, words = ax.get_yaxis_transform(), sentences.wrapped(text, style.characters(0.42), 2)
    ax.text(0.01, at, words, transform=place, va="center", style="italic", size="small")


def bar(ax: "Axes", at: int, start: float, width: float, look: Look) -> None:
    """A piece of a row's bar."""
    ax.barh(at, width, BAR, left=start, color=look.colour, hatch=look.hatch)


def stack(ax: "Axes", at: int, pieces: Iterable[tuple[float, Look]]) -> None:
    """A row's bar of pieces from 0 on, each with its width."""
    end = 0.0
    for width, look in pieces:
        if width > 0:
            bar(ax, at, end, width, look)
            end += width


def whisker(ax: "Axes", at: float, estimate: Estimate, scale: float = 1.0) -> None:
    """The 95% interval about the value."""
    middle, low, high = (scale * value for value in (estimate.value, estimate.low, estimate.high))
    ends = [[max(0.0, middle - low)], [max(0.0, high - middle)]]
    ax.errorbar(middle, at, xerr=ends, fmt="none", ecolor=style.ink(), elinewidth=1.4, capsize=4)


def line(ax: "Axes", at: int, value: float, look: Look) -> None:
    """A line across a row."""
    ax.plot([value, value], [at - 0.42, at + 0.42], color=look.colour, linewidth=2.5)


def disturbed(ax: "Axes", runs: Sequence[Run]) -> list[Look]:
    """A mark at the foot of each bar that rests on disturbed rounds; its entry for the legend, if any."""
    rows = [at for at, run in enumerate(runs) if run.disturbed is not None]
    x, place = [0.012] * len(rows), ax.get_yaxis_transform()
    ax.plot(x, rows, "^", transform=place, zorder=5, **_mark(_DISTURBED))
    return [_DISTURBED] if rows else []


def legend(ax: "Axes", looks: Sequence[Look], columns: int = 0) -> None:
    """What the pieces mean, above the rows: all in one line, or `columns` to a line."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    keys = [
        Line2D([], [], marker=look.hatch, linestyle="none", **_mark(look))
        if look.hatch in ("|", "^")
        else Patch(facecolor=look.colour, hatch=look.hatch)
        for look in looks
    ]
    ax.legend(
        keys, [look.label for look in looks], loc="lower left", bbox_to_anchor=(0, 1),
        ncols=columns or len(looks), borderaxespad=0.2, columnspacing=1.2, handlelength=1.6,
        handletextpad=0.5,
    )  # fmt: skip


def _mark(look: Look) -> dict[str, Any]:
    """How a line or a triangle looks."""
    edge = {"markeredgecolor": look.colour, "markeredgewidth": 2.5} if look.hatch == "|" else {}
    return {"color": look.colour, "markersize": 10, "markeredgecolor": "black", **edge}
