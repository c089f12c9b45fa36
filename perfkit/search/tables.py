"""The searches' results as sections: each optimization's worth, and what was tried."""

from perfkit.results.stats import Estimate
from perfkit.search.attribute import Attribution, Effect
from perfkit.search.tune import Tuned, rate
from perfkit.show import units
from perfkit.show.document import Bullets, Col, Content, tabulate


def attribution(result: Attribution) -> list[Content]:
    """What each optimization is worth: alone, after the others, on average over all orders."""
    columns = (
        Col("optimization", "title"),
        Col("alone", "alone", units.times),
        Col("after the others", "last", units.times),
        Col("mean over orders", _mean, lambda mean: units.interval(mean, unit="×")),
    )
    notes = [f"{name} is left out: {why}" for name, why in result.left_out.items()]
    if not result.complete:
        notes.append("The time was not enough for all sets: raise --budget for the rest.")
    table = tabulate(columns, result.effects, "What each optimization is worth")
    return [table, *([Bullets(notes)] if notes else [])]


def _mean(effect: Effect) -> Estimate | None:
    if effect.shapley is None or effect.low is None or effect.high is None:
        return None
    return Estimate(effect.shapley, effect.low, effect.high)


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
