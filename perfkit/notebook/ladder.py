"""A ladder of stages, or some recipes, in a notebook; results of earlier sessions are shown again."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from perfkit.errors import PerfkitError, one_of
from perfkit.notebook.shown import Shown
from perfkit.notebook.where import PlanPanel
from perfkit.recipe import Recipe, Value
from perfkit.results.parity import Parity
from perfkit.results.run import RUNG, Run
from perfkit.results.store import RunStore
from perfkit.show import figures, sentences, tables
from perfkit.show.document import Bullets, Content, Notice, Section
from perfkit.studies import compare, inspect, sources
from perfkit.studies.sources import Plan

Recipes = Mapping[str, Mapping[str, Any]]
"""Titles, and the switches that differ from the plain loop."""


class LadderPanel(PlanPanel):
    """A ladder of stages on a workload.

    Args:
        stages: optimizations in their order; the whole default ladder if None.
        settings: switches set from the first stage on.
        more: workload, preset, device, options and host, as for `PlanPanel`.

    Raises:
        InvalidValue: a name or value that is not allowed.
    """

    question = "What does each stage add to the ones below it?"
    titles: Recipes = MappingProxyType({})
    """Recipes to measure in the place of stages."""

    def __init__(
        self, stages: Sequence[str] | None = None, settings: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        self._stages = stages
        self._settings: Mapping[str, Any] = dict(settings or {})
        super().__init__((stages, self._settings, self.titles), **more)

    def set(self, **switches: Value) -> None:
        """Sets switches from the first stage on.

        Raises:
            InvalidValue: an unknown switch, a value that is not allowed, or work is under way.
        """
        before, self._settings = self._settings, {**self._settings, **switches}
        try:
            self.move(self.device)
        except PerfkitError:
            self._settings = before
            raise

    def _planned(self, device: str | None, host: str | None) -> Plan:
        asked = {**self._asked, "stages": self._stages, "settings": self._settings}
        plan = sources.plan(device=device, host=host, **asked)
        base = Recipe(batch_size=plan.preset.batch_size).replace(**plan.settings)
        recipes = tuple((title, base.replace(**changes)) for title, changes in self.titles.items())
        return replace(plan, recipes=recipes)

    def _moved(self) -> None:
        self._forget()
        self._recall()
        self.show()

    def _forget(self) -> None:
        self.runs = []

    def _measure(self) -> None:
        self._forget()
        self._climb(self.plan)
        if not self.plan.recorded:
            RunStore().remember(_question(self.plan), self.runs[0].session)

    # ------------------------------------------------------------ results of earlier sessions

    def _ipython_display_(self) -> None:
        if not self.runs:
            self._recall()
        super()._ipython_display_()

    def _recall(self) -> None:
        """Takes what was measured earlier for the same question."""
        if runs := RunStore().remembered(_question(self.plan)):
            self.runs = runs
            when = runs[0].created[:16].replace("T", " ")
            self.bar.say(f"measured earlier, at {when} UTC; Run measures again")

    # ------------------------------------------------------------ results

    def sections(self) -> Sequence[Content]:
        """The result in one picture and a few sentences; details are folded."""
        if not self.runs:
            return ()
        picture = [figures.headline(self.runs)] if any(run.status == "ok" for run in self.runs) else []
        notices = map(Notice, sentences.notices(self.runs))
        return [*notices, *picture, *self._answers(), Section("Details", self._details(), folded=True)]

    def _answers(self) -> list[Content]:
        kept = [run.title for run in self.runs if run.facts.get(RUNG) == "kept"]
        lines = [f"Kept: {', '.join(kept)}."] if kept else []
        return [tables.ladder(self.runs), Bullets([*lines, *sentences.verdicts(self.runs)])]

    def _details(self) -> list[Content]:
        losses = sentences.enumerated(sentences.stages(self.runs), figures.VIEWS["losses"].numbers)
        return [
            *self._evidence(),
            f"Losses: {losses}",
            Section("Warnings and facts", [Bullets(tables.notes(self.runs) or ["none"])]),
            *tables.summary(self.runs)[:2],
            f"Further pictures: panel.plot(name), with a name of {', '.join(figures.VIEWS)}.",
        ]

    def _evidence(self) -> list[Content]:
        return [tables.proof(self.runs)]

    def parts(self) -> Sequence[Content]:
        """Every table, and the figures `step_time`, `throughput`, `losses`.

        Raises:
            InvalidValue: nothing was measured yet.
        """
        return [*tables.sections(self.results()), *self.sections()]


def _question(plan: Plan) -> str:
    """What a plan asks, as text: the same for the same panel in another session."""
    recipes = [(title, recipe.to_dict()) for title, recipe in plan.recipes]
    where = [plan.workload, plan.preset.name, plan.device, plan.host, dict(plan.options)]
    return json.dumps([*where, plan.stages, recipes, dict(plan.settings), dict(plan.changes)], sort_keys=True)


class RecipePanel(LadderPanel):
    """Recipes measured in an interleaved order; the others are compared with the first.

    Args:
        recipes: titles and switches.
        more: as for `LadderPanel`.

    Raises:
        InvalidValue: a name or value that is not allowed.
    """

    question = "Which of these recipes is fastest?"

    def __init__(self, recipes: Recipes, **more: Any) -> None:
        self.titles = recipes
        super().__init__(["baseline"], **more)

    def __getitem__(self, title: str) -> Run:
        """The run of a recipe.

        Raises:
            InvalidValue: no such recipe, or it was not measured.
        """
        runs = {run.title: run for run in self.results() if run.status == "ok"}
        if title not in runs:
            raise one_of(title, list(runs), "measured recipe")
        return runs[title]

    def parity(self, title: str) -> Shown[Parity]:
        """Whether a recipe still trains the same."""
        parity = inspect.parity(self.plan, title, Recipe.from_dict(self[title].recipe))
        return Shown(parity, tables.parity(parity))

    def communication(self) -> Shown[list[Run]]:
        """Where a step goes, for each recipe with several ranks."""
        return Shown(self.results(), [tables.communication(self.results())])

    def efficiency(self, single: str, many: str) -> float:
        """Scaling efficiency of a recipe with several ranks over one with a single rank: 1 is perfect."""
        return compare.efficiency(self[single], self[many])

    def forecast(
        self, title: str, latency_s: float | None = None, bytes_per_s: float | None = None
    ) -> Shown[dict[int, float]]:
        """Predicted efficiency with more ranks, from what a recipe measured; see `studies.compare`."""
        efficiency = compare.forecast(self[title], latency_s=latency_s, bytes_per_s=bytes_per_s)
        return Shown(efficiency, [tables.forecast(efficiency)])
