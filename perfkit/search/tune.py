"""The recipe with the most samples/s, within a memory cap and parity: predicted first, then measured.

One short run for each single switch of the computation and of the data path measures the parts; the what-if
model ranks every combination of them; the best are measured, the better ones of them again, and the last few
for longer. All are interleaved with the baseline, which cancels the machine's drift. Only what was measured
is picked.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Unpack

from perfkit import machine
from perfkit.errors import Cancelled, InvalidValue
from perfkit.ladder.stages import AGAIN
from perfkit.recipe import Recipe, Value
from perfkit.results.parity import Parity
from perfkit.results.run import Run
from perfkit.results.simulated import refuse
from perfkit.results.store import RunStore
from perfkit.rules import Target, applicable
from perfkit.scripts import study as scripts
from perfkit.search import predict
from perfkit.search.tuning import Score, Tuned
from perfkit.studies.engine import Schedule, Trial, has_verdicts, measure
from perfkit.studies.ladder import recipe_stages
from perfkit.studies.parity import parity
from perfkit.studies.plan import Plan, Watch
from perfkit.studies.setup import Setup, prepare

SPACE: dict[str, tuple[Value, ...]] = {
    "batch_size": (16, 32, 64, 128), "workers": (0, 1, 2, 4, 8), "amp": ("off", "bf16", "fp16"),
    "channels_last": (False, True), "compile": (False, True), "uint8_copy": (False, True),
    "cpu_threads": (0, 1), "prefetch_factor": (2, 4),
}  # fmt: skip
"""The default space; values that cannot act here are left out."""

MODELLED = (*predict.COMPUTE, *predict.DATA, "workers", "batch_size")
"""What the predictions depend on; the other switches of a space are tried on the best of these."""
ROUNDS = 4
"""Of a short run."""
_FINAL_ROUNDS = 2
"""Of the finals, times those of the preset: the finalists are close together."""
_SHORT_LIST = 6
_FINALISTS = 2


def tune(
    plan: Plan,
    space: Mapping[str, Sequence[Value]] | None = None,
    memory_cap_bytes: int | None = None,
    budget_s: float = 600.0,
    **watch: Unpack[Watch],
) -> Tuned:
    """Searches a space of switches.

    Args:
        plan: workload, preset, device, seed.
        space: values by switch; `SPACE` if None, of a script `scripts.space`.
        memory_cap_bytes: runs above it are not picked.
        budget_s: seconds after which no further recipe starts.
        watch: `on_progress` and `cancelled`.

    Raises:
        Cancelled: before the finals started.
        InvalidValue: an unknown switch or value, or nothing could be measured.
    """
    refuse(plan.device, "tuning", "the winner of a prediction may be its largest error")
    started = time.monotonic()
    with prepare(plan, **watch) as setup:
        usual = scripts.space(setup.target.own) if plan.launch else SPACE
        recipes = candidates(
            plan, setup.target, {**usual, **(space or {})} if plan.launch else space or usual
        )
        search = _Search(setup, recipes, memory_cap_bytes, started + budget_s)
        preset = plan.preset
        short = replace(preset, rounds=ROUNDS, loss_steps=2, warmup_s=preset.warmup_s / 2)
        search.measure(search.short_trials(), Schedule(short, together=1))
        if setup.cancelled.is_set():
            raise Cancelled("stopped on request")
        finals = search.finals()
    best = max(finals, key=search.speedup)
    settings = best.title if plan.launch else Recipe.from_dict(best.recipe).describe()
    return Tuned(
        best=best, settings=settings, gain=best.speedup("baseline"),
        parity=_proof(plan, finals[0], best), tried=search.tried, considered=len(recipes),
        over_memory=[run for run in search.tried if not search.fits(run)], cap_bytes=memory_cap_bytes,
        score=search.score(), seconds=time.monotonic() - started,
    )  # fmt: skip


def candidates(plan: Plan, target: Target, space: Mapping[str, Sequence[Value]]) -> list[Recipe]:
    """Every combination that can act here, each once.

    Raises:
        InvalidValue: an unknown switch or a value that is not allowed.
    """
    base, recipes = _base(plan, target), list[Recipe]()
    limit = 2 * machine.usable_cores()
    for values in itertools.product(*space.values()):
        settings = dict(zip(space, values, strict=True))
        workers = int(settings.get("workers", 0))
        if workers > limit:
            continue
        if workers > 0 and target.device == "cuda":
            settings = {"pin_memory": True, "non_blocking": True, **settings}
        recipe, refused = applicable(base.replace(**settings), target)
        if not set(refused) & set(space):
            recipes.append(recipe)
    return list(dict.fromkeys(recipes))


def probes(base: Recipe, recipes: Sequence[Recipe]) -> list[Recipe]:
    """The fewest runs that measure every part: each switch by itself, workers with the extreme batch sizes.

    The latter also measure the computation at these batch sizes, and the cost of workers with each.
    """
    chosen = [
        base.replace(**{name: value})
        for name in dict.fromkeys((*predict.COMPUTE, *predict.DATA))
        for value in dict.fromkeys(getattr(recipe, name) for recipe in recipes)
    ]
    sizes = sorted({recipe.batch_size for recipe in recipes})
    most = max(recipes, key=lambda recipe: recipe.workers, default=base).workers
    loaders = {recipe.workers: recipe for recipe in reversed(recipes) if recipe.workers in (1, 2, 4, most)}
    loader_switches = ("workers", "pin_memory", "non_blocking")
    for size, loader in itertools.product((*sizes[:1], *sizes[-1:]), loaders.values()):
        settings = {name: getattr(loader, name) for name in loader_switches}
        chosen.append(base.replace(batch_size=size, **settings))
    return [recipe for recipe in dict.fromkeys(chosen) if recipe != base]


@dataclass
class _Search:
    """Draws trials by the results so far: the parts first, then what the model ranks highest."""

    setup: Setup
    recipes: Sequence[Recipe]
    cap_bytes: int | None
    ends: float
    tried: list[Run] = field(default_factory=list)
    _kept: list[Recipe] = field(default_factory=list)
    _model: predict.Model | None = None
    _fitted: int = 0
    """How many of the runs the model was fitted to."""

    @property
    def base(self) -> Recipe:
        """The recipe that all others are interleaved with."""
        return _base(self.setup.plan, self.setup.target)

    def finals(self) -> list[Run]:
        """Measures the finalists for as long as the preset asks, and longer.

        Raises:
            InvalidValue: nothing was measured, or nothing that fits.
        """
        if not self.tried:
            raise InvalidValue("nothing could be measured", "See `perfkit run` for what goes wrong")
        finalists = self._best(self._kept, _FINALISTS) or self._best([*self._rates()], _FINALISTS)
        preset = self.setup.plan.preset
        preset = replace(preset, rounds=_FINAL_ROUNDS * preset.rounds)
        recipes = dict.fromkeys([self.base, *finalists]) if finalists else ()
        trials = self._trials([*recipes], ends=math.inf)
        schedule = Schedule(preset, again=has_verdicts(preset))
        runs = [run for run in self.measure(trials, schedule) if self.fits(run)]
        if not runs:
            raise InvalidValue(
                "nothing that was measured fits under the memory cap", "Raise it, or allow smaller batches"
            )
        return runs

    def speedup(self, run: Run) -> float:
        """How many times as fast as the baseline its recipe was: median of all rounds of all its runs."""
        alike = [one.pairing("baseline") for one in self.tried if one.recipe == run.recipe]
        ratios = [ratio for pairing in alike if pairing for ratio in pairing.round_ratios]
        return statistics.median(ratios) if ratios else 1.0

    def fits(self, run: Run) -> bool:
        """Whether it stayed below the memory cap."""
        return self.cap_bytes is None or (run.peak_memory_bytes or 0) <= self.cap_bytes

    def score(self) -> Score | None:
        """The model's predictions of the runs that it was not fitted to."""
        if self._model is None:
            return None
        rates = predict.drift_corrected_rates(self.tried)
        return predict.score(self._model, self.tried[self._fitted :], rates)

    def measure(self, trials: Iterator[Trial], schedule: Schedule) -> list[Run]:
        """The runs of those trials that could be measured."""
        runs = []
        for run in measure(trials, self.setup, schedule, RunStore()):
            if run.status == "ok" and run.stage != AGAIN:
                runs.append(run)
                self.tried.append(run)
        return runs

    def _trials(self, recipes: Sequence[Recipe], ends: float, later: int = 0) -> Iterator[Trial]:
        """A trial of each recipe until the budget is spent, at least one; `later` may follow them."""
        before = self.setup.progress.finished
        plain = self.base if self.setup.plan.launch else Recipe()
        titled = [(recipe.describe(plain)[:120], recipe) for recipe in recipes]
        for number, stage in enumerate(recipe_stages(titled, self.setup.target), before):
            if number > 0 and time.monotonic() > ends:
                return
            yield Trial(stage, before + len(recipes) + later)

    def short_trials(self) -> Iterator[Trial]:
        """The parts, the short list, variants, and the best of these again, until the budget is spent."""
        finals = _FINALISTS + 1
        parts = [self.base, *probes(self.base, self.recipes)]
        yield from self._trials(parts, self.ends, later=_SHORT_LIST + finals)
        if time.monotonic() > self.ends or not self.tried:
            return
        model = self._model = predict.fit(self.tried)
        self._fitted = len(self.tried)
        distinct: dict[predict.SwitchKey, Recipe] = {}
        for recipe in self.recipes:
            distinct.setdefault(_modelled(recipe), recipe)
        ranked = sorted(distinct.values(), key=lambda recipe: -_predicted(model, recipe))
        self._kept = ranked[: max(_SHORT_LIST, len(self.recipes) // 12)]
        yield from self._trials(self._unmeasured(self._kept), self.ends, later=finals)
        best = {_modelled(recipe) for recipe in self._best(self._kept, 1)}
        variants = self._unmeasured([recipe for recipe in self.recipes if _modelled(recipe) in best])[:4]
        self._kept += variants
        yield from self._trials(variants, self.ends, later=finals)
        while len(self._kept) > _FINALISTS:
            self._kept = self._best(self._kept, max(_FINALISTS, len(self._kept) // 3))
            if len(self._kept) > _FINALISTS:
                yield from self._trials(self._kept, self.ends, later=finals)

    def _unmeasured(self, recipes: Sequence[Recipe]) -> list[Recipe]:
        measured = self._rates()
        return [recipe for recipe in recipes if recipe not in measured]

    def _rates(self) -> dict[Recipe, float]:
        """samples/s by recipe, each as if the machine had been as fast as during the first run."""
        rates = predict.drift_corrected_rates(self.tried)
        by_recipe: dict[Recipe, list[float]] = {}
        for run in self.tried:
            by_recipe.setdefault(Recipe.from_dict(run.recipe), []).append(rates[run.id])
        return {recipe: statistics.median(values) for recipe, values in by_recipe.items()}

    def _best(self, recipes: Sequence[Recipe], count: int) -> list[Recipe]:
        """The fastest of the recipes that were measured and fit."""
        rates = self._rates()
        fitting = {Recipe.from_dict(run.recipe) for run in self.tried if self.fits(run)}
        measured = [recipe for recipe in recipes if recipe in fitting]
        return sorted(measured, key=lambda recipe: -rates[recipe])[:count]


def _base(plan: Plan, target: Target) -> Recipe:
    """The plain program; a script as it stands."""
    return Recipe().replace(**target.own) if plan.launch else Recipe(batch_size=plan.preset.batch_size)


def _proof(plan: Plan, baseline: Run, best: Run) -> Parity:
    if plan.launch:
        return scripts.proof(best.title, baseline, best)
    return parity(plan, best.title, Recipe.from_dict(best.recipe))


def _modelled(recipe: Recipe) -> predict.SwitchKey:
    """The same for recipes that the model cannot tell apart."""
    return predict.switch_key(recipe.to_dict(), MODELLED)


def _predicted(model: predict.Model, recipe: Recipe) -> float:
    prediction = predict.predict(model, recipe.to_dict())
    return prediction.samples_per_s(recipe.batch_size * recipe.accumulation) if prediction else 0.0
