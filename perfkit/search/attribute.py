"""What each optimization is worth: alone, combined with others, and on average over all orders.

The value of a set of optimizations is the logarithm of its speed over the baseline's, interleaved with it. An
optimization's Shapley value is its mean gain over all orders in which the set can be put together (Shapley
1953): the values add up to the whole gain. With few optimizations every set is measured; with many, random
orders are. The interval covers both errors: of the measurements, and of the choice of orders.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Unpack

from perfkit import machine
from perfkit.errors import InvalidValue
from perfkit.ladder import stages as ladder
from perfkit.ladder.catalogue import LADDER, OPTIMIZATIONS, optimization
from perfkit.recipe import Recipe
from perfkit.recipe import Value as SwitchValue
from perfkit.results.run import Run
from perfkit.results.simulated import refuse
from perfkit.results.store import RunStore
from perfkit.rules import applicable
from perfkit.search.attribution import Attribution, Effect, Interaction
from perfkit.studies.engine import Schedule, Trial, has_verdicts, measure
from perfkit.studies.ladder import recipe_stages
from perfkit.studies.plan import Plan, Watch
from perfkit.studies.setup import Setup, prepare

_TOGETHER = 4
"""Sets that are measured in the same rounds, beside the baseline."""
EXACT_UP_TO = 4
"""Optimizations of which every set is measured: 16 sets."""
Names = frozenset[str]
Value = tuple[float, float]
"""Logarithm of the speed over the baseline's, and its standard error."""


def attribute(
    plan: Plan,
    names: Sequence[str] | None = None,
    budget_s: float = 600.0,
    orders: int = 6,
    **watch: Unpack[Watch],
) -> Attribution:
    """Measures sets of optimizations; what the store has of this plan already is not measured again.

    Args:
        plan: workload, preset, device, seed.
        names: optimizations; those of the default ladder that can act here if None.
        budget_s: seconds after which no further set starts.
        orders: random orders for the Shapley values, where not every set is measured.
        watch: `on_progress` and `cancelled`.

    Raises:
        InvalidValue: an unknown optimization, or fewer than two that can act here.
    """
    refuse(plan.device, "attribution", "the model's errors of combined optimizations are not known")
    ends = time.monotonic() + budget_s
    base = Recipe(batch_size=plan.preset.batch_size)
    with prepare(plan, **watch) as setup:
        changes, left_out = _changes(setup, base, names)
        if len(changes) < 2:
            raise InvalidValue(
                f"{len(changes)} of these optimizations can act here: {left_out}",
                "Name at least two that can",
            )
        players = tuple(changes)
        chosen = _orders(players, orders, plan.seed)
        recipes = {
            names: applicable(_together(base, names, changes), setup.target)[0]
            for names in dict.fromkeys(_sets(players, chosen))
        }
        values = _stored(plan, base)
        missing = [recipe for recipe in dict.fromkeys(recipes.values()) if recipe not in values]
        preset = setup.plan.preset
        schedule = Schedule(preset, together=_TOGETHER, again=has_verdicts(preset))
        for run in measure(_trials(setup, base, missing, ends), setup, schedule, RunStore()):
            values |= _value(run)
    recipes[frozenset()] = base  # measured again at the end: what the sets are compared with
    measured = {names: values[recipe] for names, recipe in recipes.items() if recipe in values}
    return conclude(
        players, measured, chosen, left_out, complete=all(names in measured for names in recipes if names)
    )


def _trials(setup: Setup, base: Recipe, recipes: Sequence[Recipe], ends: float) -> Iterator[Trial]:
    """The baseline, then every recipe until the budget is spent; nothing where nothing is to be measured."""
    titled = [("baseline", base), *((recipe.describe()[:60], recipe) for recipe in recipes)]
    for stage in recipe_stages(titled, setup.target) if recipes else ():
        if time.monotonic() > ends:
            return
        yield Trial(stage, len(titled))


def _changes(
    setup: Setup, base: Recipe, names: Sequence[str] | None
) -> tuple[dict[str, dict[str, SwitchValue]], dict[str, str]]:
    """What each optimization changes on this machine; why the others cannot act."""
    changes: dict[str, dict[str, SwitchValue]] = {}
    left_out: dict[str, str] = {}
    for name in dict.fromkeys(names or LADDER[1:]):
        stage = ladder.stage(optimization(name), base, setup.sizes, setup.target)
        if stage.reason:
            left_out[name] = stage.reason
            continue
        changes[name] = {switch: value for switch, (value, _) in stage.recipe.diff(base).items()}
        if name != "batch_size":
            changes[name].pop("batch_size", None)  # an optimization of its own
    return changes, left_out


def _together(base: Recipe, names: Names, changes: Mapping[str, Mapping[str, SwitchValue]]) -> Recipe:
    merged = {switch: value for name in changes if name in names for switch, value in changes[name].items()}
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
    yield from (frozenset(players[:count]) for count in range(1, len(players)))
    for order in orders:
        yield from (frozenset(order[:count]) for count in range(1, len(order)))


def _stored(plan: Plan, base: Recipe) -> dict[Recipe, Value]:
    """Values that earlier calls measured on this machine, interleaved with the same baseline."""
    here = (plan.preset.name, plan.device, plan.seed, machine.facts()["id"])
    runs = {run.id: run for run in RunStore().runs(limit=2000, workload=plan.workload)}
    values: dict[Recipe, Value] = {}
    for run in runs.values():
        pairing = run.pairing("baseline")
        baseline = runs.get(pairing.against) if pairing else None
        alike = (run.preset, run.device, run.seed, run.machine.get("id")) == here
        if alike and baseline and Recipe.from_dict(baseline.recipe) == base:
            values = _value(run) | values  # the newest counts
    return values


def _value(run: Run) -> dict[Recipe, Value]:
    """The value of a run's recipe; nothing where it was not measured."""
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
        players: the optimizations, in the order of the ladder.
        values: by set; sets may be missing.
        orders: those that the Shapley values are averaged over, as far as their sets were measured.
        left_out: optimizations that could not act, and why.
        complete: whether all that was planned was measured.
    """
    nothing = frozenset[str]()
    logs = {nothing: 0.0, **{names: value for names, (value, _) in values.items()}}
    whole = frozenset(players)
    usable = [
        order for order in orders if all(frozenset(order[:n]) in logs for n in range(1, len(order) + 1))
    ]
    exact = len(usable) == math.factorial(len(players))
    effects = []
    for at, name in enumerate(players):
        mean, error = _shapley(name, usable, values, logs, exact)
        low, high = (None, None) if mean is None else (_ratio(mean - error), _ratio(mean + error))
        effects.append(
            Effect(
                name=name, title=OPTIMIZATIONS[name].title if name in OPTIMIZATIONS else name,
                alone=_ratio(_gain(logs, nothing, name)),
                last=_ratio(_gain(logs, whole - {name}, name)),
                stepwise=_ratio(_gain(logs, frozenset(players[:at]), name)),
                shapley=_ratio(mean), low=low, high=high,
            )
        )  # fmt: skip
    pairs = [
        Interaction(a=a, b=b, factor=math.exp(
            both + logs[nothing] - logs[frozenset([a])] - logs[frozenset([b])]
        ))
        for a, b in itertools.combinations(players, 2)
        if (both := logs.get(frozenset([a, b]))) is not None
        and frozenset([a]) in logs and frozenset([b]) in logs
    ]  # fmt: skip
    return Attribution(
        effects=effects, interactions=sorted(pairs, key=lambda pair: -abs(math.log(pair.factor))),
        whole=_ratio(logs[whole] - logs[nothing] if whole in logs else None),
        sets=sum(bool(names) for names in values), orders=len(usable), exact=exact, complete=complete,
        left_out=dict(left_out or {}),
    )  # fmt: skip


def _shapley(
    name: str, orders: Sequence[Sequence[str]], values: Mapping[Names, Value], logs: Mapping[Names, float],
    exact: bool,
) -> tuple[float | None, float]:  # fmt: skip
    """The mean gain over the orders, and half its 95% interval."""
    gains, weights = [], dict[Names, float]()
    for order in orders:
        before = frozenset(order[: order.index(name)])
        gains.append(logs[before | {name}] - logs[before])
        for names, sign in ((before | {name}, 1), (before, -1)):
            weights[names] = weights.get(names, 0.0) + sign / len(orders)
    if not gains:
        return None, 0.0
    variance = sum((weight * values[names][1]) ** 2 for names, weight in weights.items() if names in values)
    if not exact and len(gains) > 1:
        variance += statistics.variance(gains) / len(gains)
    return statistics.fmean(gains), 1.96 * math.sqrt(variance)


def _gain(logs: Mapping[Names, float], before: Names, name: str) -> float | None:
    after = logs.get(before | {name})
    return None if after is None or before not in logs else after - logs[before]


def _ratio(log: float | None) -> float | None:
    return None if log is None else math.exp(log)
