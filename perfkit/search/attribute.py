"""What each optimization is worth: alone, on top of the others, and on average over the orders.

The value of a set of optimizations is the logarithm of its speed over the baseline's, interleaved with it. An
optimization's Shapley value is its mean gain over all orders in which the set can be put together (Shapley
1953): the values add up to the whole gain. The interval covers the error of the measurements.
"""

import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from perfkit.errors import InvalidValue
from perfkit.ladder.catalogue import OPTIMIZATIONS
from perfkit.recipe import Recipe
from perfkit.results.stats import Estimate
from perfkit.results.store import RunStore
from perfkit.rules import applicable
from perfkit.search.tune import measure
from perfkit.show import units
from perfkit.show.document import Bullets, Col, Content, tabulate
from perfkit.studies import rungs
from perfkit.studies.sources import Plan, Progress, opened

MOST = 4
"""Optimizations: 15 sets."""
USUAL = ("data_loading", "uint8_copy", "channels_last", "compile")
Names = frozenset[str]
Value = tuple[float, float]
"""Logarithm of the speed over the baseline's, and its standard error."""


class Effect(Struct, frozen=True, kw_only=True):
    """What one optimization is worth, as ratios of speeds; None if the sets it needs were not measured.

    It is `alone` on the baseline, `last` on top of all the others; low and high end a 95% interval.
    """

    name: str
    title: str
    alone: float | None
    last: float | None
    shapley: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def mean(self) -> Estimate | None:
        """The Shapley value with its interval."""
        if self.shapley is None or self.low is None or self.high is None:
            return None
        return Estimate(self.shapley, self.low, self.high)


class Attribution(Struct, frozen=True, kw_only=True):
    """What each of some optimizations is worth, all together, and which cannot act.

    `complete` tells whether the sets that were measured are all.
    """

    effects: list[Effect]
    together: float | None
    sets: int
    complete: bool
    left_out: dict[str, str]

    def sections(self) -> list[Content]:
        """What each optimization is worth, and what is missing."""
        columns = (
            Col("optimization", "title"),
            Col("alone", "alone", units.times),
            Col("after the others", "last", units.times),
            Col("mean over orders", "mean", lambda mean: units.interval(mean, unit="×")),
        )
        notes = [f"{name} is left out: {why}" for name, why in self.left_out.items()]
        if not self.complete:
            notes.append("The time was not enough for all sets: raise the budget for the rest.")
        table = tabulate(columns, self.effects, "What each optimization is worth")
        return [table, *([Bullets(notes)] if notes else [])]


def attribute(
    plan: Plan, names: Sequence[str] | None = None, budget_s: float = 600.0, progress: Progress | None = None
) -> Attribution:
    """Measures every set of two to four optimizations (None: `USUAL`) beside the baseline, the largest first.

    The first sets are measured in any case; what was measured until it is stopped counts.
    """
    progress, until = progress or Progress(), time.monotonic() + budget_s
    with opened(plan, progress, "attribution") as source:
        base, changes, left_out = source.baseline(), dict[str, dict[str, object]](), dict[str, str]()
        for name in dict.fromkeys(names or USUAL):
            stage = rungs.rung(plan, source.target, name, base)
            if stage.reason:
                left_out[name] = stage.reason
                continue
            changes[name] = {switch: value for switch, (value, _) in stage.recipe.diff(base).items()}
            if name != "batch_size":
                changes[name].pop("batch_size", None)  # an optimization by itself
        if not 2 <= len(changes) <= MOST:
            reasons = "".join(f"; {name}: {why}" for name, why in left_out.items())
            what = f"{len(changes)} of these optimizations can act here{reasons}"
            raise InvalidValue(what, f"Name two to {MOST} that can")
        recipes: dict[Names, Recipe] = {}
        for members in reversed(_subsets(changes)[1:]):
            merged = {
                key: value for name in changes if name in members for key, value in changes[name].items()
            }
            recipes[members] = applicable(base.replace(**merged), source.target)[0]
        distinct = list(dict.fromkeys(recipes.values()))
        values, store = dict[Recipe, Value](), RunStore()
        for run in measure(source, base, distinct, rungs.stop_rule(plan), until).values():
            store.add(run)
            if ratio := run.speedup("baseline"):
                error = math.log(ratio.high / ratio.low) / 2 / 1.96
                values[Recipe.from_dict(run.recipe)] = math.log(ratio.ratio), error
    measured = {members: values[recipe] for members, recipe in recipes.items() if recipe in values}
    return conclude(tuple(changes), measured, left_out)


def _subsets(names: Iterable[str]) -> list[Names]:
    """Every set of some names, the empty one first."""
    every = list(names)
    sizes = range(len(every) + 1)
    return [frozenset(some) for size in sizes for some in itertools.combinations(every, size)]


def conclude(
    players: Sequence[str], values: Mapping[Names, Value], left_out: Mapping[str, str] | None = None
) -> Attribution:
    """What follows from the values of measured sets of optimizations, of which some may be missing."""
    everything = frozenset(players)
    known: dict[Names, Value] = {frozenset(): (0.0, 0.0), **values}
    return Attribution(
        effects=[_effect(name, everything - {name}, known) for name in players],
        together=math.exp(known[everything][0]) if everything in known else None,
        sets=len(values),
        complete=len(values) == 2 ** len(players) - 1,
        left_out=dict(left_out or {}),
    )


def _effect(name: str, others: Names, known: Mapping[Names, Value]) -> Effect:
    """What one optimization adds to each set of the others, as far as both were measured, and on average."""
    gains: dict[Names, Value] = {}
    for before in _subsets(others):
        if before in known and before | {name} in known:
            without, with_it = known[before], known[before | {name}]
            gains[before] = with_it[0] - without[0], math.hypot(with_it[1], without[1])
    alone, last = (math.exp(gains[each][0]) if each in gains else None for each in (frozenset(), others))
    mean: dict[str, float] = {}
    if len(gains) == 2 ** len(others):
        # A set of this size stands before it in so many of all orders.
        shares = {each: 1 / math.comb(len(others), len(each)) / (len(others) + 1) for each in gains}
        middle = sum(shares[each] * gain for each, (gain, _) in gains.items())
        half = 1.96 * math.hypot(*(shares[each] * error for each, (_, error) in gains.items()))
        ends = {"shapley": middle, "low": middle - half, "high": middle + half}
        mean = {key: math.exp(value) for key, value in ends.items()}
    title = OPTIMIZATIONS[name].title if name in OPTIMIZATIONS else name
    return Effect(name=name, title=title, alone=alone, last=last, **mean)
