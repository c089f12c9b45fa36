"""Samples per second up the ladder: what each stage added to, or took from, the one before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfkit.results.run import Run
from perfkit.show import results, rows, style, units

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIGNS = {"faster": "▲", "slower": "▼", "no measurable difference": "≈", "too few rounds": "?"}


def draw(runs: Sequence[Run], ax: Axes, ink: str) -> None:
    """A bar a stage: what it kept of the stage before, and the step up or down from there."""
    rows.frame(ax, ink, runs, numbers, "samples/s: median, 95% interval")
    for at, run in enumerate(runs):
        _row(ax, ink, at, run, runs)
    ax.set_xlim(0, max([*map(_extent, runs), 0.0]) * 1.03 or 1)
    entries = [("samples/s", style.SKY, "")]
    verdicts = {found.verdict for run in runs if (found := results.speedup(run, "previous"))}
    entries += [("gained", style.GREEN, style.GAIN_HATCH)] if "faster" in verdicts else []
    entries += [("lost", style.ORANGE, style.LOSS_HATCH)] if "slower" in verdicts else []
    entries += [("ceiling: data free", style.VERMILLION, "|")] if any(map(results.ceiling, runs)) else []
    rows.legend(ax, ink, entries)


def numbers(run: Run) -> str:
    """Rate with its interval; ratio to the stage before, with interval and verdict."""
    rate, against = results.rate(run), results.speedup(run, "previous")
    if not rate:
        return ""
    text = f"{units.interval(rate)} samples/s"
    return f"{text}\n{_SIGNS[against.verdict]} {units.ratio(against)} {against.verdict}" if against else text


def _extent(run: Run) -> float:
    rate = results.rate(run)
    return max(rate.high if rate else 0.0, results.ceiling(run) or 0.0)


def _row(ax: Axes, ink: str, at: int, run: Run, runs: Sequence[Run]) -> None:
    rate, ceiling = results.rate(run), results.ceiling(run)
    if not rate:
        return
    other, against = results.previous(run, runs), results.speedup(run, "previous")
    before = results.rate(other) if other else None
    now, start = rate.median, before.median if before else rate.median
    if other and before:
        ax.plot([start, start], [runs.index(other), at], color=ink, alpha=0.45, linewidth=0.8, zorder=0.9)
    verdict = against.verdict if against else ""
    rows.bar(ax, ink, at, 0, min(now, start) if verdict == "faster" else now, style.SKY)
    if verdict == "faster" and now > start:
        rows.bar(ax, ink, at, start, now - start, style.GREEN, style.GAIN_HATCH)
    if verdict == "slower" and now < start:
        rows.bar(ax, ink, at, now, start - now, style.ORANGE, style.LOSS_HATCH)
    if ceiling:
        ax.plot([ceiling, ceiling], [at - 0.42, at + 0.42], color=style.VERMILLION, linewidth=2.5)
    rows.whisker(ax, ink, at, rate)
