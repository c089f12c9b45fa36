"""A recording as a source of runs: the stored run of each stage, in the place of measuring."""

from dataclasses import replace
from functools import cached_property
from typing import Self

from perfkit.errors import InvalidValue
from perfkit.ladder import presets
from perfkit.ladder.catalogue import KEPT, optimization
from perfkit.recipe import Recipe
from perfkit.results import recordings
from perfkit.results.recordings import ORIGIN
from perfkit.results.run import AGAIN, OF_SESSION, Run, slug
from perfkit.rules import Target
from perfkit.studies.sources import Plan, Request, Source
from perfkit.worker.messages import Description, DeviceFacts

_AS_IT_IS = "a recording is played with the switches that it was recorded with"


class Recorded(Source):
    """Shows the runs of a recording; nothing is measured, and nothing is stored."""

    @classmethod
    def checked(cls, request: Request) -> Plan:
        """A plan with the workload, options and preset of the recording."""
        name = (request.device or "").removeprefix(recordings.PREFIX)
        runs = recordings.find(name).runs
        first = runs[0]
        if request.workload or request.preset or request.options:
            options = ", ".join(f"{key}={value}" for key, value in first.options.items())
            raise InvalidValue(
                f"the recording '{name}' is of {first.workload} ({options}), preset {first.preset or '–'}",
                "Leave workload, preset and options out to play it, or choose another device",
            )
        sizes = presets.PRESETS.get(first.preset, presets.PRESETS["quick"])
        size = replace(sizes, name=first.preset, batch_size=Recipe.from_dict(first.recipe).batch_size)
        names = [run.stage for run in runs if run.stage not in (AGAIN, KEPT)]
        stages = tuple(names if request.stages is None else request.stages)
        return Plan(first.workload, size, first.device, stages, cls, options=first.options, recorded=name)

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
            raise InvalidValue(
                f"'{self.plan.recorded}' is a recording: it is played, and nothing can be measured on it",
                "perfkit run, perfkit show and the panels play it; for this, choose another device",
            )

    def why_not_set(self, name: str, recipe: Recipe) -> str:
        return _AS_IT_IS

    def stored(self) -> list[Run]:
        """The runs that the plan asks for, in its order; a missing one says what the recording has."""
        plan, runs = self.plan, self._runs
        if plan.settings or plan.changes:
            raise InvalidValue(_AS_IT_IS, "Leave its switches as they are, or choose another device")
        if plan.recipes:
            return [self._of_recipe(title, recipe) for title, recipe in plan.recipes]
        first, stages = runs[0], {run.stage: run for run in runs}
        names = [name for name in plan.stages if name != first.stage]
        rows = [stages.get(name) or self._missing(name, optimization(name).title) for name in names]
        before, ends = first, list[Run]()
        if not plan.below:
            is_whole = stages.keys() <= {first.stage, *names, AGAIN, KEPT}
            ends = [run for run in runs if run.stage == AGAIN or (is_whole and run.stage == KEPT)]
        elif rows:
            before = rows[0].previous(runs) or first
        return [before, *rows, *ends]

    def _of_recipe(self, title: str, recipe: Recipe) -> Run:
        matches = (run for run in self._measured if Recipe.from_dict(run.recipe) == recipe)
        return next(matches, None) or self._missing(slug(title), title)

    def _missing(self, stage: str, title: str) -> Run:
        """A run of the same session that was never measured."""
        first = self._runs[0]
        titles = ", ".join(run.title or run.stage for run in self._measured)
        return Run(
            id=f"not-recorded-{stage}",
            stage=stage,
            title=title,
            recipe=first.recipe,
            status="not_applicable",
            reason=f"not in this recording, which has {titles}",
            facts={ORIGIN: first.facts[ORIGIN]},
            **{name: getattr(first, name) for name in OF_SESSION},
        )
