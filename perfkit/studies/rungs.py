"""The rungs of a plan: their recipes on a machine, why some cannot act there, their diffs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from perfkit import export, machine
from perfkit.errors import InvalidValue
from perfkit.ladder import presets
from perfkit.ladder import stages as ladder
from perfkit.ladder.catalogue import LADDER, optimization
from perfkit.ladder.stages import KEPT, Stage
from perfkit.recipe import Recipe
from perfkit.results.run import AGAIN, Run, slug
from perfkit.rules import Target, applicable, joined, not_anchored
from perfkit.studies.progress import Progress
from perfkit.studies.sources import Plan, Source, described, opened
from perfkit.worker.messages import Description


def first(plan: Plan, target: Target) -> Stage:
    """The stage that a ladder starts from: the plain loop, or the default ladder below the first rung.

    Raises:
        InvalidValue: a simulated GPU has no figures for its precision.
    """
    below = ladder.below(plan.stages[0]) if plan.below and plan.stages else ()
    recipe = ladder.build(below, _sizes(plan, target), target)[-1].recipe
    recipe, reasons = applicable(recipe.replace(**plan.settings), target)
    if reason := not_anchored(recipe, target):
        start = "Start from one of them, such as --set amp=fp16" if target.anchored else "Choose another GPU"
        raise InvalidValue(reason, start)
    return Stage("baseline", "before" if below else "baseline", recipe, not_applied=reasons)


def rung(plan: Plan, target: Target, name: str, before: Recipe) -> Stage:
    """A rung on top of a recipe, with the plan's own values for its switches."""
    stage = ladder.stage(optimization(name), before, _sizes(plan, target), target)
    if stage.reason or not plan.changes:
        return stage
    recipe, reasons = applicable(stage.recipe.replace(**plan.changes), target)
    return replace(stage, recipe=recipe, not_applied={**(stage.not_applied or {}), **reasons})


def _sizes(plan: Plan, target: Target) -> presets.Sizing:
    return presets.sizing(plan.preset, target, target.cores or machine.usable_cores())


def names(plan: Plan) -> list[str]:
    """The rungs above the first stage."""
    return [name for name in plan.stages if name != "baseline"]


def all_stages(source: Source) -> list[Stage]:
    """The stages as they would run if every rung were kept; those of a recording as they were recorded."""
    if stored := source.stored():
        return [
            Stage(run.stage, run.title, Recipe.from_dict(run.recipe), reason=run.reason)
            for run in stored
            if run.stage not in (AGAIN, KEPT)
        ]
    plan = source.plan
    return recipe_stages(plan.recipes, source.target) or ladder_stages(plan, source.target)


def ladder_stages(plan: Plan, target: Target) -> list[Stage]:
    """The stages of a plan on a target if every rung is kept."""
    stages = [first(plan, target)]
    for name in names(plan):
        stages.append(rung(plan, target, name, stages[-1].recipe))
    return stages


def recipe_stages(recipes: Iterable[tuple[str, Recipe]], target: Target) -> list[Stage]:
    """Titled recipes as stages, as far as they can act."""
    stages: list[Stage] = []
    plain: Recipe | None = None
    for title, wanted in recipes:
        recipe, reasons = applicable(wanted, target)
        plain = plain or wanted
        # If nothing is left of what it changes, measuring would show the first recipe again.
        nothing_left = bool(stages and reasons) and recipe == stages[0].recipe and wanted != plain
        reason = joined(reasons) if nothing_left else ""
        stages.append(Stage(slug(title), title, recipe, reason=reason, not_applied=reasons))
    return stages


def resolve(plan: Plan) -> tuple[Description, list[Stage]]:
    """What the workload and the device report, and the stages as they would run here, or were recorded.

    Nothing is trained; a child loads the workload, so that this process stays clean.

    Raises:
        PerfkitError: the workload cannot be loaded.
    """
    with opened(plan, Progress()) as source:
        return source.description, all_stages(source)


def top(plan: Plan, description: Description) -> Recipe:
    """The whole default ladder, as far as it can act where a plan runs."""
    target = described(plan, description).target
    return ladder_stages(replace(plan, stages=LADDER), target)[-1].recipe


def switch_rule(plan: Plan, description: Description) -> Callable[[str, Recipe], str]:
    """Tells why a switch of a recipe cannot be set here; an empty text if it can."""
    return described(plan, description).why_not_set


def acting(stage: Stage) -> Stage:
    """The stage, if it can act.

    Raises:
        InvalidValue: it cannot.
    """
    if stage.reason:
        raise InvalidValue(f"stage '{stage.name}' does not apply here: {stage.reason}", "Choose another")
    return stage


# ---------------------------------------------------------------- scripts

_MANY = 8
"""GPUs of the machine that a diff is shown for if there is none here: enough for every rung."""


def stage_diffs(plan: Plan, description: Description | None = None) -> list[tuple[str, str]]:
    """What the last rung of a plan changes in the script: headings with their diffs.

    The first is that of this machine, or of the recording; the second, if it differs, that of a machine with
    GPUs: exporting a script needs none. A heading with an empty diff says why there is none.

    Args:
        plan: the stages.
        description: of the workload, if it is loaded already.

    Raises:
        PerfkitError: the workload cannot be loaded.
    """
    source = described(plan, description or resolve(plan)[0])
    reason, text = _last_diff(source, all_stages(source))
    diffs = [(f"n/a here: {reason}" if reason else "What it changes", text)]
    if source.target.device == "cuda":
        return diffs
    gpus = replace(source.target, device="cuda", bf16=True, compiler=True, count=_MANY)
    other_reason, other = _last_diff(source, ladder_stages(plan, gpus), "cuda")
    if other and _changed(other) != _changed(text):
        diffs.append(("What it changes on a GPU", other))
    elif reason and other_reason not in ("", reason):
        diffs.append((f"n/a on a GPU too: {other_reason}", ""))
    return diffs


def _last_diff(source: Source, stages: Sequence[Stage], device: str = "") -> tuple[str, str]:
    """Why the last stage cannot act, or what it changes."""
    before, last = stages[-2:] if len(stages) > 1 else (stages[0], stages[0])
    if last.reason:
        return last.reason, ""
    plan = source.plan
    texts = [
        script(stage.recipe, source.description, device or plan.device, plan.seed) for stage in (before, last)
    ]
    return "", export.diff(texts[0], texts[1], (f"train.py before {last.name}", f"train.py with {last.name}"))


def _changed(diff: str) -> list[str]:
    return [line for line in diff.splitlines() if line[:1] in "+-"]


def script(recipe: Recipe, description: Description, device: str, seed: int = 0, steps: int = 8) -> str:
    """The standalone script of a recipe for a workload that was loaded."""
    return export.script(recipe, description.reference, description.options, _kind(device), seed, steps)


def scripts(runs: Sequence[Run]) -> dict[str, str]:
    """The script of each stage that was measured, by its title."""
    return {
        run.title: export.script(
            Recipe.from_dict(run.recipe),
            run.workload,
            run.options,
            _kind(run.device),
            run.seed,
            len(run.losses) or 8,
        )
        for run in runs
        if run.status == "ok" and not run.is_script and run.stage != AGAIN
    }


def _kind(device: str) -> str:
    """The device that a script names: a simulated GPU is a CUDA device there."""
    return "cuda" if device.startswith("sim:") else device
