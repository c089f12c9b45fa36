"""Pictures of a session: each view draws a list of runs on an Axes; nothing here shows, measures or trains.

A further view is one file with `draw(runs, ax, ink)` and `numbers(run)`, and its line in `VIEWS`.
matplotlib is loaded when the first figure is made, so that the table costs none of its start-up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfkit.errors import one_of
from perfkit.results.run import Run
from perfkit.show import losses, memory, sentences, step_time, style, throughput, utilization

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

    def describe(self, runs: Sequence[Run]) -> str:
        """The same in words with the numbers, for those who do not see it."""
        return f"{self.title}. {self.nothing(runs) or sentences.sentence(runs, self.numbers)}"


VIEWS: dict[str, View] = {
    "throughput": View("Throughput, stage by stage", throughput.draw, throughput.numbers),
    "step_time": View("Where a step's time goes", step_time.draw, step_time.numbers),
    "memory": View("Peak memory", memory.draw, memory.numbers),
    "losses": View("Training loss over the first steps", losses.draw, losses.numbers, losses.height),
    "utilization": View(
        "GPU utilisation (sampled)", utilization.draw, utilization.numbers, nothing=utilization.nothing
    ),
}


def figure(name: str, runs: Sequence[Run], dark: bool = False, large: bool = False) -> Figure:
    """A finished figure of a view.

    Args:
        name: a key of `VIEWS`.
        runs: of one session, in the order of the ladder.
        dark: for a dark page.
        large: large type, for a projector.

    Raises:
        InvalidValue: no such view.
    """
    view = _view(name)
    nothing = view.nothing(runs)
    made = style.new_figure(style.WIDTH, 1.2 if nothing else view.height(runs), dark, large)
    ax = made.add_subplot()
    if nothing:
        style.say(ax, nothing, style.ink(dark))
    else:
        view.draw(runs, ax, style.ink(dark))
    style.title(made, _heading(view, runs), style.ink(dark))
    made.set_label(describe(name, runs))
    return made


def describe(name: str, runs: Sequence[Run]) -> str:
    """The text that stands for a view where it cannot be seen.

    Raises:
        InvalidValue: no such view.
    """
    return _view(name).describe(runs)


def _view(name: str) -> View:
    if name not in VIEWS:
        raise one_of(name, list(VIEWS), "view")
    return VIEWS[name]


def _heading(view: View, runs: Sequence[Run]) -> str:
    if not runs:
        return view.title
    first = runs[0]
    where = [sentences.clean(first.workload.rpartition(":")[2], 32), sentences.clean(first.device, 16)]
    return " · ".join([view.title, *filter(None, where)])
