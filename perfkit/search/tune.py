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

from msgspec import Struct

from perfkit import machine
from perfkit.errors import Cancelled, InvalidValue, PerfkitError
from perfkit.recipe import Recipe, Value
from perfkit.results.parity import Parity
from perfkit.results.run import Run
from perfkit.results.stats import Ratio
from perfkit.results.store import RunStore
from perfkit.rules import Target, applicable
from perfkit.search.candidates import measure
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
ROUNDS = 5
"""Rounds of a recipe in its group."""


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
        budget_s: seconds after which no further recipe starts; the best one is still measured afresh.
        progress: follows and stops it.

    Raises:
        Cancelled: before anything was measured.
        InvalidValue: an unknown switch or value, or nothing could be measured, or nothing fits.
    """
    progress, started, tried = progress or Progress(), time.monotonic(), dict[str, Run]()
    with opened(plan, progress, "tuning") as source:
        base, store = source.baseline(), RunStore()
        try:
            best = _search(source, space or SPACE, memory_cap_bytes, started + budget_s, tried)
        finally:
            for each in tried.values():
                store.add(each)
        if base not in _newest(tried.values()):
            if source.stopped:
                raise Cancelled("stopped before anything was measured")
            raise InvalidValue("nothing could be measured", "See `perfkit run` for what goes wrong")
        fitting = _newest(tried.values(), memory_cap_bytes)
        if best not in fitting:
            what = "nothing that was measured fits under the memory cap"
            raise InvalidValue(what, "Raise it, or allow smaller batches")
        run = fitting[best]
        parity, note = None, ""
        if best == base:
            note = "Nothing that was tried is faster than the baseline within the memory cap."
        elif source.stopped:
            note = "Stopped: whether it trains the same was not checked."
        else:
            try:
                parity = source.parity(run.title, best, PARITY_STEPS)
            except PerfkitError as problem:
                note = f"Whether it trains the same could not be checked: {problem}"
    return Tuned(
        best=run,
        settings="the baseline" if best == base else best.describe(base),
        gain=run.speedup("baseline"),
        parity=parity,
        tried=list(tried.values()),
        cap_bytes=memory_cap_bytes,
        seconds=time.monotonic() - started,
        notes=[note] if note else [],
    )


def _search(
    source: Source,
    space: Mapping[str, Sequence[Value]],
    cap_bytes: int | None,
    until: float,
    tried: dict[str, Run],
) -> Recipe:
    """The fastest recipe that fits; `tried` gets every run by its id."""
    progress, preset = source.progress, source.plan.preset
    base = best = source.baseline()

    def fastest(recipes: Sequence[Recipe], rule: StopRule) -> Recipe:
        """Measures recipes; the fastest that fits of them, the best until now and the baseline."""
        recipes = [recipe for recipe in recipes if recipe != base]
        tried.update((run.id, run) for run in measure(source, base, recipes, rule, until))
        fitting = _newest(tried.values(), cap_bytes)
        known = [recipe for recipe in (base, best, *recipes) if recipe in fitting]
        return max(known, key=lambda recipe: _speedup(fitting[recipe]), default=best)

    first = [name for name in FIRST if name in space]
    groups = [first] * bool(first) + [[name] for name in space if name not in first]
    for number, group in enumerate(groups):
        if source.stopped or (tried and time.monotonic() > until):
            break
        with progress.part(number, len(groups) + 1):
            recipes = _candidates(best, space, group, source.target)
            best = fastest(recipes, StopRule(ROUNDS, ceiling=False))
    if best != base and not source.stopped:
        source.renew()
        with progress.part(len(groups), len(groups) + 1):
            best = fastest([best], replace(rungs.stop_rule(source.plan), rounds=2 * preset.rounds))
    return best


def _candidates(
    best: Recipe, space: Mapping[str, Sequence[Value]], group: Sequence[str], target: Target
) -> list[Recipe]:
    """The best recipe until now with every combination of a group's values that can act here."""
    recipes: list[Recipe] = []
    for values in itertools.product(*(space[name] for name in group)):
        settings = dict(zip(group, values, strict=True))
        if int(str(settings.get("workers", 0))) > 2 * machine.usable_cores():
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
    fits = cap_bytes or math.inf
    return {recipe: run for recipe, run in newest.items() if (run.peak_memory_bytes or 0) <= fits}


def _speedup(run: Run) -> float:
    """How many times as fast as the baseline."""
    ratio = run.speedup("baseline")
    return ratio.ratio if ratio else 1.0
