"""Finds the recipe with the most samples/s within a memory cap, and whether it trains the same.

One switch is searched after the other, on top of the best recipe so far: all its values are measured with the
baseline, for a few rounds. The best recipe is then measured again, for longer. The search picks the fastest
recipe that is clearly faster than the baseline and trains the same as the plain program.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from msgspec import Struct, structs

from perfkit import lookup
from perfkit.additions.parity import study
from perfkit.errors import Cancelled, InvalidValue, PerfkitError
from perfkit.ladder.catalogue import Budget, StopRule
from perfkit.machine import cores
from perfkit.recipe import Recipe, Value, shown
from perfkit.results import Parity, Ratio, Run, RunStore, keep
from perfkit.rules import Target, applicable
from perfkit.show import sentences, units
from perfkit.show.document import Bullets, Col, Content, tabulate
from perfkit.studies import staging
from perfkit.studies.sources import Plan, Progress, Session

SPACE: dict[str, list[Value]] = lookup.toml(__package__, "space")
"""The default space, without values that cannot act here. A batch size would change the training."""
ROUNDS = 5  # of each recipe while the values of a switch are tried
SEARCHING = 0.7  # of the budget: no recipe starts later, because the best one must be measured again
_STOPPED = "The search was stopped, so parity was not checked"
MOST_CHECKS = 3  # of parity, the fastest recipe first, until one trains the same


class Tuned(Struct, frozen=True, kw_only=True):
    """The recipes that were tried, in this order, and the one that was picked, also in words.

    Its gain is its ratio to the baseline, from interleaved rounds. The notes say what was not tried, and what
    went wrong without ending the search.
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
        """Shows what was picked, and the last run of every recipe that was tried, the fastest first."""
        picked = f"{self.settings}: {units.interval(self.best.samples_per_s)} samples/s"
        lines = [f"{picked}; {len(self.tried)} runs in {self.seconds:.0f} s"]
        if self.gain:
            lines.append(f"Compared with the baseline: {sentences.result(self.gain)}")
        if self.parity:
            lines.append(f"Parity: {self.parity.outcome}")
        columns = (
            Col("recipe", "title"),
            Col("picked", lambda run: "✓" if run.id == self.best.id else ""),
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

    A recipe is picked if it is faster than the baseline by more than the interval, and trains the same.
    `budget_s` is for everything; the first recipes and the best one are always measured. `store` is as for
    `climb`.
    """
    if memory_cap_bytes is not None and plan.subject.kind == "mps":
        raise InvalidValue("the peak memory of a training on mps is not known", "Leave out the memory cap")
    space = space or SPACE
    for name, values in space.items():
        for value in values:
            Recipe().replace(**{name: value})  # refused now, not after minutes of measuring
    progress = progress or Progress()
    plan = plan.fixed()
    with plan.open(progress, "tuning", store) as session:
        search = _Search(plan, session, memory_cap_bytes, budget_s)
        try:
            left = search.run(space)
        finally:
            keep(store, *search.tried.values())
        search.require_baseline()
        if session.stopped:
            result = search.result(None, [_STOPPED])
            progress.found = result  # Ctrl-C is raised in place of returning it
            return result
    notes = [f"No time was left to try {', '.join(left)}: raise the budget"] if left else []
    return search.result(progress, notes)


class _Search:
    def __init__(self, plan: Plan, session: Session, cap_bytes: int | None, budget_s: float) -> None:
        self.tried: dict[str, Run] = {}  # the runs that succeeded, by id
        self.refused: list[str] = []  # the values that were not tried, with the reasons
        self._plan = plan
        self._session = session
        self._cap_bytes = cap_bytes
        self._began = time.monotonic()
        self._until = self._began + SEARCHING * budget_s
        self._short = replace(plan.rule, rounds=ROUNDS, budget=None, cached=0)
        usual = plan.rule.budget
        longest = Budget(min(usual.stage_s, budget_s / 10)) if usual and budget_s > 0 else None
        self._long = replace(plan.rule, rounds=2 * plan.rule.rounds, budget=longest)

    def run(self, space: Mapping[str, Sequence[Value]]) -> list[str]:
        """Measures what the time allows; returns the switches for which no time was left."""
        session = self._session
        left = list[str]()
        base = best = session.source.baseline()
        for number, name in enumerate(space):
            if session.stopped or (self.tried and time.monotonic() > self._until):
                left.append(name)
                continue
            recipes = _candidates(best, name, space[name], session.source.target, self.refused)
            with session.progress.part(number, len(space) + 1):
                self._measure(recipes, self._short)
            best = _fastest([base, best, *recipes], self.tried, self._cap_bytes)
        if not session.stopped:
            with session.progress.part(len(space), len(space) + 1):
                self._measure([best], self._long)
        return left

    def _measure(self, recipes: Sequence[Recipe], rule: StopRule) -> None:
        """Measures recipes in the same rounds as the baseline, whose first run all rates refer to."""
        source = self._session.source
        base = source.baseline()
        titled = [(recipe.describe(base)[:120], recipe) for recipe in recipes if recipe != base]
        if not titled:
            return
        stages = staging.recipe_stages([("baseline", base), *titled], source.target)
        runs = self._session.measure(stages, rule)
        rate = next(iter(self.tried.values()), runs[0]).samples_per_s
        for measured in runs:
            run = structs.replace(measured, reference_samples_per_s=rate.value if rate else None)
            self._session.progress.finish(run)
            if run.status == "ok":
                self.tried[run.id] = run

    def _notes(self) -> list[str]:
        return [f"Not tried: {'; '.join(self.refused)}."] if self.refused else []

    def require_baseline(self) -> None:
        """Refuses a search in which the baseline was not measured: nothing can be compared with it."""
        if self._session.source.baseline() in _newest(self.tried.values()):
            return
        if self._session.stopped:
            raise Cancelled("stopped before anything was measured")
        what = " ".join(["nothing could be measured.", *self._notes()])
        remedy = "Name values that differ from the baseline; `perfkit run` says what else goes wrong"
        raise InvalidValue(what, remedy)

    def result(self, progress: Progress | None, more_notes: Sequence[str]) -> Tuned:
        """The fastest recipe that was found; parity is not checked without a `progress`."""
        notes = [*self._notes(), *more_notes]
        base = self._session.source.baseline()
        fitting = _newest(self.tried.values(), self._cap_bytes)
        picked, parity = _picked(self._plan, fitting, progress, notes)
        run = fitting.get(picked or base)
        if run is None:
            what = " ".join(["nothing fits under the memory cap that is faster and trains the same.", *notes])
            raise InvalidValue(what, "Raise the cap, or allow smaller batches")
        return Tuned(
            best=run,
            settings=picked.describe(base) if picked else "the baseline",
            gain=run.speedup("baseline"),
            parity=parity,
            tried=list(self.tried.values()),
            cap_bytes=self._cap_bytes,
            seconds=time.monotonic() - self._began,
            notes=notes,
        )


def _picked(
    plan: Plan, fitting: Mapping[Recipe, Run], progress: Progress | None, notes: list[str]
) -> tuple[Recipe | None, Parity | None]:
    """The fastest recipe that is clearly faster than the baseline and trains the same, with the proof.

    Parity is not checked without a `progress`. The reasons why faster recipes are not picked go to `notes`.
    """
    gains = {recipe: run.speedup("baseline") for recipe, run in fitting.items()}
    faster = {recipe: gain.ratio for recipe, gain in gains.items() if gain and gain.is_faster}
    for recipe in sorted(faster, key=faster.__getitem__, reverse=True)[:MOST_CHECKS]:
        if progress is None:
            return recipe, None
        try:
            parity = study.parity(plan, fitting[recipe].title, recipe, progress=progress)
        except Cancelled:
            notes.append(_STOPPED)
            return recipe, None
        except PerfkitError as problem:
            notes.append(f"Whether it trains the same could not be checked: {problem}")
            return recipe, None
        if parity.ok:
            return recipe, parity
        notes.append(f"Faster, but not picked: {parity.describe()}")
    return None, None


def _fastest(recipes: Sequence[Recipe], tried: Mapping[str, Run], cap_bytes: int | None) -> Recipe:
    """The fastest of some recipes below the memory cap; the first recipe if none is below it."""
    fitting = _newest(tried.values(), cap_bytes)
    known = [recipe for recipe in recipes if recipe in fitting]
    return max(known, key=lambda recipe: _speedup(fitting[recipe]), default=recipes[0])


def _candidates(
    best: Recipe, name: str, values: Sequence[Value], target: Target, refused: list[str]
) -> list[Recipe]:
    """The best recipe so far with every value of a switch that can act here; why others cannot: `refused`."""
    recipes: list[Recipe] = []
    for value in values:
        wanted = best.replace(**{name: value})
        if name == "workers" and value and target.device == "cuda":
            wanted = wanted.replace(pin_memory=True, non_blocking=True)
        recipe, reasons = applicable(wanted, target)
        reason = reasons.get(name, "")
        if name == "workers" and wanted.workers > 2 * cores.usable_cores():
            reason = f"more than two for each of {units.plural(cores.usable_cores(), 'core')}"
        if reason:
            refused.append(f"{name}={shown(value)} ({reason})")
        else:
            recipes.append(recipe)
    return list(dict.fromkeys(recipes))


def _newest(runs: Iterable[Run], cap_bytes: int | None = None) -> dict[Recipe, Run]:
    """The last run of each recipe, if it stayed within the memory cap."""
    newest = {Recipe.from_dict(run.recipe): run for run in runs}
    most = math.inf if cap_bytes is None else cap_bytes
    return {recipe: run for recipe, run in newest.items() if (run.peak_memory_bytes or 0) <= most}


def _speedup(run: Run) -> float:
    ratio = run.speedup("baseline")
    return ratio.ratio if ratio else 1.0
