"""What a search has tried: throughput against memory, and the front that nothing beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfkit.results.run import Run
from perfkit.show import results, style, units

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = ("on the front", "recipe", "samples/s", "peak memory")


def table(tried: Sequence[Run], front: Sequence[Run], best: Run) -> list[list[str]]:
    """One row a run, the fastest first; the front's runs have the numbers of the picture."""
    numbers = {run.id: str(at) for at, run in enumerate(front, 1)}
    shown = sorted((run for run in tried if results.rate(run)), key=lambda run: -_rate(run))
    return [
        [
            numbers.get(run.id, "") + (" (picked)" if run.id == best.id else ""), run.title,
            units.interval(found) if (found := results.rate(run)) else units.NOT_AVAILABLE,
            units.size(run.peak_memory_bytes) if run.peak_memory_bytes else units.NOT_AVAILABLE,
        ] for run in shown
    ]  # fmt: skip


def figure(
    tried: Sequence[Run], front: Sequence[Run], best: Run, cap_bytes: int | None = None, dark: bool = False
) -> Figure:
    """A dot for each run, a line through the front, a star on what was picked.

    Args:
        tried: every run that was measured.
        front: those that no other one beats in both, the leanest first.
        best: what was picked.
        cap_bytes: of memory, drawn as a limit.
        dark: on dark paper.
    """
    made = style.new_figure(style.WIDTH, 4.2, dark)
    ax, ink = made.add_subplot(), style.ink(dark)
    style.plain_axes(ax, ink)
    known = [run for run in tried if results.rate(run) and run.peak_memory_bytes]
    size = style.type_size(ax)
    ax.plot(*_places(known), "o", color=style.SKY, markeredgecolor=ink, markersize=7, label="tried")
    ax.plot(*_places(front), "-D", color=style.ORANGE, markeredgecolor=ink, markersize=8,
            label="not beaten in both")  # fmt: skip
    ax.plot(*_places([best]), "*", color="#f0e442", markeredgecolor=ink, markersize=19, label="picked")
    for at, run in enumerate(front, 1):
        (x,), (y,) = _places([run])
        ax.annotate(str(at), (x, y), xytext=(-9, 7), textcoords="offset points", color=ink, fontsize=size)
    if cap_bytes:
        ax.axvline(cap_bytes / 1e6, color=ink, linestyle="--", linewidth=1.2, label="memory cap")
    ax.set_ylim(bottom=0)
    ax.margins(x=0.08, y=0.12)
    ax.set_xlabel("peak memory, MB", color=ink, fontsize=size)
    ax.set_ylabel("samples/s", color=ink, fontsize=size)
    made.legend(frameon=False, labelcolor=ink, fontsize=0.9 * size, ncols=4, loc="outside lower center")
    style.title(made, "What was tried: speed against memory", ink)
    said = ", ".join(f"{run.title} {_rate(run):.0f} samples/s" for run in front)
    made.set_label(f"Pareto front of {len(known)} runs: {said}; picked: {best.title}")
    return made


def _rate(run: Run) -> float:
    found = results.rate(run)
    return found.median if found else 0.0


def _places(runs: Sequence[Run]) -> tuple[list[float], list[float]]:
    return [(run.peak_memory_bytes or 0) / 1e6 for run in runs], [_rate(run) for run in runs]
