"""Peak memory of the stages: of the GPU's allocator, or of the training process where there is no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfkit.results.run import Run
from perfkit.show import results, rows, style, units

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SCALES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def draw(runs: Sequence[Run], ax: Axes, ink: str) -> None:
    """A bar a stage; on a GPU what was reserved shows behind what was allocated."""
    gpu = any(map(results.on_gpu, runs))
    most = max(map(_most, runs), default=0.0)
    scale, unit = next(((scale, unit) for scale, unit in _SCALES if most >= scale), (1.0, "B"))
    what = "GPU memory, allocator's peak" if gpu else "memory of the training process (RSS, without workers)"
    rows.frame(ax, ink, runs, numbers, f"{what} [{unit}]")
    for at, run in enumerate(runs):
        if not numbers(run):
            continue
        own = (run.peak_memory_bytes or 0) / scale
        rows.bar(ax, ink, at, 0, own, style.BLUE)
        spare = _reserved(run) / scale - own
        if spare > 0:
            rows.bar(ax, ink, at, own, spare, style.SKY, style.SPARE_HATCH)
    ax.set_xlim(0, most / scale * 1.03 or 1)
    if gpu:
        spare_key = ("reserved on top", style.SKY, style.SPARE_HATCH)
        rows.legend(ax, ink, [("allocated", style.BLUE, ""), spare_key])


def _reserved(run: Run) -> int:
    return (run.peak_reserved_bytes or 0) if results.on_gpu(run) else 0


def _most(run: Run) -> float:
    return float(max(run.peak_memory_bytes or 0, _reserved(run))) if run.status == "ok" else 0.0


def numbers(run: Run) -> str:
    """Peaks with their unit."""
    if run.status != "ok" or run.peak_memory_bytes is None:
        return ""
    own = units.size(run.peak_memory_bytes)
    return f"{own} allocated\n{units.size(_reserved(run))} reserved" if results.on_gpu(run) else f"{own} RSS"
