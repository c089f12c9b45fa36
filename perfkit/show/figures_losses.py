"""Loss curves of the stages side by side, over samples, because batch sizes differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from perfkit.results.run import Run
from perfkit.show import sentences, style, units

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
_MOST_COLUMNS = 5
_LOG_FROM = 8
"""Samples span more than this factor: a logarithmic axis, else small batches are squeezed to the left."""


def height(runs: Sequence[Run]) -> float:
    """Inches for the grid of panels."""
    return 0.9 + 1.65 * math.ceil(len(runs) / _MOST_COLUMNS)


def draw(runs: Sequence[Run], ax: Axes, ink: str) -> None:
    """A small panel for each stage, all with equal axes; the first stage's curve is dashed in each."""
    curves = [_curve(run) for run in runs]
    if not any(len(loss) for _, loss in curves):
        return style.say(ax, "No losses were recorded.", ink)
    style.plain_axes(ax, ink)
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.set(xticks=[], yticks=[])
    reference = next(at for at, (_, loss) in enumerate(curves) if len(loss))
    text = f"samples trained on (dashed: {sentences.clean(sentences.name(runs[reference]), 30)})"
    text = text if len(runs) > 1 else "samples trained on"
    values = [float(value) for _, loss in curves for value in loss]
    text = "; ".join(filter(None, (text, style.outliers_note(values, "value", units.number))))
    ax.set_xlabel(style.mark(text), color=ink, fontsize=0.9 * style.type_size(ax))
    ax.set_ylabel("training loss", color=ink, fontsize=0.9 * style.type_size(ax))
    panels = _panels(ax, ink, len(runs))
    for at, (run, panel) in enumerate(zip(runs, panels, strict=True)):
        _panel(panel, ink, run, curves[at], curves[reference] if at != reference else None)
    _same_axes(panels, curves)
    return None


def _curve(run: Run) -> Curve:
    """(samples, losses): one value for each step."""
    loss = np.array(run.losses if run.status == "ok" else [], dtype=float)
    each = run.samples_per_step or int(run.recipe.get("batch_size", 1)) or 1
    return each * np.arange(1, len(loss) + 1), loss


def numbers(run: Run) -> str:
    """First and last loss, or the sample at which the loss was no longer finite."""
    samples, loss = _curve(run)
    if not len(loss):
        return sentences.outcome(run) or "n/a: no losses were recorded"
    bad = np.flatnonzero(~np.isfinite(loss))
    if len(bad):
        return f"{units.number(loss[bad[0]])} from sample {samples[bad[0]]:,} on"
    return f"{units.number(loss[0])} → {units.number(loss[-1], loss[0])}"


def _panels(ax: Axes, ink: str, count: int) -> list[Axes]:
    """A grid of axes inside the axes, with room for tick labels and two lines of heading."""
    columns = min(count, _MOST_COLUMNS)
    lines = math.ceil(count / columns)
    left, bottom = 0.05, 0.14 / lines
    wide, high = (1 - left) / columns, (1 - bottom) / lines
    panels = []
    for at in range(count):
        line, column = divmod(at, columns)
        box = (left + column * wide, bottom + (lines - 1 - line) * high, 0.84 * wide, 0.70 * high)
        panel = ax.inset_axes(box)
        style.plain_axes(panel, ink)
        panel.tick_params(labelsize=0.8 * style.type_size(ax), length=2.5, pad=2)
        panel.tick_params(labelleft=column == 0, labelbottom=at + columns >= count)
        panels.append(panel)
    return panels


def _panel(panel: Axes, ink: str, run: Run, curve: Curve, reference: Curve | None) -> None:
    size = style.type_size(panel)
    fits = style.characters(panel, 0.95 / _MOST_COLUMNS)
    heading = sentences.clean(sentences.name(run), fits)
    samples, loss = curve
    if len(loss):
        heading += "\n" + numbers(run)
        if reference is not None:
            panel.plot(*reference, "--", color=ink, linewidth=1, alpha=0.75, zorder=3)
        panel.plot(samples, loss, "o-", color=style.BLUE, linewidth=1.8, markersize=3.5, markeredgecolor=ink)
    else:
        text = sentences.wrapped(numbers(run), fits - 3, 4)
        panel.text(0.04, 0.5, style.mark(text), transform=panel.transAxes, va="center", color=ink,
                   style="italic", fontsize=0.8 * size)  # fmt: skip
    panel.set_title(style.mark(heading), loc="left", fontsize=0.85 * size, color=ink, pad=3, linespacing=1.15)


def _same_axes(panels: Sequence[Axes], curves: Sequence[Curve]) -> None:
    samples = np.concatenate([samples for samples, _ in curves])
    kept, _ = style.split_outliers(float(value) for _, loss in curves for value in loss)
    low, high = (min(kept), max(kept)) if kept else (0.0, 1.0)
    room = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    first, last = int(samples.min()), int(samples.max())
    for panel in panels:
        panel.set_ylim(low - room, high + room)
        if last > _LOG_FROM * first:
            panel.set_xscale("log")
            panel.set_xlim(first / 1.25, last * 1.25)
        else:
            panel.set_xlim(0, last * 1.08)
        panel.set_xticks([first, last], [f"{first:,}", f"{last:,}"])
        panel.set_xticks([], minor=True)
        panel.locator_params(axis="y", nbins=4)
