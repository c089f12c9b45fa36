"""The recipe with the most samples/s, within a memory cap and parity: predicted first, then measured.

One short run for each single switch of computing and of the data path measures the parts; the what-if model
ranks every combination of them; the best are measured, the better ones of them again, and the last few for as
long as the preset asks. All that is in turn with the baseline, whose pace takes out the machine's own drift.
Nothing is picked that was not measured.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from perfkit import machine
from perfkit.errors import InvalidValue
from perfkit.program.recipe import Recipe, Value
from perfkit.program.rules import Target, applicable
from perfkit.results.run import Run
from perfkit.results.store import RunStore
from perfkit.results.tuning import Score, Tuned
from perfkit.studies import engine
from perfkit.studies import parity as proving
from perfkit.studies import predict as whatif

SPACE: dict[str, tuple[Value, ...]] = {
    "batch_size": (16, 32, 64, 128), "workers": (0, 1, 2, 4, 8), "amp": ("off", "bf16", "fp16"),
    "channels_last": (False, True), "compile": (False, True), "uint8_copy": (False, True),
    "cpu_threads": (0, 1), "prefetch_factor": (2, 4),
}  # fmt: skip
"""What is searched where nothing else is asked for; values that cannot act here are left out."""

MODELLED = (*whatif.COMPUTE, *whatif.DATA, "workers", "batch_size")
"""What a prediction heeds; the other switches of a space are tried on the best of these."""
ROUNDS = 4
"""Of a short run."""
_FINAL_ROUNDS = 2
"""Of the finals, over what the preset asks: what is left is close together."""
_SHORT_LIST = 6
_FINALISTS = 2


def tune(
    plan: engine.Plan,
    space: Mapping[str, Sequence[Value]] | None = None,
    memory_cap_bytes: int | None = None,
    budget_s: float = 600.0,
    on_progress: Callable[[engine.Progress], None] = lambda progress: None,
    cancelled: threading.Event | None = None,
) -> Tuned:
    """Searches a space of switches.

    Args:
        plan: workload, preset, device, seed.
        space: values by switch; `SPACE` if None.
        memory_cap_bytes: runs above it are not picked.
        budget_s: seconds after which no further recipe starts.
        on_progress: called often, from this thread.
        cancelled: set it from any thread to stop.

    Raises:
        InvalidValue: an unknown switch or value, or nothing could be measured.
    """
    started = time.monotonic()
    described, _ = engine.resolve(replace(plan, stages=("baseline",)))
    every = candidates(plan, engine.target(plan, described), space or SPACE)
    base = Recipe(batch_size=plan.preset.batch_size)
    search = _Search(plan, base, every, memory_cap_bytes, started + budget_s, on_progress)
    stop = cancelled or threading.Event()
    search.short(stop)
    final = search.finals(stop)
    best = max(final[1:], key=search.times, default=final[0])
    if search.times(best) < 1:
        best = final[0]
    proof = proving.parity(plan, best.title, Recipe.from_dict(best.recipe))
    return Tuned(
        best=best, settings=Recipe.from_dict(best.recipe).describe(), gain=best.speedup("baseline"),
        parity=proof, tried=search.tried, considered=len(every),
        over_memory=[r for r in search.tried if not _fits(r, memory_cap_bytes)], cap_bytes=memory_cap_bytes,
        score=search.score(), seconds=time.monotonic() - started,
    )  # fmt: skip


def candidates(plan: engine.Plan, target: Target, space: Mapping[str, Sequence[Value]]) -> list[Recipe]:
    """Every combination that can act here, each once.

    Raises:
        InvalidValue: an unknown switch or a value that is not allowed.
    """
    base, found = Recipe(batch_size=plan.preset.batch_size), dict[str, Recipe]()
    limit = 2 * machine.usable_cores()
    for values in itertools.product(*space.values()):
        asked = dict(zip(space, values, strict=True))
        if int(asked.get("workers", 0)) > limit:
            continue
        if int(asked.get("workers", 0)) > 0:
            asked = {"persistent_workers": True, **asked}
            if target.device == "cuda":
                asked = {"pin_memory": True, "non_blocking": True, **asked}
        recipe, refused = applicable(base.replace(**asked), target)
        if not set(refused) & set(space):
            found[recipe.digest()] = recipe
    return list(found.values())


def probes(base: Recipe, every: Sequence[Recipe]) -> list[Recipe]:
    """The fewest runs that measure every part: each switch by itself, workers with the extreme batch sizes.

    Those measure the computation of these batches as well, and what workers lose, which depends on both.
    """
    found = dict[str, Recipe]()
    for name in dict.fromkeys((*whatif.COMPUTE, *whatif.DATA)):
        for value in dict.fromkeys(getattr(recipe, name) for recipe in every):
            probe = base.replace(**{name: value})
            found[probe.digest()] = probe
    sizes = sorted({recipe.batch_size for recipe in every})
    most = max(every, key=lambda recipe: recipe.workers, default=base).workers
    loaders = {recipe.workers: recipe for recipe in reversed(every) if recipe.workers in (1, 2, 4, most)}
    alike = ("workers", "persistent_workers", "pin_memory", "non_blocking")
    for size, loader in itertools.product((*sizes[:1], *sizes[-1:]), loaders.values()):
        probe = base.replace(batch_size=size, **{name: getattr(loader, name) for name in alike})
        found[probe.digest()] = probe
    found.pop(base.digest(), None)
    return list(found.values())


class _Search:
    """Asks for recipes by what was found so far: the parts first, then what the model thinks best of."""

    def __init__(
        self, plan: engine.Plan, base: Recipe, every: Sequence[Recipe], cap_bytes: int | None,
        ends: float, on_progress: Callable[[engine.Progress], None],
    ) -> None:  # fmt: skip
        self._plan, self._base, self._every, self._cap = plan, base, every, cap_bytes
        self._ends, self._tell = ends, on_progress
        self.tried: list[Run] = []
        self._asked = _titled([base, *probes(base, every)])
        self._ended = 0
        self._kept: list[Recipe] = []
        self._parts = 0
        self._model: whatif.Model | None = None
        self._varied = False

    def short(self, stop: threading.Event) -> None:
        """One fresh child each, one after the other, every one in turn with the baseline."""
        size = replace(
            self._plan.preset, rounds=ROUNDS, loss_steps=2, warmup_s=self._plan.preset.warmup_s / 2
        )
        asked = replace(self._plan, preset=size, recipes=self._asked, only_first=True)
        engine.climb(asked, RunStore(), self._follow, stop)

    def _follow(self, progress: engine.Progress) -> None:
        if progress.run:
            self._ended += 1
            self.tried += [progress.run] if progress.run.status == "ok" else []
            if time.monotonic() > self._ends:
                del self._asked[self._ended :]
            elif self._ended == len(self._asked):
                self._asked += _titled(self._next())
        few = len(self._asked) + (0 if self._model else _SHORT_LIST)
        self._tell(replace(progress, fraction=min(1.0, progress.fraction * len(self._asked) / few)))

    def _next(self) -> list[Recipe]:
        """The model's short list; variants of its best; then the better third again, until few are left."""
        if self._model is None:
            model = self._model = whatif.fit(self.tried)
            self._parts = len(self.tried)
            unlike = dict[whatif.Flavour, Recipe]()
            for recipe in self._every:
                unlike.setdefault(_modelled(recipe), recipe)
            ranked = sorted(unlike.values(), key=lambda recipe: -_predicted(model, recipe))
            self._kept = ranked[: max(_SHORT_LIST, len(self._every) // 12)]
            return self._unmeasured(self._kept)
        if not self._varied:
            self._varied = True
            best = {_modelled(recipe) for recipe in self._best(self._kept, 1)}
            variants = self._unmeasured([recipe for recipe in self._every if _modelled(recipe) in best])[:4]
            self._kept += variants
            if variants:
                return variants
        self._kept = self._best(self._kept, max(_FINALISTS, len(self._kept) // 3))
        return self._kept if len(self._kept) > _FINALISTS else []

    def _unmeasured(self, recipes: Sequence[Recipe]) -> list[Recipe]:
        known = self._by_recipe()
        return [recipe for recipe in recipes if recipe not in known]

    def _by_recipe(self) -> dict[Recipe, list[float]]:
        """samples/s by recipe, each as if the machine had been as fast as during the first run."""
        pace = whatif.rates(self.tried)
        found = dict[Recipe, list[float]]()
        for run in self.tried:
            found.setdefault(Recipe.from_dict(run.recipe), []).append(pace[run.id])
        return found

    def _best(self, recipes: Sequence[Recipe], count: int) -> list[Recipe]:
        """Of recipes that were measured and fit, the fastest."""
        rates = {recipe: statistics.median(values) for recipe, values in self._by_recipe().items()}
        fits = {Recipe.from_dict(run.recipe) for run in self.tried if _fits(run, self._cap)}
        known = [recipe for recipe in recipes if recipe in fits]
        return sorted(known, key=lambda recipe: -rates[recipe])[:count]

    def finals(self, stop: threading.Event) -> list[Run]:
        """The last few, in turn with the baseline, for as long as the preset asks.

        Raises:
            InvalidValue: nothing was measured, or nothing that fits.
        """
        if not self.tried:
            raise InvalidValue("nothing could be measured", "See `perfkit run` for what goes wrong")
        chosen = self._best(self._kept, _FINALISTS) or self._best([*self._by_recipe()], _FINALISTS)
        if not chosen:
            raise InvalidValue(
                "nothing that was measured fits under the memory cap", "Raise it, or allow smaller batches"
            )
        others = [recipe for recipe in chosen if recipe != self._base]
        size = replace(self._plan.preset, rounds=_FINAL_ROUNDS * self._plan.preset.rounds)
        asked = replace(self._plan, preset=size, recipes=_titled([self._base, *others]), only_first=True)
        runs = [r for r in engine.climb(asked, RunStore(), self._tell, stop) if r.status == "ok"]
        if not runs:
            raise InvalidValue("nothing could be measured", "See `perfkit run` for what goes wrong")
        self.tried += runs
        return runs

    def times(self, run: Run) -> float:
        """How many times as fast as the baseline its recipe was: median of all rounds of all its runs."""
        alike = [one for one in self.tried if one.recipe == run.recipe]
        pairs = [pair for one in alike for pair in one.pairings if pair.role == "baseline"]
        rounds = [times for pair in pairs for times in pair.round_ratios]
        return statistics.median(rounds) if rounds else 1.0

    def score(self) -> Score | None:
        """The model against the runs that it was not made of."""
        if self._model is None:
            return None
        return whatif.score(self._model, self.tried[self._parts :], whatif.rates(self.tried))


def _titled(recipes: Sequence[Recipe]) -> list[tuple[str, Recipe]]:
    return [(recipe.describe()[:120], recipe) for recipe in recipes]


def _modelled(recipe: Recipe) -> whatif.Flavour:
    """The same for recipes that the model cannot tell apart."""
    return whatif.flavour(recipe.to_dict(), MODELLED)


def _fits(run: Run, cap: int | None) -> bool:
    return cap is None or (run.peak_memory_bytes or 0) <= cap


def _predicted(model: whatif.Model, recipe: Recipe) -> float:
    told = whatif.predict(model, recipe.to_dict())
    return told.samples_per_s(recipe.batch_size * recipe.accumulation) if told else 0.0
