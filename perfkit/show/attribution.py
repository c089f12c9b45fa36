"""What each optimization is worth: alone, in company, on average over the orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perfkit.show import rows, style, units

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = ("optimization", "alone", "after the others", "in this order", "mean over orders", "95% interval")
_MARKS = (("alone", "o", style.SKY), ("last", "D", style.ORANGE))


def table(effects: Sequence[Any]) -> list[list[str]]:
    """One row an optimization, in the order of `COLUMNS`."""
    return [
        [e.title, *(_times(value) for value in (e.alone, e.last, e.stepwise, e.shapley)),
         f"{e.low:.2f}–{e.high:.2f}" if e.low is not None else units.NOT_AVAILABLE]
        for e in effects
    ]  # fmt: skip


def _times(value: float | None) -> str:
    return units.NOT_AVAILABLE if value is None else f"{value:.2f}×"


def draw(effects: Sequence[Any], ax: Axes, ink: str) -> None:
    """A bar for the mean over the orders with its interval; marks for alone and after the others."""
    rows.named(ax, ink, [e.title for e in effects], [_times(e.shapley) for e in effects], "times as fast")
    most = 1.0
    for at, e in enumerate(effects):
        if e.shapley is not None:
            rows.bar(ax, ink, at, 1.0, e.shapley - 1.0, style.BLUE, "")
        if e.low is not None:
            ax.plot([e.low, e.high], [at, at], color=ink, linewidth=1.6, solid_capstyle="butt")
        for field, sign, colour in _MARKS:
            if (value := getattr(e, field)) is not None:
                ax.plot(value, at, sign, color=colour, markeredgecolor=ink, markersize=8, zorder=4)
        known = (e.alone, e.last, e.shapley, e.high)
        most = max(most, *(value for value in known if value is not None), 1.0)
    least = min([1.0, *(v for e in effects for v in (e.alone, e.last, e.shapley, e.low) if v is not None)])
    ax.set_xlim(least - 0.05 * (most - least + 0.1), most + 0.06 * (most - least + 0.1))
    ax.axvline(1.0, color=ink, linewidth=1)
    handles = [("mean over orders", style.BLUE, "")]
    rows.legend(ax, ink, handles)
    marks = " · ".join(("circle: alone on the baseline", "diamond: on top of all the others"))
    ax.set_xlabel(f"times as fast ({marks})", color=ink, fontsize=0.9 * style.type_size(ax))


def figure(effects: Sequence[Any], dark: bool = False, large: bool = False) -> Figure:
    """The finished picture."""
    made = style.new_figure(style.WIDTH, style.rows_height(effects), dark, large)
    ax, ink = made.add_subplot(), style.ink(dark)
    draw(effects, ax, ink)
    style.title(made, "What each optimization is worth, whatever the order", ink)
    said = ", ".join(f"{e.title} {_times(e.shapley)}" for e in effects)
    made.set_label(f"Worth on average over the orders: {said}")
    return made
