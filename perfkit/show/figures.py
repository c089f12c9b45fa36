"""Pictures of a session: each view draws a list of runs on an Axes; nothing here measures or trains.

A further view is a draw function, a function for the numbers of one run, and its line in `VIEWS`. matplotlib
is loaded when the first figure is drawn, so that a table costs none of its start-up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfkit.errors import one_of
from perfkit.results.run import Run
from perfkit.show import document, figures_losses, figures_runs, sentences, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class View:
    """One kind of picture."""

    title: str
    draw: Callable[[Sequence[Run], Axes, str], None]
    """Draws the runs on the axes, text and lines in the ink colour; nothing else."""
    numbers: Callable[[Run], str]
    """The numbers of one run that it shows, with units; empty where there are none."""
    height: Callable[[Sequence[Run]], float] = style.rows_height
    """Inches at ordinary type."""
    nothing: Callable[[Sequence[Run]], str] = lambda runs: "" if runs else "Nothing was measured yet."
    """Why there is nothing to draw; empty where there is something."""


VIEWS: dict[str, View] = {
    "throughput": View(
        "Throughput, stage by stage", figures_runs.throughput, figures_runs.throughput_numbers
    ),
    "step_time": View("Where a step's time goes", figures_runs.step_time, figures_runs.step_time_numbers),
    "memory": View("Peak memory", figures_runs.memory, figures_runs.memory_numbers),
    "losses": View(
        "Training loss over the first steps", figures_losses.draw, figures_losses.numbers,
        figures_losses.height,
    ),
    "utilization": View(
        "GPU utilisation (sampled)", figures_runs.utilization, figures_runs.utilization_numbers,
        nothing=figures_runs.no_utilization,
    ),
}  # fmt: skip


def view(name: str, runs: Sequence[Run]) -> document.Figure:
    """A view of runs of one session, in the order of the ladder.

    Raises:
        InvalidValue: no such view.
    """
    if name not in VIEWS:
        raise one_of(name, list(VIEWS), "view")
    kind = VIEWS[name]
    nothing, where = kind.nothing(runs), []
    if runs:
        where = [
            sentences.clean(runs[0].workload.rpartition(":")[2], 32),
            sentences.clean(runs[0].device, 16),
        ]
    title = " · ".join([kind.title, *filter(None, where)])
    alt = f"{kind.title}. {nothing or sentences.enumerated(runs, kind.numbers)}"
    return document.Figure(
        name, title, alt, lambda ax, ink: kind.draw(runs, ax, ink), kind.height(runs), nothing
    )


def figure(name: str, runs: Sequence[Run], dark: bool = False, large: bool = False) -> Figure:
    """A view as a matplotlib figure; arguments as for `view` and `document.Figure.draw`."""
    return view(name, runs).draw(dark, large)
