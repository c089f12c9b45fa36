"""A recording in the place of a measurement: the stored runs of the stages that a plan asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Unpack

import msgspec

from perfkit.ladder.catalogue import OPTIMIZATIONS
from perfkit.ladder.stages import AGAIN, Stage
from perfkit.recipe import Recipe
from perfkit.results import recordings
from perfkit.results.recordings import ORIGIN
from perfkit.results.run import Run, slug
from perfkit.studies.plan import Plan, Progress, Watch
from perfkit.worker.messages import Description, DeviceFacts


def play(plan: Plan, **watch: Unpack[Watch]) -> list[Run]:
    """The recorded runs of a plan's stages or recipes; nothing is measured, and nothing is stored.

    What the recording lacks is a run that is not applicable, with what the recording has.

    Raises:
        InvalidValue: there is no such recording.
        StoreError: its file is damaged.
    """
    runs = chosen(plan)
    for count, run in enumerate(runs, 1):
        if tell := watch.get("on_progress"):
            tell(Progress(run.title, "recorded", count / len(runs), run))
    return runs


def resolve(plan: Plan) -> tuple[Description, list[Stage]]:
    """What the workload and the device were, and the stages as they were recorded."""
    runs = chosen(plan)
    description = Description(
        reference=runs[0].workload, options=runs[0].options, offers=[], facts=DeviceFacts(0, "")
    )
    return description, [
        Stage(run.stage, run.title, Recipe.from_dict(run.recipe), reason=run.reason)
        for run in runs if run.stage != AGAIN
    ]  # fmt: skip


def switch_rule(plan: Plan) -> Callable[[str, Recipe], str]:
    """Why a switch cannot be set: it has its default in all runs of the recording; else an empty text."""
    measured = [Recipe.from_dict(run.recipe) for run in _runs(plan) if run.status == "ok"]
    changed = {name for recipe in measured for name in recipe.diff(Recipe())}

    def why_not(name: str, recipe: Recipe) -> str:
        return "" if name in changed else "not in this recording"

    return why_not


def chosen(plan: Plan) -> list[Run]:
    """The runs that a plan asks for, in its order."""
    runs = _runs(plan)
    if plan.recipes:
        return [_with_recipe(runs, slug(title), title, recipe) for title, recipe in plan.recipes]
    by_name = {run.stage: run for run in reversed(runs)}
    names = [name for name in plan.stages if name != runs[0].stage]
    rows = [by_name.get(name) or _missing(runs, name, _title(name), runs[0].recipe) for name in names]
    if plan.changes:
        rows = [_changed(runs, run, plan) for run in rows]
    first = _before(runs, rows[0]) if plan.below and rows else runs[0]
    again = [] if plan.below else [run for run in runs if run.stage == AGAIN]
    return [_as_set(runs, run, plan) for run in [first, *rows]] + again


def _runs(plan: Plan) -> list[Run]:
    return recordings.played(recordings.find(plan.recorded))


def _before(runs: Sequence[Run], run: Run) -> Run:
    """The run that this one was compared with; the last measured one ahead of it where there was none."""
    pairing = run.pairing("previous")
    compared = [other for other in runs if pairing and other.id == pairing.against]
    at = runs.index(run) if run in runs else len(runs)
    ahead = [other for other in runs[:at] if other.status == "ok" and other.stage != AGAIN]
    return next(iter(compared), (ahead or [runs[0]])[-1])


def _changed(runs: Sequence[Run], run: Run, plan: Plan) -> Run:
    """The run of a stage with the plan's own values for some switches."""
    wanted = Recipe.from_dict(run.recipe).replace(**plan.changes)
    return run if _same(run, wanted) else _with_recipe(runs, run.stage, run.title, wanted)


def _as_set(runs: Sequence[Run], run: Run, plan: Plan) -> Run:
    """The run, if it was recorded with the plan's settings."""
    wanted = Recipe.from_dict(run.recipe).replace(**plan.settings)
    return run if _same(run, wanted) else _missing(runs, run.stage, run.title, wanted.to_dict())


def _with_recipe(runs: Sequence[Run], stage: str, title: str, recipe: Recipe) -> Run:
    matches = (run for run in runs if run.status == "ok" and _same(run, recipe))
    return next(matches, _missing(runs, stage, title, recipe.to_dict()))


def _same(run: Run, recipe: Recipe) -> bool:
    return Recipe.from_dict(run.recipe) == recipe


def _missing(runs: Sequence[Run], stage: str, title: str, recipe: dict[str, Any]) -> Run:
    there = ", ".join(_titles(runs))
    return msgspec.structs.replace(
        _blank(runs[0]), id=f"not-recorded-{stage}", stage=stage, title=title, recipe=recipe,
        reason=f"not in this recording, which has {there}",
    )  # fmt: skip


def _blank(like: Run) -> Run:
    """A run of the same session that was never measured."""
    kept = ("session", "created", "workload", "options", "preset", "device", "seed", "machine")
    about = {name: getattr(like, name) for name in kept}
    origin = {ORIGIN: like.facts[ORIGIN]}
    return Run(id="", stage="", recipe={}, status="not_applicable", facts=origin, **about)


def _titles(runs: Sequence[Run]) -> Iterator[str]:
    return (run.title or run.stage for run in runs if run.status == "ok" and run.stage != AGAIN)


def _title(name: str) -> str:
    return OPTIMIZATIONS[name].title if name in OPTIMIZATIONS else name
