"""What each optimization is worth: alone, on top of the others, and on average over the orders.

The value of a set of optimizations is the logarithm of its speed over the baseline's, interleaved with it. An
optimization's Shapley value is its mean gain over the orders in which the set can be put together (Shapley
1953): the values add up to the whole gain. With few optimizations every order counts; with many, random ones.
The interval covers both errors: of the measurements, and of the choice of orders.
"""

import itertools
import math
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from perfkit.errors import InvalidValue
from perfkit.ladder.catalogue import LADDER, OPTIMIZATIONS
from perfkit.recipe import Recipe
from perfkit.results.run import Run
from perfkit.results.store import RunStore
from perfkit.rules import applicable
from perfkit.studies import rungs
from perfkit.studies.progress import Progress
from perfkit.studies.rungs import stop_rule
from perfkit.studies.sources import Plan, Source, opened

TOGETHER = 4
"""Sets that are measured in the same rounds, beside the baseline."""
EXACT_UP_TO = 4
"""Optimizations of which every set is measured: 16 sets."""
Names = frozenset[str]
Value = tuple[float, float]
"""Logarithm of the speed over the baseline's, and its standard error."""


class Effect(Struct, frozen=True, kw_only=True):
    """What one optimization is worth, as ratios of speeds; None if the sets it needs were not measured."""

    name: str
    title: str
    alone: float | None
    """On the baseline."""
    last: float | None
    """On top of all the others."""
    shapley: float | None
    low: float | None
    high: float | None
    """95% interval of the Shapley value."""

    def describe(self) -> str:
        """One line for people."""
        values = ((self.alone, "alone"), (self.last, "once the others are on"))
        gains = [f"{value:.2f}× {where}" for value, where in values if value is not None]
        mean = f", {self.shapley:.2f}× on average" if self.shapley is not None else ""
        return f"{self.title} is worth {' and '.join(gains) or 'n/a'}{mean}"


class Attribution(Struct, frozen=True, kw_only=True):
    """What each of some optimizations is worth."""

    effects: list[Effect]
    together: float | None
    """All of them over the baseline."""
    sets: int
    """Sets that were measured."""
    orders: int
    """Orders over which the Shapley values are averaged."""
    exact: bool
    """Whether these are all orders."""
    complete: bool
    """Whether everything planned was measured."""
    left_out: dict[str, str]
    """Optimizations that cannot act, and why."""

    def sentences(self) -> list[str]:
        """In words, the largest first."""
        ranked = sorted(self.effects, key=lambda effect: -(effect.shapley or 0))
        left_out = [f"{name} is left out: {why}" for name, why in self.left_out.items()]
        return [*(effect.describe() for effect in ranked), *left_out]


def attribute(
    plan: Plan,
    names: Sequence[str] | None = None,
    budget_s: float = 600.0,
    orders: int = 6,
    progress: Progress | None = None,
) -> Attribution:
    """Measures sets of optimizations beside the baseline.

    Args:
        plan: workload, preset, device, seed.
        names: optimizations; those of the default ladder that can act here if None.
        budget_s: seconds after which no further sets are measured.
        orders: random orders for the Shapley values, if not every set is measured.
        progress: follows and stops it; what was measured until then counts.

    Raises:
        InvalidValue: an unknown optimization, or fewer than two that can act here.
    """
    progress, ends = progress or Progress(), time.monotonic() + budget_s
    store, values = RunStore(), dict[Recipe, Value]()
    with opened(plan, progress, "attribution") as source:
        base = source.baseline()
        changes, left_out = _changes(source, base, names)
        if len(changes) < 2:
            reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
            raise InvalidValue(
                f"{len(changes)} of these optimizations can act here ({reasons})",
                "Name at least two that can",
            )
        players = tuple(changes)
        chosen = _orders(players, orders, plan.seed)
        recipes = {
            members: applicable(_merged(base, members, changes), source.target)[0]
            for members in dict.fromkeys(_sets(players, chosen))
        }
        distinct = list(dict.fromkeys(recipes.values()))
        batches = [distinct[at : at + TOGETHER] for at in range(0, len(distinct), TOGETHER)]
        for number, batch in enumerate(batches):
            if number and (time.monotonic() > ends or source.stopped):
                break
            titled = [("baseline", base), *((recipe.describe()[:60], recipe) for recipe in batch)]
            with progress.part(number, len(batches)):
                stages = rungs.recipe_stages(titled, source.target)
                for run in source.measure(stages, stop_rule(plan.preset))[number > 0 :]:
                    store.add(run)
                    progress.finish(run)
                    values |= _value(run)
    measured = {members: values[recipe] for members, recipe in recipes.items() if recipe in values}
    return conclude(players, measured, chosen, left_out, complete=len(measured) == len(recipes))


def _changes(
    source: Source, base: Recipe, names: Sequence[str] | None
) -> tuple[dict[str, dict[str, object]], dict[str, str]]:
    """What each optimization changes on this machine; why the others cannot act."""
    changes: dict[str, dict[str, object]] = {}
    left_out: dict[str, str] = {}
    for name in dict.fromkeys(names or LADDER[1:]):
        stage = rungs.rung(source.plan, source.target, name, base)
        if stage.reason:
            left_out[name] = stage.reason
            continue
        changes[name] = {switch: value for switch, (value, _) in stage.recipe.diff(base).items()}
        if name != "batch_size":
            changes[name].pop("batch_size", None)  # an optimization by itself
    return changes, left_out


def _merged(base: Recipe, members: Names, changes: Mapping[str, Mapping[str, object]]) -> Recipe:
    merged = {switch: value for name in changes if name in members for switch, value in changes[name].items()}
    return base.replace(**merged)


def _orders(players: Sequence[str], count: int, seed: int) -> list[tuple[str, ...]]:
    if len(players) <= EXACT_UP_TO:
        return list(itertools.permutations(players))
    generator, orders = random.Random(seed), []
    for _ in range(max(1, count // 2)):
        order = tuple(generator.sample(players, len(players)))
        orders += [order, order[::-1]]  # the errors of an order and its reverse partly cancel
    return orders


def _sets(players: Sequence[str], orders: Sequence[Sequence[str]]) -> Iterator[Names]:
    """What to measure, the most informative first."""
    everything = frozenset(players)
    yield everything
    yield from (frozenset([name]) for name in players)
    yield from (everything - {name} for name in players)
    for order in orders:
        yield from (frozenset(order[:count]) for count in range(1, len(order)))


def _value(run: Run) -> dict[Recipe, Value]:
    """The value of a run's recipe; nothing if it was not compared with the baseline."""
    ratio = run.speedup("baseline") if run.status == "ok" else None
    if ratio is None:
        return {}
    error = math.log(ratio.high / ratio.low) / 2 / 1.96
    return {Recipe.from_dict(run.recipe): (math.log(ratio.ratio), error)}


def conclude(
    players: Sequence[str],
    values: Mapping[Names, Value],
    orders: Sequence[Sequence[str]],
    left_out: Mapping[str, str] | None = None,
    complete: bool = True,
) -> Attribution:
    """What follows from measured sets.

    Args:
        players: the optimizations.
        values: by set; sets may be missing.
        orders: those that the Shapley values are averaged over, as far as their sets were measured.
        left_out: optimizations that cannot act, and why.
        complete: whether all that was planned was measured.
    """
    nothing, everything = frozenset[str](), frozenset(players)
    known = {nothing: (0.0, 0.0), **values}
    usable = [
        order for order in orders if all(frozenset(order[:n]) in known for n in range(1, len(order) + 1))
    ]
    exact = len(usable) == math.factorial(len(players))
    effects = []
    for name in players:
        mean, error = _shapley(name, usable, known, exact)
        effects.append(
            Effect(
                name=name,
                title=OPTIMIZATIONS[name].title if name in OPTIMIZATIONS else name,
                alone=_gain(known, nothing, name),
                last=_gain(known, everything - {name}, name),
                shapley=None if mean is None else math.exp(mean),
                low=None if mean is None else math.exp(mean - error),
                high=None if mean is None else math.exp(mean + error),
            )
        )
    return Attribution(
        effects=effects,
        together=math.exp(known[everything][0]) if everything in known else None,
        sets=len(values),
        orders=len(usable),
        exact=exact,
        complete=complete,
        left_out=dict(left_out or {}),
    )


def _shapley(
    name: str, orders: Sequence[Sequence[str]], values: Mapping[Names, Value], exact: bool
) -> tuple[float | None, float]:
    """The mean gain over the orders, and half its 95% interval; logarithms."""
    gains: list[float] = []
    weights: dict[Names, float] = {}
    for order in orders:
        before = frozenset(order[: order.index(name)])
        after = before | {name}
        gains.append(values[after][0] - values[before][0])
        weights[after] = weights.get(after, 0.0) + 1 / len(orders)
        weights[before] = weights.get(before, 0.0) - 1 / len(orders)
    if not gains:
        return None, 0.0
    variance = sum((weight * values[members][1]) ** 2 for members, weight in weights.items())
    if not exact and len(gains) > 1:
        variance += statistics.variance(gains) / len(gains)
    return statistics.fmean(gains), 1.96 * math.sqrt(variance)


def _gain(values: Mapping[Names, Value], before: Names, name: str) -> float | None:
    after = before | {name}
    return math.exp(values[after][0] - values[before][0]) if {before, after} <= values.keys() else None
