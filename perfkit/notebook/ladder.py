"""A ladder of stages, or some recipes, in a notebook; results of earlier sessions are recalled."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from perfkit.errors import PerfkitError, one_of
from perfkit.ladder.stages import Stage
from perfkit.notebook import layout
from perfkit.notebook.panel import Panel, is_of, refuse_object
from perfkit.notebook.shown import Shown
from perfkit.notebook.where import Chooser, Place
from perfkit.recipe import Recipe
from perfkit.results.parity import Parity
from perfkit.results.run import Run, slug
from perfkit.results.store import RunStore
from perfkit.show import html, results, tables_studies
from perfkit.show.document import Content
from perfkit.studies import ladder as ladders
from perfkit.studies import parity as proving
from perfkit.studies import plan as plans
from perfkit.studies import scaling
from perfkit.worker.messages import Description

Recipes = Mapping[str, Mapping[str, Any]]
"""Titles, and the switches that differ from the plain loop."""


def date(runs: Sequence[Run]) -> str:
    """When a session began."""
    return f"{runs[0].created[:16].replace('T', ' ')} UTC"


class LadderPanel(Panel):
    """A ladder of stages on a workload.

    Args:
        stages: optimizations in their order; the whole default ladder if None.
        workload: a built-in one, or `package.module:name`; the preset's own if None.
        preset: `smoke`, `quick` or `paper`; what `PERFKIT_PRESET` says, or what suits the machine, if None.
        device: `cuda`, `mps`, `cpu`, `sim:v100` …, or `recorded:NAME`; the session's choice if None.
        settings: switches set from the first stage on.
        options: the workload's constructor arguments.
        host: of a simulated GPU: `mine` (the loader is real), `article`, `ideal`, or its numbers.

    Raises:
        InvalidValue: a name or value that is not allowed.
    """

    from_below = False
    """Whether the first stage is the default ladder below the others, not the plain loop."""
    prediction: float | None = None
    """How many times as fast the last stage will be; only `StagePanel` asks for it."""
    _titles: Recipes = MappingProxyType({})
    _where: Chooser

    def __init__(
        self, stages: Sequence[str] | None = None, workload: str | None = None, preset: str | None = None,
        device: str | None = None, settings: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None, host: str | None = None,
    ) -> None:  # fmt: skip
        refuse_object(workload)
        self._asked: dict[str, Any] = {
            "workload": workload, "preset": preset, "stages": stages, "settings": settings, "options": options
        }  # fmt: skip
        self._where = Chooser(self._planned, Place(device, host), self._move)
        self.plan = self._where.plan
        self._parity: Parity | None = None
        self._recalled = False
        self._resolving = threading.Lock()
        self._stages: list[Stage] | None = None
        self._described: Description
        self._unreadable = ""
        self._report = layout.html_slot("pk-report")
        self._above = [self._where.widget, *self._above]
        self._below = [self._report]
        what = self.plan.workload, self.plan.stages, self.plan.recipes, device, host
        super().__init__(" ".join(map(str, [type(self).__name__, *what])))

    # ------------------------------------------------------------ where

    def _planned(self, place: Place) -> plans.Plan:
        plan = plans.plan(device=place.device, host=place.host, below=self.from_below, **self._asked)
        base = Recipe(batch_size=plan.preset.batch_size).replace(**plan.settings)
        recipes = tuple((title, base.replace(**changes)) for title, changes in self._titles.items())
        return replace(plan, recipes=recipes)

    def _move(self, plan: plans.Plan) -> None:
        """Another place was chosen: the stages are read again, and the results of the old one go."""
        self.plan, self._stages, self._unreadable = plan, None, ""
        self.runs, self._recalled, self._parity, self._report.value = [], False, None, ""
        self._status.clear("press Run")
        self._draw()
        self._draw_still()
        self._start_reading()

    # ------------------------------------------------------------ measuring

    def _measure(self) -> list[Run]:
        self.runs, self._recalled, self._parity, self._report.value = [], False, None, ""
        try:
            self.runs = ladders.measure_ladder(
                self.plan, RunStore(), on_progress=self._follow, cancelled=self._job.cancelled
            )
            self._prove()
        finally:
            self._draw()
            self._offer_report()
        return self.runs

    def _keep(self, run: Run) -> None:
        self.runs = [*self.runs, run]
        if not self.plan.recorded:  # all of it comes at once
            self._draw()

    def _prove(self) -> None:
        """Checks, after measuring, whether what was measured still trains the same."""

    def _has_pictures(self) -> bool:
        """A recording that only its outputs show, such as `table()`, appears at once."""
        return not self.plan.recorded or self._reader is not None

    def _offer_report(self) -> None:
        """Links to the report; not while stages are measured, as its pictures are work for the processor.

        Nor for a recording, which is to appear at once: `perfkit run --report` writes one.
        """
        measured = not self.plan.recorded and any(run.status == "ok" for run in self.runs)
        self._report.value = layout.report_link(html.session(self.runs)) if measured else ""

    def _notices(self, runs: Sequence[Run]) -> list[Content]:
        earlier: list[Content] = (
            [f"Measured earlier, at {date(runs)}; Run measures again."] if self._recalled else []
        )
        return earlier + super()._notices(runs)

    def _sentences(self, runs: Sequence[Run]) -> list[str]:
        first, *others = super()._sentences(runs)
        return others or [first]

    # ------------------------------------------------------------ what the workload offers, what is stored

    def _resolve(self) -> list[Stage]:
        """The stages as this machine would run them; none, and a message, if the workload cannot be read."""
        with self._resolving:
            if self._stages is None:
                try:
                    self._described, self._stages = ladders.resolve(self.plan)
                    self._show_stages(self._stages)
                except PerfkitError as problem:
                    self._stages, self._unreadable = [], str(problem)
                    self._status.show_read("not ready", error=self._unreadable)
        return self._stages

    def _show_stages(self, stages: Sequence[Stage]) -> None:
        """Called once, when the stages are known."""

    def _read(self) -> None:
        """Shows the newest stored session of the same stages, settings, options and recipes."""
        if self.plan.recorded:
            self._resolve()
            return
        names = [slug(title) for title in self._titles] or dict.fromkeys(["baseline", *self.plan.stages])
        runs: list[Run] = []
        with contextlib.suppress(PerfkitError):  # a store that cannot be read says so when one measures
            runs = RunStore().runs(limit=60, workload=self.plan.workload)
        for session in dict.fromkeys(run.session for run in runs):
            stored = [run for run in reversed(runs) if run.session == session]
            place = (stored[0].preset, stored[0].device) == (self.plan.preset.name, self.plan.device)
            stages = [run.stage for run in results.stages(stored)]
            if place and is_of(self.plan, stored[0]) and stages == list(names) and self._ran(stored):
                break
        else:
            return
        if not (self.runs or self._job.busy):
            self._recall(stored)

    def _recall(self, stored: list[Run]) -> None:
        """Shows the results of an earlier session."""
        self.runs, self._recalled = stored, True
        self._draw()
        self._draw_still()
        self._offer_report()
        self._status.show_read(f"results of {date(stored)}; Run measures again")

    def _ran(self, stored: Sequence[Run]) -> bool:
        """Whether this panel would have measured the same, each stage built on those that worked."""
        if not self._resolve():
            return False
        target, failed = plans.target(self.plan, self._described), list[str]()
        recipes = ladders.recipe_stages(self.plan.recipes, target)
        for stage, run in zip(
            recipes or ladders.ladder_stages(self.plan, target, failed), stored, strict=False
        ):
            recipe = {**Recipe().to_dict(), **run.recipe}
            if (run.options, recipe) != (self._described.options, stage.recipe.to_dict()):
                return False
            failed += [stage.name] * (run.status != "ok")
        return True


class RecipePanel(LadderPanel):
    """Recipes measured in an interleaved order; the others are compared with the first.

    Args:
        recipes: titles and switches.
        more: as for `LadderPanel`.

    Raises:
        InvalidValue: a name or value that is not allowed.
    """

    def __init__(self, recipes: Recipes, **more: Any) -> None:
        self._titles = recipes
        super().__init__(["baseline"], **more)

    def __getitem__(self, title: str) -> Run:
        """The run of a recipe.

        Raises:
            InvalidValue: no such recipe, or it was not measured.
        """
        runs = {run.title: run for run in self._results_or_error() if run.status == "ok"}
        if title not in runs:
            raise one_of(title, list(runs), "measured recipe")
        return runs[title]

    def parity(self, title: str) -> Shown[Parity]:
        """Whether a recipe still trains the same."""
        parity = proving.parity(self.plan, title, Recipe.from_dict(self[title].recipe))
        return Shown(parity, tables_studies.parity(parity))

    # ------------------------------------------------------------ several ranks

    def communication(self) -> Shown[list[Run]]:
        """Where a step goes, for each recipe with several ranks."""
        runs = self._results_or_error()
        return Shown(runs, [tables_studies.communication(runs)])

    def efficiency(self, one: str, many: str) -> float:
        """Scaling efficiency of a recipe with several ranks over one with one: 1 is perfect."""
        return scaling.efficiency(self[one], self[many])

    def forecast(
        self, title: str, latency_s: float | None = None, bytes_per_s: float | None = None
    ) -> Shown[list[scaling.Forecast]]:
        """Predicted efficiency with more ranks, from what a recipe measured; see `studies.scaling`."""
        rows = scaling.forecast(self[title], latency_s=latency_s, bytes_per_s=bytes_per_s)
        return Shown(rows, [tables_studies.forecast(rows)])
