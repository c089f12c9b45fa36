"""A recording as a source of runs: the stored run of each stage, in the place of measuring."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Self

from perfkit import workloads
from perfkit.errors import InvalidValue
from perfkit.ladder import presets
from perfkit.ladder.catalogue import KEPT, OPTIMIZATIONS, optimization
from perfkit.recipe import Recipe, Value
from perfkit.results import recordings
from perfkit.results.recordings import ORIGIN
from perfkit.results.run import AGAIN, OF_SESSION, Run, slug
from perfkit.rules import Target
from perfkit.studies.sources import NotHere, Plan, Request, Source
from perfkit.worker.messages import Description, DeviceFacts

_ENDS = (AGAIN, KEPT)


class Recorded(Source):
    """Shows the runs of a recording; nothing is measured, and nothing is stored."""

    why_not = "it is a recording, which is only played"
    noisy = False

    @classmethod
    def checked(cls, request: Request) -> Plan:
        """A plan with the workload, options and preset of the recording."""
        name = (request.device or "").removeprefix(recordings.PREFIX)
        runs = recordings.find(name).runs
        first, known = runs[0], [run.stage for run in runs if run.stage not in _ENDS]
        for stage in request.stages or []:
            if stage not in known:
                optimization(stage)
        workload, options = request.workload, request.options
        same = {
            "workload": workload is None or first.workload in (workload, workloads.reference(workload)),
            "preset": request.preset in (None, first.preset),
            "option": all(first.options.get(key) == value for key, value in options.items()),
        }
        if other := [what for what, is_same in same.items() if not is_same]:
            raise InvalidValue(
                f"the recording '{name}' is of another {' and '.join(other)}: {first.workload} at the preset "
                f"{first.preset or '–'}",
                "Leave workload, preset and options out to play it, or choose another device",
            )
        sizes = presets.PRESETS.get(first.preset, presets.PRESETS["quick"])
        size = replace(sizes, name=first.preset, batch_size=Recipe.from_dict(first.recipe).batch_size)
        names = tuple(known if request.stages is None else request.stages)
        return Plan(first.workload, size, first.device, names, cls, options=first.options, recorded=name)

    def __enter__(self) -> Self:
        first = self._runs[0]
        self.description = Description(first.workload, first.options, [], DeviceFacts(0, ""))
        return self

    @cached_property
    def _runs(self) -> list[Run]:
        return recordings.played(recordings.find(self.plan.recorded))

    @cached_property
    def _measured(self) -> list[Run]:
        return [run for run in self._runs if run.status == "ok"]

    @property
    def target(self) -> Target:
        return Target(device=self.plan.device.split(":")[0])

    def require(self, study: str) -> None:
        """Refuses every study."""
        if study:
            raise NotHere(
                f"'{self.plan.recorded}' is a recording: it is played, and nothing can be measured on it",
                "perfkit run, perfkit show and the panels play it; for this, choose another device",
            )

    def why_not_set(self, name: str, recipe: Recipe) -> str:
        """A switch can be set if some run of the recording has it changed."""
        recipes = (Recipe.from_dict(run.recipe) for run in self._measured)
        return "" if any(name in each.diff(Recipe()) for each in recipes) else "not in this recording"

    def stored(self) -> list[Run]:
        """The runs that the plan asks for, in its order; a missing one says what the recording has."""
        plan, (first, *others) = self.plan, self._runs
        if plan.recipes:
            return [self._with_recipe(slug(title), title, recipe) for title, recipe in plan.recipes]
        names = [name for name in plan.stages if name != first.stage]
        rows = [self._with(self._of_stage(name), plan.changes) for name in names]
        if plan.below:
            rows.insert(0, self._before(rows[0]) if rows else first)
        else:
            is_whole = {run.stage for run in others} <= {*plan.stages, *_ENDS}
            ends = _ENDS if is_whole else (AGAIN,)
            rows = [first, *rows, *(run for run in self._runs if run.stage in ends)]
        return [run if run.stage in _ENDS else self._with(run, plan.settings) for run in rows]

    def _of_stage(self, name: str) -> Run:
        matches = (run for run in self._runs if run.stage == name)
        title = OPTIMIZATIONS[name].title if name in OPTIMIZATIONS else name
        return next(matches, None) or self._missing(name, title, Recipe.from_dict(self._runs[0].recipe))

    def _with(self, run: Run, settings: Mapping[str, Value]) -> Run:
        """The run, or one of the same stage with these switches."""
        recipe = Recipe.from_dict(run.recipe)
        wanted = recipe.replace(**settings)
        return run if wanted == recipe else self._with_recipe(run.stage, run.title, wanted)

    def _with_recipe(self, stage: str, title: str, recipe: Recipe) -> Run:
        matches = (run for run in self._measured if Recipe.from_dict(run.recipe) == recipe)
        return next(matches, None) or self._missing(stage, title, recipe)

    def _before(self, run: Run) -> Run:
        """The run that this one was compared with; the last measured one ahead of it if there is none."""
        at = self._runs.index(run) if run in self._runs else len(self._runs)
        ahead = [other for other in self._runs[:at] if other.status == "ok" and other.stage not in _ENDS]
        return run.previous(self._runs) or (ahead[-1] if ahead else self._runs[0])

    def _missing(self, stage: str, title: str, recipe: Recipe) -> Run:
        """A run of the same session that was never measured."""
        first = self._runs[0]
        titles = ", ".join(run.title or run.stage for run in self._measured)
        return Run(
            id=f"not-recorded-{stage}",
            stage=stage,
            title=title,
            recipe=recipe.to_dict(),
            status="not_applicable",
            reason=f"not in this recording, which has {titles}",
            facts={ORIGIN: first.facts[ORIGIN]},
            **{name: getattr(first, name) for name in OF_SESSION},
        )
