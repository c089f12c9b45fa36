"""The recipe with the most samples/s within a memory cap, and whether it trains the same.

One group of switches is searched after the other, on top of the best recipe so far: workers together with the
batch size, as they depend on each other, then every other switch. All combinations of a group are measured
beside the baseline, for a few rounds. The best few of all are then measured afresh, for longer, and the
fastest is compared with the plain program in parity.
"""

import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import Struct

from perfkit import machine
from perfkit.errors import Cancelled, InvalidValue, PerfkitError
from perfkit.recipe import Recipe, Value
from perfkit.results.parity import Parity
from perfkit.results.run import Run
from perfkit.results.stats import Ratio
from perfkit.results.store import RunStore
from perfkit.rules import applicable
from perfkit.studies import rungs
from perfkit.studies.progress import Progress
from perfkit.studies.sources import PARITY_STEPS, Plan, Source, StopRule, opened

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
TOGETHER = 4
"""Recipes that are measured in the same rounds, beside the baseline."""
ROUNDS = 5
"""Rounds of a recipe in its group."""
FINALISTS = 2


class Tuned(Struct, frozen=True, kw_only=True):
    """What was tried, and the recipe that was picked."""

    best: Run
    settings: str
    """The best recipe in words."""
    gain: Ratio | None
    """Over the baseline, interleaved with it."""
    parity: Parity | None
    tried: Sequence[Run]
    """Every run that was measured, in the order of time."""
    cap_bytes: int | None
    seconds: float
    notes: Sequence[str] = ()
    """What went wrong without ending the search."""

    def sentences(self) -> list[str]:
        """What was picked, and whether it trains the same."""
        gain = self.gain
        over = f", {gain.ratio:.2f}x ({gain.low:.2f}-{gain.high:.2f}) the baseline" if gain else ""
        picked = f"{self.settings}: {rate(self.best):.0f} samples/s{over}"
        lines = [f"{picked}; {len(self.tried)} runs in {self.seconds:.0f} s"]
        return [*lines, *([self.parity.describe()] if self.parity else []), *self.notes]


def rate(run: Run) -> float:
    """samples/s of a run; 0 if it was not measured, so that it ranks last."""
    return run.samples_per_s.value if run.samples_per_s else 0.0


def tune(
    plan: Plan,
    space: Mapping[str, Sequence[Value]] | None = None,
    memory_cap_bytes: int | None = None,
    budget_s: float = 600.0,
    progress: Progress | None = None,
) -> Tuned:
    """Searches a space of switches.

    Args:
        plan: workload, preset, device, seed.
        space: values by switch; `SPACE` if None.
        memory_cap_bytes: runs above it are not picked.
        budget_s: seconds after which no further recipe starts, but for the finals.
        progress: follows and stops it.

    Raises:
        Cancelled: before anything was measured.
        InvalidValue: an unknown switch or value, or nothing could be measured.
    """
    progress, started, store = progress or Progress(), time.monotonic(), RunStore()
    with opened(plan, progress, "tuning") as source:
        search = _Search(source, space or SPACE, memory_cap_bytes, started + budget_s)
        try:
            search.run()
            finals = search.finals()
        finally:
            for run in search.tried:
                store.add(run)
        best, parity, note = max(finals, key=search.speedup), None, ""
        if search.is_base(best):
            note = "Nothing that was tried is faster than the baseline within the memory cap."
        elif source.stopped:
            note = "Stopped: whether it trains the same was not checked."
        else:
            try:
                parity = source.parity(best.title, Recipe.from_dict(best.recipe), PARITY_STEPS)
            except (Cancelled, PerfkitError) as problem:
                note = f"Whether it trains the same could not be checked: {problem}"
    recipe = Recipe.from_dict(best.recipe)
    return Tuned(
        best=best,
        settings="the baseline" if search.is_base(best) else recipe.describe(search.base),
        gain=best.speedup("baseline"),
        parity=parity,
        tried=search.tried,
        cap_bytes=memory_cap_bytes,
        seconds=time.monotonic() - started,
        notes=[note] if note else [],
    )


class _Search:
    def __init__(
        self, source: Source, space: Mapping[str, Sequence[Value]], cap_bytes: int | None, ends: float
    ) -> None:
        self.source, self.space, self.cap_bytes, self.ends = source, space, cap_bytes, ends
        self.base = self.best = source.baseline()
        self.tried: list[Run] = []

    def run(self) -> None:
        """Searches one group of switches after the other."""
        first = [name for name in FIRST if name in self.space]
        groups = [first] * bool(first) + [[name] for name in self.space if name not in first]
        for number, group in enumerate(groups):
            with self.source.progress.part(number, len(groups) + 1):
                recipes = self._candidates(group)
                for at in range(0, len(recipes), TOGETHER):
                    if not self.source.stopped and time.monotonic() < self.ends:
                        self._measure(recipes[at : at + TOGETHER], StopRule(ROUNDS, ceiling=False))
                self.best = next(iter(self._fastest([self.best, *recipes])), self.best)

    def _candidates(self, group: Sequence[str]) -> list[Recipe]:
        """The best recipe so far with every combination of a group's values that can act here."""
        recipes: list[Recipe] = []
        for values in itertools.product(*(self.space[name] for name in group)):
            settings = dict(zip(group, values, strict=True))
            if int(str(settings.get("workers", 0))) > 2 * machine.usable_cores():
                continue
            if settings.get("workers") and self.source.target.device == "cuda":
                settings = {"pin_memory": True, "non_blocking": True, **settings}
            recipe, refused = applicable(self.best.replace(**settings), self.source.target)
            if not set(refused) & set(group):
                recipes.append(recipe)
        return [recipe for recipe in dict.fromkeys(recipes) if recipe != self.base]

    def finals(self) -> list[Run]:
        """The runs to pick from: the baseline and the best recipes afresh, if nobody stopped it.

        Raises:
            Cancelled: nothing was measured before a person stopped it.
            InvalidValue: nothing could be measured, or nothing that fits.
        """
        if not any(map(self.is_base, self.tried)):
            if self.source.stopped:
                raise Cancelled("stopped before anything was measured")
            raise InvalidValue("nothing could be measured", "See `perfkit run` for what goes wrong")
        runs = self.tried
        if not self.source.stopped:
            known = [Recipe.from_dict(run.recipe) for run in self.tried]
            finalists = [recipe for recipe in self._fastest(known)[: FINALISTS + 1] if recipe != self.base]
            preset = self.source.plan.preset
            rule = replace(rungs.stop_rule(self.source.plan), rounds=2 * preset.rounds)
            self.source.renew()
            with self.source.progress.part(1, 1):
                final = self._measure(finalists[:FINALISTS], rule, repeat=rungs.has_verdicts(preset))
            runs = final or runs
        picked = [run for run in runs if self.fits(run)]
        if not picked:
            what = "nothing that was measured fits under the memory cap"
            raise InvalidValue(what, "Raise it, or allow smaller batches")
        return picked

    def _measure(self, recipes: Sequence[Recipe], rule: StopRule, repeat: bool = False) -> list[Run]:
        """Measures recipes beside the baseline, and returns the runs that succeeded."""
        titled = [("baseline", self.base)]
        titled += [(recipe.describe(self.base)[:120], recipe) for recipe in recipes]
        stages = rungs.recipe_stages(titled, self.source.target)
        rows = [rungs.again(stages[0])] if repeat and self.source.noisy and recipes else []
        measured = [run for run in self.source.measure([*stages, *rows], rule) if run.status == "ok"]
        for run in measured:
            self.source.progress.finish(run)
        runs = [run for run in measured if not run.is_again]
        ids = [run.id for run in runs]  # the baseline keeps its run, which grows
        self.tried = [run for run in self.tried if run.id not in ids] + runs
        return runs

    def _fastest(self, recipes: Sequence[Recipe]) -> list[Recipe]:
        """The recipes that were measured and fit, the fastest first, by the median of their rounds."""
        speeds = {Recipe.from_dict(run.recipe): self.speedup(run) for run in self.tried if self.fits(run)}
        measured = [recipe for recipe in dict.fromkeys(recipes) if recipe in speeds]
        return sorted(measured, key=lambda recipe: -speeds[recipe])

    def speedup(self, run: Run) -> float:
        """How many times as fast as the baseline a recipe was: median of all rounds of all its runs."""
        alike = [other.pairing("baseline") for other in self.tried if other.recipe == run.recipe]
        ratios = [ratio for pairing in alike if pairing for ratio in pairing.round_ratios]
        return statistics.median(ratios) if ratios else 1.0

    def is_base(self, run: Run) -> bool:
        """Whether a run is one of the baseline."""
        return Recipe.from_dict(run.recipe) == self.base

    def fits(self, run: Run) -> bool:
        """Whether a run stayed below the memory cap."""
        return self.cap_bytes is None or (run.peak_memory_bytes or 0) <= self.cap_bytes
