"""The recipe with the most samples/s within a memory cap, and whether it trains the same.

One group of switches is searched after the other, on top of the best recipe so far: workers together with the
batch size, as they depend on each other, then every other switch. All combinations of a group are measured
beside the baseline, for a few rounds. The best recipe is then measured afresh, for longer, and compared with
the plain program in parity.
"""

import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from msgspec import Struct, structs

from perfkit.additions.parity import study
from perfkit.errors import Cancelled, InvalidValue, PerfkitError
from perfkit.ladder.catalogue import StopRule
from perfkit.machine import cores
from perfkit.recipe import Recipe, Value
from perfkit.results.parity import Parity
from perfkit.results.run import Run
from perfkit.results.stats import Ratio
from perfkit.results.store import RunStore, keep
from perfkit.rules import Target, applicable
from perfkit.show import sentences, units
from perfkit.show.document import Bullets, Col, Content, tabulate
from perfkit.studies import rungs
from perfkit.studies.sources import Plan, Progress, Source, opened

SPACE: dict[str, tuple[Value, ...]] = {
    "workers": (0, 1, 2, 4, 8),
    "batch_size": (16, 32, 64, 128),
    "uint8_copy": (False, True),
    "channels_last": (False, True),
    "amp": ("off", "bf16", "fp16"),
    "compile": (False, True),
    "cpu_threads": (0, 1),
    "prefetch_factor": (2, 4),
}
"""The default space; values that cannot act here are left out."""
FIRST = ("workers", "batch_size")
"""Switches that are searched together."""
ROUNDS = 5
"""Rounds of a recipe in its group."""
SEARCHING = 0.7
"""After this part of the budget no further recipe starts: the best one is still to be measured afresh, for a
tenth of the budget at most, and its parity checked."""
TOGETHER = 4
"""Recipes that are measured in the same rounds, beside the baseline."""


class Tuned(Struct, frozen=True, kw_only=True):
    """What was tried, in the order of time, and the recipe that was picked, also in words.

    Its gain is that over the baseline, interleaved with it. The notes tell what was not tried, and what went
    wrong without ending the search.
    """

    best: Run
    settings: str
    gain: Ratio | None
    parity: Parity | None
    tried: Sequence[Run]
    cap_bytes: int | None
    seconds: float
    notes: Sequence[str] = ()

    def sections(self) -> list[Content]:
        """What was picked, and the last run of every recipe that was tried, the fastest first."""
        picked = f"{self.settings}: {units.interval(self.best.samples_per_s)} samples/s"
        lines = [f"{picked}; {len(self.tried)} runs in {self.seconds:.0f} s"]
        if self.gain:
            lines.append(f"Beside the baseline: {sentences.result(self.gain)}")
        if self.parity:
            lines.append(f"Parity: {self.parity.describe().removeprefix(f'{self.parity.title}: ')}")
        columns = (
            Col("recipe", "title"),
            Col("picked", lambda run: "✓" * (run.id == self.best.id)),
            Col("samples/s", "samples_per_s", units.interval),
            Col("peak memory", lambda run: run.peak_memory_bytes or None, units.size),
        )
        runs = sorted(_newest(self.tried).values(), key=_speedup, reverse=True)
        return [Bullets([*lines, *self.notes]), tabulate(columns, runs, "Tried")]


def tune(
    plan: Plan,
    space: Mapping[str, Sequence[Value]] | None = None,
    memory_cap_bytes: int | None = None,
    budget_s: float = 600.0,
    progress: Progress | None = None,
    store: RunStore | None = None,
) -> Tuned:
    """Searches a space: values by switch (None: `SPACE`). Runs above the memory cap are not picked.

    `budget_s`: seconds of it all. The first recipes come in any case; so does the best one, which is measured
    afresh, for twice the rounds, and checked for parity. The `store` is that of `climb`.
    """
    progress, space, started = progress or Progress(), space or SPACE, time.monotonic()
    short, long = (
        replace(plan.rule, rounds=ROUNDS, budget_s=0.0, cached=0),
        replace(
            plan.rule,
            rounds=2 * plan.rule.rounds,
            budget_s=max(0.0, min(plan.rule.budget_s, budget_s / 10)),
        ),
    )
    groups = [[name for name in FIRST if name in space], *([name] for name in space if name not in FIRST)]
    tried, left, parity, notes = dict[str, Run](), list[str](), None, list[str]()
    with opened(plan, progress, "tuning", store) as source:
        base = best = source.baseline()
        try:
            for number, group in enumerate(groups):
                if source.stopped or (tried and time.monotonic() > started + SEARCHING * budget_s):
                    left += group
                    continue
                recipes = _candidates(best, space, group, source.target)
                with progress.part(number, len(groups) + 1):
                    _measure(source, recipes, short, started + SEARCHING * budget_s, tried)
                best = _fastest([base, best, *recipes], tried, memory_cap_bytes)
            if best != base and not source.stopped:
                with progress.part(len(groups), len(groups) + 1):
                    _measure(source, [best], long, math.inf, tried)
                best = _fastest([base, best], tried, memory_cap_bytes)
        finally:
            keep(store, *tried.values())
        if base not in _newest(tried.values()):
            if source.stopped:
                raise Cancelled("stopped before anything was measured")
            raise InvalidValue("nothing could be measured", "See `perfkit run` for what goes wrong")
        run = _newest(tried.values(), memory_cap_bytes).get(best)
        if run is None:
            what = "nothing that was measured fits under the memory cap"
            raise InvalidValue(what, "Raise it, or allow smaller batches")
        if left and not source.stopped:
            notes.append(f"No time was left to try {', '.join(left)}: raise the budget")
    if source.stopped:
        notes.append("Stopped before its end: parity was not checked")
    elif best != base:
        try:
            parity = study.parity(plan, run.title, best, progress=progress)
        except PerfkitError as problem:
            notes.append(f"Whether it trains the same could not be checked: {problem}")
    return Tuned(
        best=run,
        settings="the baseline" if best == base else best.describe(base),
        gain=run.speedup("baseline"),
        parity=parity,
        tried=list(tried.values()),
        cap_bytes=memory_cap_bytes,
        seconds=time.monotonic() - started,
        notes=notes,
    )


def _measure(
    source: Source, recipes: Sequence[Recipe], rule: StopRule, until: float, tried: dict[str, Run]
) -> None:
    """Measures recipes beside the baseline, the first in any case; `tried` gets the runs that succeed, by id.

    The baseline's run is the first one: the rates of all others are relative to that.
    """
    base = source.baseline()
    others = [recipe for recipe in recipes if recipe != base]
    for at in range(0, len(others), TOGETHER):
        if source.stopped or (at and time.monotonic() > until):
            return
        titled = [(recipe.describe(base)[:120], recipe) for recipe in others[at : at + TOGETHER]]
        stages = rungs.recipe_stages([("baseline", base), *titled], source.target)
        runs = source.measure(stages, rule)
        rate = next(iter(tried.values()), runs[0]).samples_per_s
        for measured in runs:
            run = structs.replace(measured, reference_samples_per_s=rate.value if rate else None)
            source.progress.finish(run)
            if run.status == "ok" and (run.pairings or run.id not in tried):
                tried[run.id] = run


def _fastest(recipes: Sequence[Recipe], tried: Mapping[str, Run], cap_bytes: int | None) -> Recipe:
    """The fastest of some recipes below the memory cap; the first one if none is."""
    fitting = _newest(tried.values(), cap_bytes)
    known = [recipe for recipe in recipes if recipe in fitting]
    return max(known, key=lambda recipe: _speedup(fitting[recipe]), default=recipes[0])


def _candidates(
    best: Recipe, space: Mapping[str, Sequence[Value]], group: Sequence[str], target: Target
) -> list[Recipe]:
    """The best recipe until now with every combination of a group's values that can act here."""
    recipes: list[Recipe] = []
    for values in itertools.product(*(space[name] for name in group)):
        settings = dict(zip(group, values, strict=True))
        if int(str(settings.get("workers", 0))) > 2 * cores.usable_cores():
            continue
        if settings.get("workers") and target.device == "cuda":
            settings = {"pin_memory": True, "non_blocking": True, **settings}
        recipe, refused = applicable(best.replace(**settings), target)
        if not set(refused) & set(group):
            recipes.append(recipe)
    return list(dict.fromkeys(recipes))


def _newest(runs: Iterable[Run], cap_bytes: int | None = None) -> dict[Recipe, Run]:
    """The last run of each recipe, if it stayed below the memory cap."""
    newest = {Recipe.from_dict(run.recipe): run for run in runs}
    most = math.inf if cap_bytes is None else cap_bytes
    return {recipe: run for recipe, run in newest.items() if (run.peak_memory_bytes or 0) <= most}


def _speedup(run: Run) -> float:
    """How many times as fast as the baseline."""
    ratio = run.speedup("baseline")
    return ratio.ratio if ratio else 1.0
