"""Pictures of what studies found: the worth of optimizations, and speed against memory of what was tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfkit.results.attribution import Effect
from perfkit.results.run import Run
from perfkit.results.tuning import rate
from perfkit.show import results, rows, style, units
from perfkit.show.document import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKS = (("alone", "o", style.SKY), ("last", "D", style.ORANGE))


def worth(effects: Sequence[Effect]) -> Figure:
    """What each optimization is worth: on average over the orders, alone, and after the others."""
    numbers = ", ".join(f"{e.title} {units.times(e.shapley)}" for e in effects)
    return Figure(
        "worth", "What each optimization is worth, whatever the order",
        f"Worth on average over the orders: {numbers}",
        lambda ax, ink: _worth(effects, ax, ink), style.rows_height(effects),
    )  # fmt: skip


def _worth(effects: Sequence[Effect], ax: Axes, ink: str) -> None:
    """A bar for the mean over the orders with its interval; marks for alone and after the others."""
    rows.named(ax, ink, [e.title for e in effects], [units.times(e.shapley) for e in effects], "")
    values = [
        1.0,
        *(v for e in effects for v in (e.alone, e.last, e.shapley, e.low, e.high) if v is not None),
    ]
    for at, e in enumerate(effects):
        if e.shapley is not None:
            rows.bar(ax, ink, at, 1.0, e.shapley - 1.0, style.BLUE, "")
        if e.low is not None and e.high is not None:
            ax.plot([e.low, e.high], [at, at], color=ink, linewidth=1.6, solid_capstyle="butt")
        for field, sign, colour in _MARKS:
            if (value := getattr(e, field)) is not None:
                ax.plot(value, at, sign, color=colour, markeredgecolor=ink, markersize=8, zorder=4)
    room = max(values) - min(values) + 0.1
    ax.set_xlim(min(values) - 0.05 * room, max(values) + 0.06 * room)
    ax.axvline(1.0, color=ink, linewidth=1)
    rows.legend(ax, ink, [("mean over orders", style.BLUE, "")])
    marks = "times as fast (circle: alone on the baseline · diamond: on top of all the others)"
    ax.set_xlabel(marks, color=ink, fontsize=0.9 * style.type_size(ax))


def pareto(tried: Sequence[Run], front: Sequence[Run], best: Run, cap_bytes: int | None = None) -> Figure:
    """A dot for each run, a line through the front, a star on what was picked.

    Args:
        tried: every run that was measured.
        front: those that no other one beats in both, the leanest first.
        best: what was picked.
        cap_bytes: of memory, drawn as a limit.
    """
    measured = [run for run in tried if results.rate(run) and run.peak_memory_bytes]
    numbers = ", ".join(f"{run.title} {rate(run):.0f} samples/s" for run in front)
    return Figure(
        "pareto", "What was tried: speed against memory",
        f"Pareto front of {len(measured)} runs: {numbers}; picked: {best.title}",
        lambda ax, ink: _pareto(measured, front, best, cap_bytes, ax, ink),
    )  # fmt: skip


def _pareto(
    measured: Sequence[Run], front: Sequence[Run], best: Run, cap_bytes: int | None, ax: Axes, ink: str
) -> None:
    style.plain_axes(ax, ink)
    ax.plot(*_places(measured), "o", color=style.SKY, markeredgecolor=ink, markersize=7, label="tried")
    ax.plot(*_places(front), "-D", color=style.ORANGE, markeredgecolor=ink, markersize=8, label="the front")
    ax.plot(*_places([best]), "*", color=style.YELLOW, markeredgecolor=ink, markersize=19, label="picked")
    for at, (x, y) in enumerate(zip(*_places(front), strict=True), 1):
        ax.annotate(
            str(at), (x, y), (-9, 7), textcoords="offset points", color=ink, fontsize=style.type_size(ax)
        )
    if cap_bytes:
        ax.axvline(cap_bytes / 1e6, color=ink, linestyle="--", linewidth=1.2, label="memory cap")
    ax.set_ylim(bottom=0)
    ax.margins(x=0.08, y=0.12)
    style.axis_labels(ax, ink, "peak memory, MB", "samples/s")
    style.legend_below(ax, ink, 4)


def _places(runs: Sequence[Run]) -> tuple[list[float], list[float]]:
    return [(run.peak_memory_bytes or 0) / 1e6 for run in runs], [rate(run) for run in runs]
