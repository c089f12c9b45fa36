"""Loss curves of the stages side by side, over samples, because batch sizes differ."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from perfkit.results.run import Run
from perfkit.show import sentences, style, units

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
_MOST_COLUMNS = 5
_LOG_FROM = 8
"""Samples that span more than this factor need a logarithmic axis, else small batches are squeezed."""


def height(runs: Sequence[Run]) -> float:
    """Inches for the grid of panels."""
    return 1.1 + 1.65 * math.ceil(len(runs) / _MOST_COLUMNS)


def paint(runs: Sequence[Run], figure: "Figure") -> None:
    """A small panel for each stage, all with equal axes; the first stage's curve is dashed in each."""
    curves = [_curve(run) for run in runs]
    measured = [at for at, (_, loss) in enumerate(curves) if len(loss)]
    if not measured:
        return style.say(figure.add_subplot(), "No losses were recorded.")
    columns = min(len(runs), _MOST_COLUMNS)
    lines = math.ceil(len(runs) / columns)
    panels = list(figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flat)
    for panel in panels[len(runs) :]:
        panel.set_visible(False)
    for at, (run, panel) in enumerate(zip(runs, panels, strict=False)):
        first = measured[0]
        _panel(panel, run, curves[at], curves[first] if at != first else None)
        panel.tick_params(labelbottom=at + columns >= len(runs))
    _limit(panels[0], curves)
    values = [float(value) for _, loss in curves for value in loss]
    dashed = f"dashed: {sentences.clean(sentences.name(runs[measured[0]]), 30)}" if len(runs) > 1 else ""
    notes = (dashed, style.outliers_note(values, "value", units.number))
    figure.supxlabel("; ".join(filter(None, ("samples trained on", *notes))))
    figure.supylabel("training loss")
    return None


def numbers(run: Run) -> str:
    """First and last loss, or the sample at which the loss was no longer finite."""
    samples, loss = _curve(run)
    if not len(loss):
        return sentences.outcome(run) or "n/a: no losses were recorded"
    bad = np.flatnonzero(~np.isfinite(loss))
    if len(bad):
        return f"{units.number(loss[bad[0]])} from sample {samples[bad[0]]:,} on"
    return f"{units.number(loss[0])} → {units.number(loss[-1], loss[0])}"


def _curve(run: Run) -> Curve:
    """(samples, losses): one value for each step."""
    loss = np.array(run.losses if run.status == "ok" else [], dtype=float)
    each = run.samples_per_step or int(run.recipe.get("batch_size", 1)) or 1
    return each * np.arange(1, len(loss) + 1), loss


def _panel(panel: "Axes", run: Run, curve: Curve, reference: Curve | None) -> None:
    fits = style.characters(0.95 / _MOST_COLUMNS)
    heading = sentences.clean(sentences.name(run), fits)
    if len(curve[1]):
        heading += "\n" + numbers(run)
        if reference is not None:
            panel.plot(*reference, "--", color=style.ink(), linewidth=1, alpha=0.75, zorder=3)
        panel.plot(*curve, "o-", color=style.BLUE, linewidth=1.8, markersize=3.5)
    else:
        words = sentences.wrapped(numbers(run), fits - 3, 4)
        panel.text(0.04, 0.5, words, transform=panel.transAxes, va="center", style="italic", size="small")
    panel.set_title(heading, size="small", pad=3, linespacing=1.15)
    panel.tick_params(labelsize="small", length=2.5, pad=2)


def _limit(panel: "Axes", curves: Sequence[Curve]) -> None:
    """The limits and ticks that all panels share."""
    samples = np.concatenate([samples for samples, _ in curves])
    kept, _ = style.split_outliers(float(value) for _, loss in curves for value in loss)
    low, high = (min(kept), max(kept)) if kept else (0.0, 1.0)
    room = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    first, last = int(samples.min()), int(samples.max())
    panel.set_ylim(low - room, high + room)
    if last > _LOG_FROM * first:
        panel.set_xscale("log")
        panel.set_xlim(first / 1.25, last * 1.25)
    else:
        panel.set_xlim(0, last * 1.08)
    panel.set_xticks([first, last], [f"{first:,}", f"{last:,}"])
    panel.set_xticks([], minor=True)
    panel.locator_params(axis="y", nbins=4)
