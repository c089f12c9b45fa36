"""What each optimization is worth: alone, on top of the others, and on average over the orders.

The value of a set of optimizations is the logarithm of its speed over the baseline's, interleaved with it. An
optimization's Shapley value is its mean gain over all orders in which the set can be put together (Shapley
1953): the values add up to the whole gain. The interval covers the error of the measurements.
"""

import itertools
import math
import time
from collections.abc import Mapping, Sequence

from msgspec import Struct

from perfkit.errors import InvalidValue
from perfkit.ladder.catalogue import OPTIMIZATIONS
from perfkit.recipe import Recipe
from perfkit.results.store import RunStore
from perfkit.rules import applicable
from perfkit.studies import rungs
from perfkit.studies.progress import Progress
from perfkit.studies.sources import Plan, Source, opened

TOGETHER = 4
"""Sets that are measured in the same rounds, beside the baseline."""
MOST = 4
"""Optimizations: 15 sets."""
USUAL = ("data_loading", "uint8_copy", "channels_last", "compile")
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


class Attribution(Struct, frozen=True, kw_only=True):
    """What each of some optimizations is worth."""

    effects: list[Effect]
    together: float | None
    """All of them over the baseline."""
    sets: int
    """Sets that were measured."""
    complete: bool
    """Whether these are all."""
    left_out: dict[str, str]
    """Optimizations that cannot act, and why."""


def attribute(
    plan: Plan, names: Sequence[str] | None = None, budget_s: float = 600.0, progress: Progress | None = None
) -> Attribution:
    """Measures every set of some optimizations beside the baseline.

    Args:
        plan: workload, preset, device, seed.
        names: two to four optimizations; `USUAL` if None.
        budget_s: seconds after which no further sets are measured.
        progress: follows and stops it; what was measured until then counts.

    Raises:
        InvalidValue: an unknown optimization, or another number of them that can act here.
    """
    progress, ends = progress or Progress(), time.monotonic() + budget_s
    store, values = RunStore(), dict[Recipe, Value]()
    with opened(plan, progress, "attribution") as source:
        base = source.baseline()
        changes, left_out = _changes(source, base, names or USUAL)
        if not 2 <= len(changes) <= MOST:
            reasons = "".join(f"; {name}: {why}" for name, why in left_out.items())
            what = f"{len(changes)} of these optimizations can act here{reasons}"
            raise InvalidValue(what, f"Name two to {MOST} that can")
        recipes = {
            members: applicable(_merged(base, members, changes), source.target)[0]
            for members in _sets(tuple(changes))
        }
        distinct = list(dict.fromkeys(recipes.values()))
        batches = [distinct[at : at + TOGETHER] for at in range(0, len(distinct), TOGETHER)]
        for number, batch in enumerate(batches):
            if number and (time.monotonic() > ends or source.stopped):
                break
            titled = [("baseline", base), *((recipe.describe()[:60], recipe) for recipe in batch)]
            with progress.part(number, len(batches)):
                stages = rungs.recipe_stages(titled, source.target)
                for run in source.measure(stages, rungs.stop_rule(plan.preset))[number > 0 :]:
                    store.add(run)
                    progress.finish(run)
                    if ratio := run.speedup("baseline"):
                        error = math.log(ratio.high / ratio.low) / 2 / 1.96
                        values[Recipe.from_dict(run.recipe)] = math.log(ratio.ratio), error
    measured = {members: values[recipe] for members, recipe in recipes.items() if recipe in values}
    return conclude(tuple(changes), measured, left_out)


def _changes(
    source: Source, base: Recipe, names: Sequence[str]
) -> tuple[dict[str, dict[str, object]], dict[str, str]]:
    """What each optimization changes on this machine; why the others cannot act."""
    changes: dict[str, dict[str, object]] = {}
    left_out: dict[str, str] = {}
    for name in dict.fromkeys(names):
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


def _sets(players: Sequence[str]) -> list[Names]:
    """What to measure, the most informative first: all, each alone, all but one, the others."""
    count = len(players)
    sizes = dict.fromkeys([count, 1, count - 1, *range(1, count)])
    return [frozenset(members) for size in sizes for members in itertools.combinations(players, size)]


def conclude(
    players: Sequence[str], values: Mapping[Names, Value], left_out: Mapping[str, str] | None = None
) -> Attribution:
    """What follows from measured sets, of which some may be missing.

    Args:
        players: the optimizations.
        values: by set.
        left_out: optimizations that cannot act, and why.
    """
    nothing, everything = frozenset[str](), frozenset(players)
    known: dict[Names, Value] = {nothing: (0.0, 0.0), **values}
    effects = []
    for name in players:
        alone, last = (_gain(known, before, name) for before in (nothing, everything - {name}))
        mean, half = _shapley(name, players, known) or (None, 0.0)
        effect = Effect(
            name=name,
            title=OPTIMIZATIONS[name].title if name in OPTIMIZATIONS else name,
            alone=alone and math.exp(alone[0]),
            last=last and math.exp(last[0]),
            shapley=None if mean is None else math.exp(mean),
            low=None if mean is None else math.exp(mean - half),
            high=None if mean is None else math.exp(mean + half),
        )
        effects.append(effect)
    return Attribution(
        effects=effects,
        together=math.exp(known[everything][0]) if everything in known else None,
        sets=len(values),
        complete=len(values) == 2 ** len(players) - 1,
        left_out=dict(left_out or {}),
    )


def _shapley(name: str, players: Sequence[str], values: Mapping[Names, Value]) -> Value | None:
    """The mean gain over all orders, and half its 95% interval; logarithms."""
    others = [player for player in players if player != name]
    mean = variance = 0.0
    for size in range(len(players)):
        weight = 1 / (len(players) * math.comb(len(others), size))
        for members in itertools.combinations(others, size):
            gain = _gain(values, frozenset(members), name)
            if gain is None:
                return None
            mean += weight * gain[0]
            variance += (weight * gain[1]) ** 2
    return mean, 1.96 * math.sqrt(variance)


def _gain(values: Mapping[Names, Value], before: Names, name: str) -> Value | None:
    """What an optimization adds to a set: logarithm and standard error; None if a set was not measured."""
    after = before | {name}
    if not {before, after} <= values.keys():
        return None
    return values[after][0] - values[before][0], math.hypot(values[after][1], values[before][1])
