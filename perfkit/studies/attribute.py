"""What each optimization is worth, whatever the order: alone, in company, and on average over all orders.

The value of a set of optimizations is the logarithm of its speed over the baseline's, measured in turn with
it. An optimization's Shapley value is its mean gain over all orders in which the set can be put together
(Shapley 1953): the values add up to the whole gain. With few optimizations every set is measured; with many,
random orders are. The interval holds both errors: of the measurements, and of the choice of orders.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from perfkit import machine
from perfkit.errors import InvalidValue
from perfkit.ladder import presets
from perfkit.ladder import stages as ladder
from perfkit.ladder.catalogue import LADDER, OPTIMIZATIONS, optimization
from perfkit.program.recipe import Recipe
from perfkit.program.recipe import Value as Switched
from perfkit.program.rules import applicable
from perfkit.results.attribution import Attribution, Effect, Interaction
from perfkit.results.stats import Ratio
from perfkit.results.store import RunStore
from perfkit.studies import engine
from perfkit.worker.messages import Description

EXACT_UP_TO = 4
"""Optimizations of which every set is measured: 16 sets."""
Names = frozenset[str]
Value = tuple[float, float]
"""Logarithm of the speed over the baseline's, and its standard error."""


def attribute(
    plan: engine.Plan,
    names: Sequence[str] | None = None,
    budget_s: float = 600.0,
    orders: int = 6,
    on_progress: Callable[[engine.Progress], None] = lambda progress: None,
    cancelled: threading.Event | None = None,
) -> Attribution:
    """Measures sets of optimizations; what the store has of this plan already is used, not measured again.

    Args:
        plan: workload, preset, device, seed.
        names: optimizations; those of the default ladder that can act here if None.
        budget_s: seconds after which no further set starts.
        orders: random orders for the Shapley values, where not every set is measured.
        on_progress: called often, from this thread.
        cancelled: set it from any thread to stop; what was measured is kept.

    Raises:
        InvalidValue: an unknown optimization, or fewer than two that can act here.
    """
    described, _ = engine.resolve(replace(plan, stages=("baseline",)))
    base, changes, left_out = _applicable(plan, described, names)
    if len(changes) < 2:
        raise InvalidValue(
            f"{len(changes)} of these optimizations can act here: {left_out}", "Name at least two that can"
        )
    players = tuple(changes)
    chosen = _orders(players, orders, plan.seed)
    wanted = list(dict.fromkeys(_sets(players, chosen)))
    target = engine.target(plan, described)
    recipes = {one: applicable(_together(base, one, changes), target)[0] for one in wanted}
    values = _stored(plan, base, recipes)
    missing = [one for one in wanted if one not in values]
    values |= _measured(plan, base, {one: recipes[one] for one in missing}, budget_s, on_progress, cancelled)
    return conclude(players, values, chosen, left_out, complete=all(one in values for one in wanted))


def _applicable(
    plan: engine.Plan, described: Description, names: Sequence[str] | None
) -> tuple[Recipe, dict[str, dict[str, Switched]], dict[str, str]]:
    target = engine.target(plan, described)
    sizes = presets.sizing(plan.preset, target, machine.usable_cores())
    base = Recipe(batch_size=plan.preset.batch_size)
    changes: dict[str, dict[str, Switched]] = {}
    left_out: dict[str, str] = {}
    for name in dict.fromkeys(names or LADDER[1:]):
        rung = optimization(name)
        stage = ladder.stage(rung, base, sizes, target)
        if stage.reason:
            left_out[name] = stage.reason
            continue
        changed = {switch: pair[0] for switch, pair in stage.recipe.diff(base).items()}
        if name != "batch_size":
            changed.pop("batch_size", None)  # its own player
        changes[name] = changed
    return base, changes, left_out


def _together(base: Recipe, names: Names, changes: Mapping[str, Mapping[str, Switched]]) -> Recipe:
    merged = {switch: value for name in changes if name in names for switch, value in changes[name].items()}
    return base.replace(**merged)


def _orders(players: Sequence[str], count: int, seed: int) -> list[tuple[str, ...]]:
    if len(players) <= EXACT_UP_TO:
        return list(itertools.permutations(players))
    shuffler, found = random.Random(seed), []
    for _ in range(max(1, count // 2)):
        one = tuple(shuffler.sample(players, len(players)))
        found += [one, one[::-1]]  # an order and its reverse: their errors partly cancel
    return found


def _sets(players: Sequence[str], orders: Sequence[Sequence[str]]) -> Iterator[Names]:
    """What to measure, the most telling first."""
    everything = frozenset(players)
    yield everything
    yield from (frozenset([name]) for name in players)
    yield from (everything - {name} for name in players)
    yield from (frozenset(players[:count]) for count in range(1, len(players)))
    for order in orders:
        yield from (frozenset(order[:count]) for count in range(1, len(order)))


def _stored(plan: engine.Plan, base: Recipe, recipes: Mapping[Names, Recipe]) -> dict[Names, Value]:
    """Values that an earlier call measured on this machine, in turn with the same baseline."""
    machine_id = machine.facts()["id"]
    known: dict[str, Value] = {}
    runs = {run.id: run for run in RunStore().list(limit=2000, workload=plan.workload)}
    for run in runs.values():
        alike = (run.preset, run.device, run.seed) == (plan.preset.name, plan.device, plan.seed)
        if run.status == "ok" and alike and run.machine.get("id") == machine_id:
            for pairing in run.pairings:
                other = runs.get(pairing.against)
                if pairing.role == "baseline" and other and Recipe.from_dict(other.recipe) == base:
                    known.setdefault(Recipe.from_dict(run.recipe).digest(), _value(pairing.ratio))
    return {one: known[r.digest()] for one, r in recipes.items() if r.digest() in known}


def _measured(
    plan: engine.Plan, base: Recipe, recipes: Mapping[Names, Recipe], budget_s: float,
    on_progress: Callable[[engine.Progress], None], cancelled: threading.Event | None,
) -> dict[Names, Value]:  # fmt: skip
    if not recipes:
        return {}
    stop = cancelled or threading.Event()
    timer = threading.Timer(budget_s, stop.set)
    by_digest = {recipe.digest(): recipe for recipe in recipes.values()}
    asked = tuple((recipe.describe()[:60], recipe) for recipe in by_digest.values())
    timer.start()
    try:
        runs = engine.climb(
            replace(plan, recipes=(("baseline", base), *asked), only_first=True),
            RunStore(),
            on_progress,
            stop,
        )
    finally:
        timer.cancel()
    found = {
        Recipe.from_dict(run.recipe).digest(): _value(ratio)
        for run in runs
        if run.status == "ok" and (ratio := run.speedup("baseline"))
    }
    return {one: found[r.digest()] for one, r in recipes.items() if r.digest() in found}


def _value(ratio: Ratio) -> Value:
    return math.log(ratio.ratio), math.log(ratio.high / ratio.low) / 2 / 1.96


def conclude(
    players: Sequence[str],
    values: Mapping[Names, Value],
    orders: Sequence[Sequence[str]],
    left_out: Mapping[str, str] | None = None,
    complete: bool = True,
) -> Attribution:
    """What follows from measured sets.

    Args:
        players: the optimizations, in the order of the ladder.
        values: by set; sets may be missing.
        orders: those that the Shapley values are averaged over, as far as their sets were measured.
        left_out: optimizations that could not act, and why.
        complete: whether all that was planned was measured.
    """
    known = {frozenset[str](): 0.0, **{one: value for one, (value, _) in values.items()}}
    whole = frozenset(players)
    usable = [
        order for order in orders if all(frozenset(order[:n]) in known for n in range(1, len(order) + 1))
    ]
    exact = len(usable) == math.factorial(len(players))
    effects = []
    for at, name in enumerate(players):
        mean, error = _shapley(name, usable, values, known, exact)
        spread = (None, None) if mean is None else (_ratio(mean - error), _ratio(mean + error))
        effects.append(
            Effect(
                name=name, title=OPTIMIZATIONS[name].title if name in OPTIMIZATIONS else name,
                alone=_ratio(_gain(known, frozenset(), name)),
                last=_ratio(_gain(known, whole - {name}, name)),
                stepwise=_ratio(_gain(known, frozenset(players[:at]), name)),
                shapley=_ratio(mean), low=spread[0], high=spread[1],
            )
        )  # fmt: skip
    pairs = [
        Interaction(a=a, b=b, factor=math.exp(both - known[frozenset([a])] - known[frozenset([b])]))
        for a, b in itertools.combinations(players, 2)
        if (both := known.get(frozenset([a, b]))) is not None
        and frozenset([a]) in known and frozenset([b]) in known
    ]  # fmt: skip
    return Attribution(
        effects=effects, interactions=sorted(pairs, key=lambda pair: -abs(math.log(pair.factor))),
        whole=_ratio(known.get(whole)), sets=len(values), orders=len(usable), exact=exact, complete=complete,
        left_out=dict(left_out or {}),
    )  # fmt: skip


def _shapley(
    name: str, orders: Sequence[Sequence[str]], values: Mapping[Names, Value], known: Mapping[Names, float],
    exact: bool,
) -> tuple[float | None, float]:  # fmt: skip
    """The mean gain over the orders, and half its 95% interval."""
    gains, weights = [], dict[Names, float]()
    for order in orders:
        before = frozenset(order[: order.index(name)])
        gains.append(known[before | {name}] - known[before])
        for one, sign in ((before | {name}, 1), (before, -1)):
            weights[one] = weights.get(one, 0.0) + sign / len(orders)
    if not gains:
        return None, 0.0
    variance = sum((weight * values[one][1]) ** 2 for one, weight in weights.items() if one in values)
    if not exact and len(gains) > 1:
        variance += statistics.variance(gains) / len(gains)
    return statistics.fmean(gains), 1.96 * math.sqrt(variance)


def _gain(known: Mapping[Names, float], before: Names, name: str) -> float | None:
    after = known.get(before | {name})
    return None if after is None or before not in known else after - known[before]


def _ratio(log: float | None) -> float | None:
    return None if log is None else math.exp(log)
