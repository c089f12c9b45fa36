"""The ladder: its stages on a machine, the climb that keeps those that help, their scripts and diffs."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from msgspec import structs

from perfkit import export, workloads
from perfkit.errors import InvalidValue, PerfkitError
from perfkit.ladder import catalogue
from perfkit.ladder.catalogue import KEPT, Stage, StopRule, optimization, sizing
from perfkit.machine import devices
from perfkit.recipe import Recipe, switches
from perfkit.results import stats
from perfkit.results.rounds import Rounds
from perfkit.results.run import Run, continued
from perfkit.results.schema import AGAIN, Decision
from perfkit.results.store import RunStore, keep
from perfkit.rules import Target, applicable, joined
from perfkit.studies.sources import Plan, Progress, Source, opened
from perfkit.worker.messages import Description, DeviceFacts

# ---------------------------------------------------------------- stages


def first(plan: Plan, target: Target) -> Stage:
    """The stage that a ladder starts from: the plain loop, or the default ladder below the first stage."""
    below = catalogue.below(plan.ladder.stages[0]) if plan.ladder.below and plan.ladder.stages else ()
    recipe, sizes = Recipe(batch_size=plan.subject.size.batch_size), sizing(plan.subject.size, target)
    for name in below:
        recipe = catalogue.stage(optimization(name), recipe, sizes, target).recipe
    recipe, reasons = applicable(recipe.replace(**plan.ladder.settings), target)
    refused = {name: why for name in switches() if (why := target.refuses(name, recipe))}
    if refused:  # what a switch is by default cannot be put back
        raise InvalidValue(joined(refused), "Start from another setting, such as --set amp=fp16")
    return Stage("baseline", "before" if below else "baseline", recipe, not_applied=reasons)


def stage_of(plan: Plan, target: Target, name: str, before: Recipe) -> Stage:
    """A stage on top of a recipe, with the plan's own values for its switches."""
    card = optimization(name)
    own = structs.replace(card, settings={**card.settings, **plan.ladder.changes})
    return catalogue.stage(own, before, sizing(plan.subject.size, target), target)


def ladder_stages(plan: Plan, target: Target) -> list[Stage]:
    """The stages of a plan on a target if every one is kept."""
    ladder = [first(plan, target)]
    for name in plan.ladder.stages:
        ladder.append(stage_of(plan, target, name, ladder[-1].recipe))
    return ladder


def recipe_stages(recipes: Iterable[tuple[str, Recipe]], target: Target) -> list[Stage]:
    """Titled recipes as stages, as far as they can act."""
    rows: list[Stage] = []
    for title, wanted in recipes:
        recipe, reasons = applicable(wanted, target)
        # If nothing is left of what it changes, measuring would show the first recipe again.
        nothing_left = rows and recipe == rows[0].recipe and reasons != rows[0].not_applied
        reason = joined(reasons) if nothing_left else ""
        rows.append(Stage(title, title, recipe, reason=reason, not_applied=reasons))
    return rows


def all_stages(source: Source) -> list[Stage]:
    """The stages as they would run if every one were kept; those of a recording as they were recorded."""
    if stored := source.stored():
        return [
            Stage(run.stage, run.title, Recipe.from_dict(run.recipe), reason=run.reason)
            for run in stored
            if run.stage not in (AGAIN, KEPT)
        ]
    plan = source.plan
    return recipe_stages(plan.ladder.recipes, source.target) or ladder_stages(plan, source.target)


def described(plan: Plan, load: bool = False) -> Source:
    """A plan's source, not started, that knows what the workload and the device report.

    A child loads the workload, so that this process stays clean; nothing is trained, so no lock is taken. If
    not `load`, they will probably report what the workload's class declares.
    """
    source = plan.source(plan, Progress())
    if load:
        with source:
            return source
    every = [name for name, switch in switches().items() if switch.needs == "workload"]
    offers, facts = workloads.declared(plan.subject.workload, "offers"), DeviceFacts()
    if plan.subject.device.startswith("cuda"):
        found = devices.accelerators()
        facts = DeviceFacts(count=len(found.cuda), bf16=found.bf16)
    presets = workloads.declared(plan.subject.workload, "presets") or {}
    options = {**presets.get(plan.subject.size.name, {}), **plan.subject.options}
    known = every if offers is None else sorted(offers)  # a run says what is not there
    source.description = Description(options, known, facts)
    return source


def acting(source: Source) -> Stage:
    """The last stage of a source's plan, if it can act; an `InvalidValue` says why it cannot."""
    if (stage := all_stages(source)[-1]).reason:
        raise InvalidValue(f"stage '{stage.name}' does not apply here: {stage.reason}", "Choose another")
    return stage


# ---------------------------------------------------------------- climbing


def again(stage: Stage) -> Stage:
    """The A/A row of a baseline."""
    return replace(stage, name=AGAIN, title=f"{stage.title} (again)", not_applied=None)


def climb(
    plan: Plan,
    store: RunStore | None = None,
    progress: Progress | None = None,
    earlier: Sequence[Run] = (),
) -> list[Run]:
    """Measures the ladder of a plan, or its recipes.

    The `store` keeps the runs, and knows how far equal processes differ; `lost` has what it cannot keep.
    Each stage is measured in the same rounds as the recipe that was kept so far. It is kept if it is faster,
    if the plan says so, or if the preset has too few rounds for a verdict: nothing shows that any other one
    helps. At the end the kept recipe is measured again against the baseline, because what was chosen for
    being fast may have been lucky. A stage that fails does not stop the others, and nothing is built on it; a
    workload that cannot be loaded raises. A KeyboardInterrupt is raised after every process has ended.

    `earlier`: runs of the same plan, to whose rounds these are added.
    """
    progress = progress or Progress()
    runs: list[Run] = []
    with opened(plan, progress, store=store) as source:
        stored = source.stored()
        for measured in stored or _climbed(source):
            run = with_earlier(measured, earlier)
            if not stored:
                keep(store, run)
            progress.finish(run)
            runs.append(run)
    return runs


def with_earlier(run: Run, earlier: Sequence[Run]) -> Run:
    """A run with the rounds of the earlier one of its stage and recipe, if there is one, before its own."""
    for before in earlier:
        if (before.stage, before.recipe) == (run.stage, run.recipe) and before.status == run.status == "ok":
            return continued(before, run)
    return run


def _climbed(source: Source) -> Iterator[Run]:
    plan, target, started = source.plan, source.target, time.monotonic()
    stages, whole = plan.ladder.stages, plan.rule
    if plan.ladder.recipes or len(stages) < 2:
        rows = all_stages(source)
        if plan.ladder.below and rows[-1].reason:  # there is nothing to compare it with
            rows = rows[-1:]
        is_compared = sum(not stage.reason for stage in rows) > 1
        repeat = [again(rows[0])] if is_compared and _repeats(source) else []
        yield from source.measure([*rows, *repeat], whole)
        return

    climb = _Climb(source, first(plan, target), started)
    for number, name in enumerate(stages):
        yield from climb.stage(name, number, len(stages))
        if source.stopped or climb.has_failed:
            return
    if climb.kept is not climb.base and _repeats(source):
        yield from climb.last(len(stages))


END_SHARES = 3
"""What is kept at the end gets as much time as three stages."""


class _Climb:
    """A ladder under way: what is kept, and how it compares with the baseline."""

    def __init__(self, source: Source, base: Stage, began: float) -> None:
        self.source = source
        self.base = self.kept = base
        self.base_run: Run | None = None
        self._kept_run: Run | None = None
        self._below: list[Rounds] = []
        """The rounds of every stage that is kept, each with those of what was kept before."""
        self._began = began
        self._limit_s = source.plan.rule.limit_s

    @property
    def has_failed(self) -> bool:
        """Whether there is no baseline to climb from."""
        return self.base_run is not None and self.base_run.status != "ok"

    def stage(self, name: str, number: int, count: int) -> Iterator[Run]:
        """Measures a stage on top of what is kept; the run of the baseline comes first."""
        source = self.source
        stage = stage_of(source.plan, source.target, name, self.kept.recipe)
        if stage.reason and self.base_run:  # nothing is measured again for it
            yield from source.measure([stage], source.plan.rule)
            return
        with source.progress.part(number, count + 1):
            *before, run = source.measure([*self._sides(), stage], self._rule(self._shares(number)))
        if self.base_run is None:
            self.base_run = self._kept_run = before[0]
            yield before[0]
        if run.disturbed:
            self._limit_s = source.plan.rule.noisy_limit_s
        run = _judged(self._placed(run), before[-1], source)
        if run.decision and run.decision.kept:
            self.kept, self._kept_run = stage, run
            if previous := run.pairing("previous"):
                self._below.append(previous.rounds)
        yield run

    def last(self, count: int) -> Iterator[Run]:
        """Measures what is kept against the baseline, and the baseline against itself."""
        source = self.source
        final = replace(self.kept, name=KEPT, title="everything kept, measured again")
        with source.progress.part(count, count + 1):
            # To the full precision, however large the effect: this is the ratio that people tell.
            rule = replace(self._rule(1), part=0.0)
            _, *runs = source.measure([self.base, final, again(self.base)], rule)
        assert self.base_run
        base = self.base_run.samples_per_s
        for run in runs:
            pairings = [structs.replace(each, against=self.base_run.id) for each in run.pairings]
            reference = base and base.value
            yield structs.replace(run, pairings=pairings, reference_samples_per_s=reference)

    def _sides(self) -> list[Stage]:
        """What the next stage is measured with."""
        if self.kept is self.base:
            return [self.base]
        return [self.kept] if self.source.is_costly else [self.base, self.kept]

    def _placed(self, run: Run) -> Run:
        """A run that is compared with the runs of this ladder.

        Where the baseline was not measured again, the ratio to it is that to what was kept, times that of
        every stage below.
        """
        assert self.base_run is not None
        assert self._kept_run is not None
        is_chained = self.source.is_costly and self.kept is not self.base
        pairings = []
        for pairing in run.pairings:
            if pairing.role == "previous":
                pairings.append(structs.replace(pairing, against=self._kept_run.id))
                continue
            via = list(self._below) if is_chained else []
            pairings.append(structs.replace(pairing, against=self.base_run.id, via=via))
        base = self.base_run.samples_per_s
        reference = base.value if base and is_chained else None
        return structs.replace(run, pairings=pairings, reference_samples_per_s=reference)

    def _shares(self, number: int) -> int:
        """How many parts of the ladder are left from a stage on; what cannot act here needs no time."""
        source = self.source
        left = source.plan.ladder.stages[number:]
        stages = [stage_of(source.plan, source.target, name, self.kept.recipe) for name in left]
        return sum(not stage.reason for stage in stages) + END_SHARES

    def _rule(self, shares: int) -> StopRule:
        """A share of the time that is left, of which there are so many."""
        left_s = max(0.0, self._began + self._limit_s - time.monotonic())
        self.source.progress.later_s = left_s * (shares - 1) / shares
        return replace(self.source.plan.rule, limit_s=left_s / shares)


def _judged(run: Run, before: Run, source: Source) -> Run:
    """The run with the decision on its stage, unless what was kept failed."""
    plan, ratio = source.plan, run.speedup("previous")
    decision = None
    if ratio and before.status == "ok":
        if run.stage in plan.ladder.keep or plan.rule.rounds < stats.MIN_ROUNDS:
            decision = Decision(True, "plan")
        else:
            decision = Decision(ratio.is_faster, "climb", "" if ratio.is_faster else ratio.verdict)
    return structs.replace(run, decision=decision)


def _repeats(source: Source) -> bool:
    return "A/A noise" not in source.refused and source.plan.rule.rounds >= stats.MIN_ROUNDS


# ---------------------------------------------------------------- scripts


def stage_diff(source: Source) -> tuple[str, str]:
    """What the last stage of a source's plan changes in the script: a heading, and a diff.

    Where the stage cannot act the heading says why, and the diff is that of a machine with GPUs, if it acts
    there: exporting a script needs none.
    """
    plan = source.plan
    device, ladder, heading = plan.subject.device, all_stages(source), "What it changes"
    if reason := ladder[-1].reason:
        # A machine with enough GPUs for every stage.
        gpus = Target("cuda", source.target.offers, source.target.convolves, count=8)
        device, ladder, heading = "cuda", ladder_stages(plan, gpus), f"n/a here: {reason}"
        if ladder[-1].reason:
            return heading, ""
        heading += "; what it changes on a GPU"
    workload = plan.subject.workload, source.description.options, device, plan.subject.seed
    below = ladder[-2] if len(ladder) > 1 else ladder[-1]
    before, after = (export.script(stage.recipe, *workload, set_up=False) for stage in (below, ladder[-1]))
    return heading, export.diff(before, after, ladder[-1].name)


def script(run: Run, set_up: bool = False) -> str:
    """The script of a measured run's recipe; to look at, or set up to run here."""
    recipe, steps = Recipe.from_dict(run.recipe), len(run.losses) or 8
    return export.script(recipe, run.workload, run.options, run.device, run.seed, steps, set_up)


def scripts(runs: Sequence[Run]) -> dict[str, str]:
    """The scripts of measured runs, by their ids; the reason in place of one that cannot be written here."""
    texts: dict[str, str] = {}
    for run in runs:
        if run.status == "ok" and run.script is None and not run.is_again:
            try:
                texts[run.id] = script(run)
            except (PerfkitError, ValueError) as problem:  # it is of another machine or version
                texts[run.id] = f"# There is no script: {' '.join(str(problem).split())}\n"
    return texts
