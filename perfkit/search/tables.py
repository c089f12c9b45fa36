"""The searches' results as sections with figures: each optimization's worth, and what was tried."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfkit.results.stats import Estimate
from perfkit.search.attribute import Attribution, Effect
from perfkit.search.tune import Tuned, rate
from perfkit.show import style, units
from perfkit.show.document import Bullets, Col, Content, Figure, tabulate
from perfkit.show.style import Look

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_MEAN = Look("mean over orders", style.BLUE)


def attribution(result: Attribution) -> list[Content]:
    """What each optimization is worth: alone, after the others, on average over all orders."""
    columns = (
        Col("optimization", "title"),
        Col("alone", "alone", units.times),
        Col("after the others", "last", units.times),
        Col("mean over orders", _mean, _times),
    )
    known = [effect for effect in result.effects if _mean(effect)]
    numbers = ", ".join(f"{effect.title} {units.times(effect.shapley)}" for effect in known)
    figure = Figure(
        "worth", "What each optimization is worth, whatever the order",
        f"Worth on average over the orders: {numbers}", lambda drawing: _worth(known, drawing),
        style.rows_height(len(known)), "" if known else "No mean is known.",
    )  # fmt: skip
    left_out = [f"{name} is left out: {why}" for name, why in result.left_out.items()]
    again = [] if result.complete else ["The time was not enough for all sets: raise --budget for the rest."]
    return [
        tabulate(columns, result.effects, "What each optimization is worth"),
        figure,
        *([Bullets(left_out)] if left_out else []),
        *again,
    ]


def _mean(effect: Effect) -> Estimate | None:
    if effect.shapley is None or effect.low is None or effect.high is None:
        return None
    return Estimate(effect.shapley, effect.low, effect.high)


def _times(mean: Estimate | None) -> str:
    return units.interval(mean, unit="×")


def _worth(effects: Sequence[Effect], drawing: "Drawing") -> None:
    """A bar for the mean over the orders, from 1 on, with its interval."""
    ax, means = drawing.add_subplot(), list(filter(None, map(_mean, effects)))
    unit = "times as fast, on average over the orders"
    style.named(ax, [effect.title for effect in effects], [*map(_times, means)], unit)
    for at, mean in enumerate(means):
        style.bar(ax, at, 1.0, mean.value - 1.0, _MEAN)
        style.whisker(ax, at, mean)
    ax.axvline(1.0, linewidth=1)


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
