"""The stages of a ladder, each built on the last one that worked, measured together."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace
from typing import Unpack

from perfkit import machine
from perfkit.errors import InvalidValue
from perfkit.ladder import presets
from perfkit.ladder import stages as ladder
from perfkit.ladder.catalogue import LADDER
from perfkit.ladder.stages import Stage
from perfkit.recipe import Recipe
from perfkit.results.run import Run, slug
from perfkit.results.store import RunStore
from perfkit.rules import Target, applicable, joined, not_anchored, why_not
from perfkit.simulate import study as virtual
from perfkit.studies import recorded
from perfkit.studies.engine import Trial, measure, schedule_of
from perfkit.studies.plan import Plan, Watch, recipe_diff, target
from perfkit.studies.setup import Setup, prepare
from perfkit.worker.messages import Description


def measure_ladder(plan: Plan, store: RunStore | None = None, **watch: Unpack[Watch]) -> list[Run]:
    """Measures every stage of a plan, in the same rounds where memory allows; see `engine.measure`.

    A stage that fails does not stop the others: they build on the last stage that worked.

    Args:
        plan: what to measure.
        store: where runs are kept; None keeps none.
        watch: `on_progress`, called often, and `cancelled`, an event; see `Watch`.

    Raises:
        PerfkitError: the workload cannot be loaded at all.
        KeyboardInterrupt: after every child has ended.
    """
    if plan.recorded:
        return recorded.play(plan, **watch)
    failed: list[str] = []
    with prepare(plan, **watch) as setup:
        total = len(plan.recipes) or len(ladder.rungs(plan.stages))
        stages = recipe_stages(plan.recipes, setup.target) or ladder_stages(plan, setup.target, failed)
        if plan.host:
            return list(virtual.compute(stages, setup, total, store, failed))
        trials = (Trial(stage, total) for stage in stages)
        schedule = schedule_of(plan)
        return list(measure(trials, setup, schedule, store, lambda stage: failed.append(stage.name)))


def ladder_stages(plan: Plan, target: Target, failed: Container[str] = ()) -> Iterator[Stage]:
    """The stages of a plan, in order.

    Args:
        plan: what to measure.
        target: where.
        failed: names of stages that could not be measured, which may grow while the stages are drawn: each
            stage builds on the last one that is not among them.
    """
    cores = plan.host.processors if plan.host else machine.usable_cores()
    sizes = presets.sizing(plan.preset, target, cores)
    below = ladder.below(plan.stages[0]) if plan.below and plan.stages else ()
    first = ladder.build(below, sizes, target)[-1]
    recipe, reasons = applicable(first.recipe.replace(**plan.settings), target)
    if reason := not_anchored(recipe, target):
        start = "Start from one of them, such as --set amp=fp16" if target.anchored else "Choose another GPU"
        raise InvalidValue(reason, start)
    yield Stage("baseline", "before" if below else "baseline", recipe, not_applied=reasons)
    for rung in ladder.rungs(plan.stages)[1:]:
        stage = _with_changes(ladder.stage(rung, recipe, sizes, target), plan, target)
        yield stage
        if stage.name not in failed:
            recipe = stage.recipe


def _with_changes(stage: Stage, plan: Plan, target: Target) -> Stage:
    """A stage with the plan's own values for its switches."""
    if stage.reason or not plan.changes:
        return stage
    recipe, reasons = applicable(stage.recipe.replace(**plan.changes), target)
    return replace(stage, recipe=recipe, not_applied={**(stage.not_applied or {}), **reasons})


def recipe_stages(recipes: Iterable[tuple[str, Recipe]], target: Target) -> list[Stage]:
    """Titled recipes as stages, as far as they can act."""
    stages: list[Stage] = []
    first: Recipe | None = None
    for title, wanted in recipes:
        recipe, reasons = applicable(wanted, target)
        first = first or wanted
        # If nothing is left of what it changes, measuring would show the first recipe again.
        nothing_left = bool(stages and reasons) and recipe == stages[0].recipe and wanted != first
        reason = joined(reasons) if nothing_left else ""
        stages.append(Stage(slug(title), title, recipe, reason=reason, not_applied=reasons))
    return stages


def resolve(plan: Plan) -> tuple[Description, list[Stage]]:
    """What the workload and the device report, and the stages as they would run here, or were recorded.

    Nothing is trained; a child loads the workload, so that this process stays clean.

    Raises:
        PerfkitError: the workload cannot be loaded.
    """
    if plan.recorded:
        return recorded.resolve(plan)
    with Setup(plan) as setup:
        return setup.description, list(ladder_stages(plan, setup.target))


def switch_rule(plan: Plan, description: Description) -> Callable[[str, Recipe], str]:
    """Why a switch, as a recipe sets it, cannot act where a plan runs; gives an empty text where it can."""
    if plan.recorded:
        return recorded.switch_rule(plan)
    where = target(plan, description)
    return lambda name, recipe: why_not(name, recipe, where)


def top(plan: Plan, description: Description) -> Recipe:
    """The whole default ladder, as far as it can act where a plan runs."""
    *_, last = ladder_stages(replace(plan, stages=LADDER), target(plan, description))
    return last.recipe


def stage_diffs(plan: Plan, description: Description | None = None) -> list[tuple[str, str]]:
    """What the last stage of a plan changes in the script: headings with their diffs.

    First the recipes as this machine measures them; then, where that differs, as a machine with GPUs would:
    exporting a script needs no GPU. A heading with an empty diff says why there is none.

    Args:
        plan: the stages.
        description: of the workload, where it is loaded already.

    Raises:
        PerfkitError: the workload cannot be loaded.
    """
    if plan.recorded:
        return [_recorded_diff(plan)]
    description = description or resolve(plan)[0]
    here = target(plan, description)
    reason, text = _last_diff(plan, description, here)
    diffs = [(f"n/a here: {reason}" if reason else "What it changes here", text)]
    if here.device == "cuda":
        return diffs
    gpus = replace(here, device="cuda", bf16=True, compiler=True, count=_MANY)
    other_reason, other = _last_diff(replace(plan, device="cuda"), description, gpus)
    if other and _changed(other) != _changed(text):
        diffs.append(("What it changes on a GPU", other))
    elif reason and other_reason not in ("", reason):
        diffs.append((f"n/a on a GPU too: {other_reason}", ""))
    return diffs


def _recorded_diff(plan: Plan) -> tuple[str, str]:
    description, stages = recorded.resolve(plan)
    before, last = (stages * 2)[:2] if len(stages) < 2 else stages[-2:]
    if last.reason:
        return f"n/a in this recording: {last.reason}", ""
    changes = recipe_diff(plan, description, before.recipe, last.recipe, last.name)
    return "What it changed where it was recorded", changes


_MANY = 8
"""GPUs of the machine that a diff is shown for where there is none: enough for every stage."""


def _last_diff(plan: Plan, description: Description, where: Target) -> tuple[str, str]:
    """Why the last stage cannot act on a target, or its diff there."""
    stages = list(ladder_stages(plan, where))
    before, last = stages[-2:] if len(stages) > 1 else (stages[0], stages[0])
    if last.reason:
        return last.reason, ""
    return "", recipe_diff(plan, description, before.recipe, last.recipe, last.name)


def _changed(diff: str) -> list[str]:
    return [line for line in diff.splitlines() if line[:1] in "+-"]


def acting(stage: Stage) -> Stage:
    """The stage, if it can act.

    Raises:
        InvalidValue: it cannot.
    """
    if stage.reason:
        raise InvalidValue(f"stage '{stage.name}' does not apply here: {stage.reason}", "Choose another")
    return stage
