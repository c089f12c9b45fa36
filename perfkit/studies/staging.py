"""The ladder: its stages on a machine, their scripts and diffs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from perfkit import export
from perfkit.errors import InvalidValue, PerfkitError
from perfkit.ladder import catalogue
from perfkit.ladder.catalogue import NOT_STAGES, Stage, optimization, sizing
from perfkit.recipe import Recipe, Value, switches
from perfkit.results import AGAIN, Run
from perfkit.rules import Target, applicable, joined
from perfkit.studies.sources import Plan, Progress, Source


def first(plan: Plan, target: Target) -> Stage:
    """The stage that a ladder starts from: the plain loop, or the default ladder below the first stage."""
    below: tuple[str, ...] = ()
    if plan.ladder.below and plan.ladder.stages:
        below = catalogue.below(plan.ladder.stages[0])
    recipe = Recipe(batch_size=plan.subject.size.batch_size)
    for name in below:
        recipe = stage_of(plan, target, name, recipe, {}).recipe
    recipe, reasons = applicable(recipe.replace(**plan.ladder.settings), target)
    refused = {name: reason for name in switches() if (reason := target.refuses(name, recipe))}
    if refused:  # there is nothing to reset a default to
        raise InvalidValue(joined(refused), "Start from another setting, such as --set amp=fp16")
    return Stage("baseline", "before" if below else "baseline", recipe, not_applied=reasons)


def stage_of(plan: Plan, target: Target, name: str, before: Recipe, changes: Mapping[str, Value]) -> Stage:
    """A stage on top of a recipe, with these values for its switches."""
    card = optimization(name)
    completed = structs.replace(card, settings={**card.settings, **plan.ladder.also.get(name, {}), **changes})
    return catalogue.stage(completed, before, sizing(plan.subject.size, target), target)


def ladder_stages(plan: Plan, target: Target) -> list[Stage]:
    """The stages of a plan on a target if every one is kept."""
    ladder = [first(plan, target)]
    for name in plan.ladder.stages:
        ladder.append(stage_of(plan, target, name, ladder[-1].recipe, plan.ladder.changes))
    return ladder


def recipe_stages(recipes: Iterable[tuple[str, Recipe]], target: Target) -> list[Stage]:
    """Titled recipes as stages, as far as they can act."""
    stages: list[Stage] = []
    for title, wanted in recipes:
        recipe, reasons = applicable(wanted, target)
        # If nothing is left of what it changes, measuring would show the first recipe again.
        nothing_left = stages and recipe == stages[0].recipe and reasons != stages[0].not_applied
        reason = joined(reasons) if nothing_left else ""
        stages.append(Stage(title, title, recipe, reason=reason, not_applied=reasons))
    return stages


def all_stages(source: Source) -> list[Stage]:
    """The stages as they would run if every one were kept; those of a recording as they were recorded."""
    if runs := source.stored():
        if not source.plan.ladder.below:  # what is below a stage may be several that were kept
            runs = [run for run in runs if run.stage not in NOT_STAGES]
        return [Stage(run.stage, run.title, Recipe.from_dict(run.recipe), reason=run.reason) for run in runs]
    plan = source.plan
    return recipe_stages(plan.ladder.recipes, source.target) or ladder_stages(plan, source.target)


def loaded(plan: Plan) -> Source:
    """A plan's source that knows what the workload and the device report.

    A child loads the workload, so that this process stays clean; nothing is trained, so no lock is taken.
    """
    with plan.source().session(Progress(), None) as session:
        return session.source


def acting(source: Source) -> Stage:
    """The last stage of a source's plan; an `InvalidValue` says why it, or what the plan sets, cannot act."""
    stages = all_stages(source)
    settings = source.plan.ladder.settings
    if refused := {name: why for name, why in stages[0].not_applied.items() if name in settings}:
        what = f"what is set cannot act here: {joined(refused)}"
        raise InvalidValue(what, "Set what it acts with, too, or leave it out")
    stage = stages[-1]
    if stage.reason:
        raise InvalidValue(f"stage '{stage.name}' does not apply here: {stage.reason}", "Choose another")
    return stage


def again(stage: Stage) -> Stage:
    """The A/A row of a baseline."""
    return replace(stage, name=AGAIN, title=f"{stage.title} (again)", not_applied={})


def stage_diff(source: Source) -> tuple[str, str]:
    """What the last stage of a source's plan changes in the script: a heading, and a diff.

    Where the stage cannot act the heading says why, and the diff is that of a machine with GPUs, if it acts
    there: exporting a script needs none.
    """
    plan = source.plan
    subject = plan.subject
    ladder = all_stages(source)
    heading = "What it changes"
    if reason := ladder[-1].reason:
        with_gpu = Target("cuda", source.target.offers, source.target.convolves)
        subject = replace(subject, device="cuda")
        ladder = ladder_stages(plan, with_gpu)
        heading = f"n/a here: {reason}"
        if ladder[-1].reason:
            return heading, ""
        heading += "; what it changes on a GPU"
    training = (subject.workload, source.description.options, subject.device, subject.seed)
    below = ladder[-2] if len(ladder) > 1 else ladder[-1]
    before = export.script(below.recipe, *training, set_up=False)
    after = export.script(ladder[-1].recipe, *training, set_up=False)
    return heading, export.diff(before, after, ladder[-1].name)


def script(run: Run, set_up: bool = False) -> str:
    """The script of a measured run's recipe; to look at, or set up to run here."""
    recipe = Recipe.from_dict(run.recipe)
    steps = len(run.losses) or 8
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
