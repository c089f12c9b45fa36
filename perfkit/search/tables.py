"""The searches' results as sections with figures: each optimization's worth, and what was tried."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfkit.results.stats import Estimate
from perfkit.search.attribute import Attribution, Effect
from perfkit.search.tune import Tuned, rate
from perfkit.show import style, units
from perfkit.show.document import Bullets, Cell, Col, Content, Figure, tabulate
from perfkit.show.style import Look

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_MEAN = Look("mean over orders", style.BLUE)
_MARKS = (("alone", "o", style.SKY), ("last", "D", style.ORANGE))


def attribution(result: Attribution) -> list[Content]:
    """What each optimization is worth: alone, after the others, on average over all orders."""
    columns = (
        Col("optimization", "title"),
        Col("alone", "alone", units.times),
        Col("after the others", "last", units.times),
        Col("mean over orders", _mean, units.interval),
    )
    numbers = ", ".join(f"{effect.title} {units.times(effect.shapley)}" for effect in result.effects)
    figure = Figure(
        "worth", "What each optimization is worth, whatever the order",
        f"Worth on average over the orders: {numbers}", lambda figure: _worth(result.effects, figure),
        style.rows_height(len(result.effects)),
    )  # fmt: skip
    again = [] if result.complete else ["The time was not enough for all sets: raise --budget for the rest."]
    return [
        tabulate(columns, result.effects, "What each optimization is worth"),
        figure,
        Bullets(result.sentences()),
        *again,
    ]


def _mean(effect: Effect) -> Cell:
    if effect.shapley is None or effect.low is None or effect.high is None:
        return Cell(effect.shapley, units.times)
    estimate = Estimate(effect.shapley, effect.low, effect.high)
    return Cell(estimate, lambda value: units.interval(value, unit="×"))


def _worth(effects: Sequence[Effect], figure: "Drawing") -> None:
    """A bar for the mean over the orders with its interval; marks for alone and after the others."""
    ax = figure.add_subplot()
    marks = "times as fast (circle: alone on the baseline · diamond: on top of all the others)"
    style.named(ax, [effect.title for effect in effects], [str(_mean(effect)) for effect in effects], marks)
    numbers = [(e.alone, e.last, e.shapley, e.low, e.high) for e in effects]
    values = [1.0, *(value for each in numbers for value in each if value is not None)]
    for at, effect in enumerate(effects):
        if effect.shapley is not None:
            style.bar(ax, at, 1.0, effect.shapley - 1.0, _MEAN)
        if effect.low is not None and effect.high is not None:
            ax.plot([effect.low, effect.high], [at, at], color=style.ink(), linewidth=1.6)
        for field, sign, colour in _MARKS:
            if (value := getattr(effect, field)) is not None:
                ax.plot(value, at, sign, color=colour, markersize=8, zorder=4)
    room = max(values) - min(values) + 0.1
    ax.set_xlim(min(values) - 0.05 * room, max(values) + 0.06 * room)
    ax.axvline(1.0, linewidth=1)
    style.legend(ax, [_MEAN])


def tuning(result: Tuned) -> list[Content]:
    """What was picked, and everything that was tried, the fastest first."""
    tried = sorted((run for run in result.tried if run.samples_per_s), key=rate, reverse=True)
    columns = (
        Col("recipe", "title"),
        Col("picked", lambda run: "✓" * (run.id == result.best.id)),
        Col("samples/s", "samples_per_s", units.interval),
        Col("peak memory", lambda run: run.peak_memory_bytes or None, units.size),
    )
    return [Bullets(result.sentences()), tabulate(columns, tried, "Tried")]
