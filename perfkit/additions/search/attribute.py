"""What each optimization is worth, whatever their order: what it gives alone, and what all lose without it.

All of these recipes are measured in the same rounds. What all optimizations give together, over the product
of what each gives alone, is their interaction, which belongs to no single one.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from msgspec import Struct

from perfkit.errors import InvalidValue
from perfkit.ladder.catalogue import optimization
from perfkit.recipe import Recipe
from perfkit.results.stats import Estimate, Ratio
from perfkit.results.store import RunStore
from perfkit.show import units
from perfkit.show.document import Bullets, Col, Content, tabulate
from perfkit.studies import rungs
from perfkit.studies.sources import Plan, Progress

USUAL = ("data_loading", "uint8_copy", "channels_last", "compile")


class Effect(Struct, frozen=True):
    """What one optimization is worth: `alone` on the baseline, and `last`, on top of all the others."""

    name: str
    title: str
    alone: Estimate | None
    last: Estimate | None


class Attribution(Struct, frozen=True):
    """What each of some optimizations is worth, as ratios of speeds with their 95% intervals.

    `together` is all of them over the baseline, `interaction` that over the product of each alone. What could
    not be measured is None; `left_out` tells why. Other programs may have `disturbed` the rest.
    """

    effects: list[Effect]
    together: Estimate | None
    interaction: Estimate | None
    left_out: dict[str, str]
    disturbed: bool

    def sections(self) -> list[Content]:
        """What each optimization is worth, what all are together, and what is missing."""
        columns = (
            Col("optimization", "title"),
            Col("alone", "alone", _times),
            Col("after the others", "last", _times),
        )
        lines = [
            f"All together: {_times(self.together)}",
            f"Interaction (all together / the product of each alone): {_times(self.interaction)}",
            *(f"{name} is left out: {why}" for name, why in self.left_out.items()),
            *["Other programs disturbed it: close them, then run it again"] * self.disturbed,
        ]
        return [tabulate(columns, self.effects, "What each optimization is worth"), Bullets(lines)]


def attribute(
    plan: Plan,
    names: Sequence[str] | None = None,
    budget_s: float = 600.0,
    progress: Progress | None = None,
    store: RunStore | None = None,
) -> Attribution:
    """Measures two or more optimizations (None: `USUAL`): each alone, all together, and all but each.

    `budget_s` limits the time of the rounds. If a person stops it, what was measured until then counts.
    The `store` is that of `climb`.
    """
    source = rungs.described(plan, load=True)
    source.require("attribution")
    base, target = source.baseline(), source.target
    reasons = {name: rungs.stage_of(plan, target, name, base).reason for name in names or USUAL}
    left_out = {name: reason for name, reason in reasons.items() if reason}
    acting = [name for name, reason in reasons.items() if not reason]
    if len(acting) < 2:
        why = "".join(f"; {name}: {reason}" for name, reason in left_out.items())
        what = f"{len(acting)} of these optimizations can act here{why}"
        raise InvalidValue(what, "Name two or more that can")

    def recipe(members: Iterable[str]) -> Recipe:
        """The baseline with some optimizations."""
        built = base
        for name in members:
            built = rungs.stage_of(plan, target, name, built).recipe
            if name != "batch_size":  # an optimization by itself
                built = built.replace(batch_size=base.batch_size)
        return built

    alone = {name: recipe([name]) for name in acting}
    without = {name: recipe(other for other in acting if other != name) for name in acting}
    whole = recipe(acting)
    titles = {base: "baseline", whole: "all together"}
    titles |= {without[name]: f"all but {optimization(name).title}" for name in acting}
    titles |= {alone[name]: f"{optimization(name).title} alone" for name in acting}
    rule = replace(plan.rule, limit_s=min(plan.rule.limit_s, budget_s))
    titled = tuple((title, each) for each, title in titles.items())
    ratios = dict[Recipe, Ratio]()
    measured = rungs.climb(replace(plan, rule=rule).trying(recipes=titled), store, progress)
    for run in measured:
        if ratio := run.speedup("baseline"):
            ratios[Recipe.from_dict(run.recipe)] = ratio
        elif run.reason:
            left_out[run.title] = run.reason

    def worth(top: Recipe, *below: Recipe) -> Estimate | None:
        """The speed of a recipe over the product of others, all of them beside the baseline."""
        known = [ratios[each] for each in (top, *below) if each in ratios]
        return _quotient(*known) if len(known) == 1 + len(below) else None

    effects = [
        Effect(name, optimization(name).title, worth(alone[name]), worth(whole, without[name]))
        for name in acting
    ]
    disturbed = any(run.disturbed is not None for run in measured)
    return Attribution(effects, worth(whole), worth(whole, *alone.values()), left_out, disturbed)


def _quotient(top: Ratio, *below: Ratio) -> Estimate:
    """One ratio to the baseline over the product of others; half of each error is the baseline's, once."""
    centre = math.log(top.ratio) - sum(math.log(each.ratio) for each in below)
    halves = [math.log(each.high / each.low) / 2 for each in (top, *below)]
    of_baseline = (1 - len(below)) * max(halves)
    half = math.hypot(*halves, of_baseline) / math.sqrt(2)
    return Estimate(math.exp(centre), math.exp(centre - half), math.exp(centre + half))


def _times(ratio: Estimate | None) -> str:
    return units.interval(ratio, unit="×")
