"""The recipe with the most samples/s, within a memory cap and parity: predicted first, then measured.

One short run for each single switch of computing and of the data path measures the parts; the what-if model
ranks every combination of them; the best are measured for short, the better ones for longer, and the last few
in turn with the baseline. Nothing is picked that was not measured.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from perfkit import environment, experiment, whatif
from perfkit import parity as proving
from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe, Target, Value, applicable
from perfkit.runs import Run
from perfkit.statistics import Ratio
from perfkit.store import RunStore

SPACE: dict[str, tuple[Value, ...]] = {
    "batch_size": (16, 32, 64, 128), "workers": (0, 1, 2, 4, 8), "amp": ("off", "bf16", "fp16"),
    "channels_last": (False, True), "compile": (False, True), "uint8_copy": (False, True),
}  # fmt: skip
"""What is searched where nothing else is asked for; values that cannot act here are left out."""


@dataclass(frozen=True)
class Tuned:
    """What was tried, and what came out on top."""

    best: Run
    gain: Ratio | None
    """Over the baseline, measured in turn."""
    parity: proving.Parity | None
    tried: Sequence[Run]
    """Every run that was measured, in the order of time."""
    considered: int
    """Recipes that the model ranked."""
    over_memory: Sequence[Run]
    cap_bytes: int | None
    score: whatif.Score | None
    """How well the model predicted the runs that were measured after it."""
    seconds: float

    def pareto(self) -> list[Run]:
        """Runs that no other one beats in both speed and memory, the leanest first."""
        known = [r for r in self.tried if r.samples_per_s and r.peak_memory_bytes]
        known.sort(key=lambda r: (r.peak_memory_bytes or 0, -_rate(r)))
        front: list[Run] = []
        for run in known:
            if not front or _rate(run) > _rate(front[-1]):
                front.append(run)
        return front

    def describe(self) -> str:
        """One line for people."""
        recipe = Recipe.from_dict(self.best.recipe).describe()
        gain = (
            f", {self.gain.ratio:.2f}x ({self.gain.low:.2f}-{self.gain.high:.2f}) the baseline"
            if self.gain
            else ""
        )
        return (
            f"{recipe}: {_rate(self.best):.0f} samples/s{gain}; {len(self.tried)} runs for {self.considered} "
            f"recipes, in {self.seconds:.0f} s"
        )

    def sentences(self) -> list[str]:
        """What was picked, whether it trains the same, and how well the model predicted."""
        told = [self.describe(), *([self.parity.describe()] if self.parity else [])]
        if self.score:
            said = f"median error {self.score.median:.0%}, 90th percentile {self.score.p90:.0%}"
            told.append(f"the model's predictions: {said}, of {self.score.count} runs")
        return told


def tune(
    plan: experiment.Plan,
    space: Mapping[str, Sequence[Value]] | None = None,
    memory_cap_bytes: int | None = None,
    budget_s: float = 600.0,
    on_progress: Callable[[experiment.Progress], None] = lambda progress: None,
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
    described, _ = experiment.resolve(replace(plan, stages=("baseline",)))
    target = experiment.target(plan, described)
    every = candidates(plan, target, space or SPACE)
    search = _Search(plan, budget_s, started, on_progress, cancelled or threading.Event())
    base = Recipe(batch_size=plan.preset.batch_size)
    search.measure([base, *probes(base, every)], rounds=1)
    model = whatif.fit(search.runs.values())
    first = set(search.runs)
    ranked = sorted(every, key=lambda recipe: -_predicted(model, recipe))
    kept = ranked[: max(8, len(every) // 10)]
    search.measure(kept, rounds=1)
    while len(kept) > 3:
        kept = sorted(kept, key=lambda recipe: -search.rate(recipe))[: max(3, len(kept) // 3)]
        if len(kept) > 3:
            search.measure(kept, rounds=2, again=True)
    allowed = [recipe for recipe in kept if _fits(search.runs.get(recipe.digest()), memory_cap_bytes)]
    allowed = (
        allowed or [r for r in _by_rate(search) if _fits(search.runs.get(r.digest()), memory_cap_bytes)][:3]
    )
    if not allowed:
        raise InvalidValue(
            "nothing that was measured fits under the memory cap", "Raise it, or allow smaller batches"
        )
    final = search.finals(base, allowed)
    best = max(final[1:], key=_rate, default=final[0])
    if best.speedup("baseline") and (best.speedup("baseline") or Ratio(1, 1, 1, "slower")).ratio < 1:
        best = final[0]
    proof = proving.parity(plan, best.title, Recipe.from_dict(best.recipe))
    later = [run for digest, run in search.runs.items() if digest not in first]
    return Tuned(
        best=best, gain=best.speedup("baseline"), parity=proof, tried=search.tried, considered=len(every),
        over_memory=[r for r in search.tried if not _fits(r, memory_cap_bytes)], cap_bytes=memory_cap_bytes,
        score=whatif.score(model, later), seconds=time.monotonic() - started,
    )  # fmt: skip


def candidates(plan: experiment.Plan, target: Target, space: Mapping[str, Sequence[Value]]) -> list[Recipe]:
    """Every combination that can act here, each once.

    Raises:
        InvalidValue: an unknown switch or a value that is not allowed.
    """
    base, found = Recipe(batch_size=plan.preset.batch_size), dict[str, Recipe]()
    limit = 2 * environment.usable_cores()
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
    """The fewest runs that measure every part: each switch by itself, and the extreme batch sizes."""
    found = dict[str, Recipe]()
    for name in dict.fromkeys((*whatif.COMPUTE, *whatif.DATA)):
        for value in dict.fromkeys(getattr(recipe, name) for recipe in every):
            probe = base.replace(**{name: value})
            found[probe.digest()] = probe
    sizes = sorted({recipe.batch_size for recipe in every})
    for size in (sizes[0], sizes[-1]) if sizes else ():
        found[base.replace(batch_size=size).digest()] = base.replace(batch_size=size)
    found.pop(base.digest(), None)
    return list(found.values())


class _Search:
    """Measures recipes and remembers them."""

    def __init__(
        self, plan: experiment.Plan, budget_s: float, started: float,
        on_progress: Callable[[experiment.Progress], None], cancelled: threading.Event,
    ) -> None:  # fmt: skip
        self._plan, self._ends, self._tell, self._stop = plan, started + budget_s, on_progress, cancelled
        self.runs: dict[str, Run] = {}
        self.tried: list[Run] = []

    def measure(self, recipes: Sequence[Recipe], rounds: int, again: bool = False) -> None:
        """One fresh child each, one after the other, short."""
        size = replace(
            self._plan.preset, rounds=rounds, loss_steps=2, warmup_s=self._plan.preset.warmup_s / 2
        )
        for recipe in recipes:
            if (recipe.digest() in self.runs and not again) or time.monotonic() > self._ends:
                continue
            asked = replace(self._plan, preset=size, recipes=((recipe.describe()[:60], recipe),))
            for run in experiment.climb(asked, RunStore(), self._tell, self._stop):
                if run.status == "ok":
                    self.runs[recipe.digest()] = run
                    self.tried.append(run)

    def rate(self, recipe: Recipe) -> float:
        """samples/s of a recipe; 0 if it could not be measured."""
        run = self.runs.get(recipe.digest())
        return _rate(run) if run else 0.0

    def finals(self, base: Recipe, recipes: Sequence[Recipe]) -> list[Run]:
        """The last few, in turn with the baseline."""
        titles = tuple((recipe.describe()[:60], recipe) for recipe in recipes if recipe != base)
        asked = replace(self._plan, recipes=(("baseline", base), *titles))
        runs = [r for r in experiment.climb(asked, RunStore(), self._tell, self._stop) if r.status == "ok"]
        if not runs:
            raise InvalidValue("nothing could be measured", "See `perfkit run` for what goes wrong")
        self.tried += runs
        return runs


def _by_rate(search: _Search) -> list[Recipe]:
    return [Recipe.from_dict(run.recipe) for run in sorted(search.runs.values(), key=_rate, reverse=True)]


def _rate(run: Run) -> float:
    return run.samples_per_s.median if run.samples_per_s else 0.0


def _fits(run: Run | None, cap: int | None) -> bool:
    return run is not None and (cap is None or (run.peak_memory_bytes or 0) <= cap)


def _predicted(model: whatif.Model, recipe: Recipe) -> float:
    told = whatif.predict(model, recipe.to_dict())
    return told.samples_per_s(recipe.batch_size * recipe.accumulation) if told else 0.0
