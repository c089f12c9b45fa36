"""A ladder of stages, or some recipes, in a notebook; results of earlier sessions are found again."""

import html
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from IPython.display import HTML, Image

from perfkit.errors import PerfkitError, one_of
from perfkit.ladder.stages import KEPT, Stage
from perfkit.notebook import widgets as pieces
from perfkit.notebook.panel import Panel, check, refuse_object
from perfkit.notebook.shown import Shown
from perfkit.notebook.where import Where
from perfkit.recipe import Recipe, Value
from perfkit.results import recordings
from perfkit.results.parity import Parity
from perfkit.results.run import Run, slug
from perfkit.results.store import RunStore
from perfkit.show import figures, results, sentences, tables, tables_studies
from perfkit.show.document import Bullets, Content, Notice, Section
from perfkit.studies import compare, inspect, rungs, sources
from perfkit.studies.progress import Progress
from perfkit.studies.rungs import RUNG, climb, is_ladder_of
from perfkit.studies.sources import Plan
from perfkit.worker.messages import Description

Recipes = Mapping[str, Mapping[str, Any]]
"""Titles, and the switches that differ from the plain loop."""


class LadderPanel(Panel):
    """A ladder of stages on a workload.

    Args:
        stages: optimizations in their order; the whole default ladder if None.
        workload: a built-in one, or `package.module:name`; the preset's own if None.
        preset: `smoke`, `quick` or `paper`; what `PERFKIT_PRESET` says, or what suits the machine, if None.
        device: `cuda`, `mps`, `cpu`, `sim:v100` …, or `recorded:NAME`; the session's choice if None.
        settings: switches set from the first stage on.
        options: the workload's constructor arguments.
        host: the host of a simulated GPU: `article`, `ideal`, or its numbers.

    Raises:
        InvalidValue: a name or value that is not allowed.
    """

    from_below = False
    """Whether the first stage is the default ladder below the others, not the plain loop."""

    def __init__(
        self,
        stages: Sequence[str] | None = None,
        workload: str | None = None,
        preset: str | None = None,
        device: str | None = None,
        settings: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        host: str | None = None,
    ) -> None:
        refuse_object(workload)
        self._asked: dict[str, Any] = {
            "workload": workload,
            "preset": preset,
            "stages": stages,
            "settings": dict(settings or {}),
            "options": options,
        }
        self.where = Where(self._planned, device, host, self._move)
        self.plan = self.where.plan
        self.found: list[Run] = []
        """Results of an earlier session, which are not shown yet."""
        self._recalled = False
        self._lock = threading.RLock()  # the controls are filled in by a thread
        self._stages: list[Stage] | None = None
        self._described: Description
        heading = pieces.text("pk-question", value=f"<h3>{html.escape(self._question())}</h3>")
        head = pieces.row([heading, self.where.widget], "pk-head")
        super().__init__((self._asked, self._titles(), device, host), [head, *self._above()])

    def _titles(self) -> Recipes:
        """Recipes to measure in the place of stages."""
        return {}

    def _question(self) -> str:
        """What the panel answers."""
        return "What does each stage add to the ones below it?"

    def _above(self) -> Sequence[Any]:
        """Widgets above the buttons."""
        return ()

    def set(self, **switches: Value) -> None:
        """Sets switches from the first stage on.

        Raises:
            InvalidValue: an unknown switch, a value that is not allowed, or work is under way.
        """
        self.require_rest()
        before = self._asked["settings"]
        self._asked["settings"] = {**before, **switches}
        try:
            self.where.plan_again()
        except PerfkitError:
            self._asked["settings"] = before
            raise

    def _planned(self, device: str | None, host: str | None) -> Plan:
        plan = sources.plan(device=device, host=host, below=self.from_below, **self._asked)
        base = Recipe(batch_size=plan.preset.batch_size).replace(**plan.settings)
        recipes = tuple((title, base.replace(**changes)) for title, changes in self._titles().items())
        return replace(plan, recipes=recipes)

    def _move(self, plan: Plan) -> None:
        """The panel runs elsewhere, or with other settings: its results are no longer those of its plan."""
        self.plan, self._stages = plan, None
        self._forget()
        self.bar.say("press Run")
        self.show()
        self._start_reading()

    def _forget(self) -> None:
        self.runs, self.found, self._recalled = [], [], False

    def _set_busy(self, busy: bool) -> None:
        super()._set_busy(busy)
        self.where.set_busy(busy)

    # ------------------------------------------------------------ measuring

    def _measure(self) -> None:
        self._forget()
        runs = climb(self.plan, RunStore(), Progress(self.follow, self.cancelled))
        self.runs = runs
        check(runs)

    def follow(self, progress: Any) -> None:
        """Keeps runs as they end: a person may stop the others."""
        super().follow(progress)
        if progress.run:
            self.runs = [*self.runs, progress.run]

    # ------------------------------------------------------------ results

    def sections(self) -> Sequence[Content]:
        """The result in words, one picture, one table; details are folded."""
        if not self.runs:
            return ()
        return [
            *self._notices(),
            *self._headline(),
            *self._answers(),
            Section("Details", self._details(), folded=True),
        ]

    def _notices(self) -> list[Content]:
        earlier = [f"Measured earlier, at {date(self.runs)}; Run measures again."] if self._recalled else []
        origin = [recordings.find(self.plan.recorded).provenance.describe()] if self.plan.recorded else []
        return [*earlier, *origin, *map(Notice, sentences.notices(self.runs))]

    def _headline(self) -> list[Content]:
        return [figures.headline(self.runs)] if any(run.status == "ok" for run in self.runs) else []

    def _answers(self) -> list[Content]:
        """The table of all stages, and what each showed."""
        kept = [run.title for run in self.runs if run.facts.get(RUNG) == "kept"]
        climb_so_far = [f"Kept: {', '.join(kept)}."] if kept else []
        return [tables.short_ladder(self.runs), Bullets([*climb_so_far, *self._verdicts()])]

    def _verdicts(self) -> list[str]:
        first, *others = sentences.verdicts(self.runs)
        return others or [first]

    def _details(self) -> list[Content]:
        notes = tables.notes(self.runs)
        return [
            *self._evidence(),
            *([Section("Warnings and facts", [Bullets(notes)])] if notes else []),
            *tables.summary(self.runs)[:2],
            f"Further pictures: panel.plot(name), with a name of {', '.join(figures.VIEWS)}.",
        ]

    def _evidence(self) -> list[Content]:
        """What proves that the switches are in effect."""
        return tables.proof(self.runs)

    def table(self, title: str = "") -> HTML:
        """A table of the results by the beginning of its title; the first one if empty.

        Raises:
            InvalidValue: nothing was measured yet, or no such table.
        """
        return Shown(self.runs, [*self.sections(), *self.report()]).table(title)

    def plot(self, name: str = "", dark: bool = False) -> Image:
        """A figure of the results as an ordinary output: `step_time`, `throughput`, `losses`, `memory`.

        Raises:
            InvalidValue: nothing was measured yet, or no such figure.
        """
        return Shown(self.runs, self.report()).plot(name, dark)

    def report(self) -> Sequence[Content]:
        """Every table and figure of the results.

        Raises:
            InvalidValue: nothing was measured yet.
        """
        return tables.sections(self.results())

    # ------------------------------------------------------------ earlier results

    def _resolve(self) -> list[Stage]:
        """The stages as they would run.

        Raises:
            PerfkitError: the workload cannot be loaded.
        """
        with self._lock:
            if self._stages is None:
                self._described, self._stages = rungs.resolve(self.plan)
        return self._stages

    def _read(self) -> None:
        """Fills in the controls, and finds the newest stored session of the same stages and settings."""
        self.where.fill()
        try:
            with self._lock:
                self._show_stages(self._resolve())
            found = [] if self.plan.recorded else self._stored()
        except PerfkitError as problem:
            self.bar.say_read("not ready", error=str(problem))
            return
        if found and not self.runs:
            self.found = found
            self._recall()

    def _show_stages(self, stages: Sequence[Stage]) -> None:
        """Takes the stages, once they are known."""

    def _recall(self) -> None:
        """Shows the results of an earlier session."""
        self.runs, self.found, self._recalled = self.found, [], True
        self.bar.say_read(f"results of {date(self.runs)}; Run measures again")
        self.show()

    def _stored(self) -> list[Run]:
        """The newest session in the store that this panel would measure in the same way."""
        titles = self._titles()
        names = [slug(title) for title in titles] or list(dict.fromkeys(["baseline", *self.plan.stages]))
        store = RunStore()
        rows = store.history(workload=self.plan.workload)
        wanted = self.plan.preset.name, self.plan.device
        sessions = dict.fromkeys(row.session for row in rows if (row.preset, row.device) == wanted)
        for session in sessions:
            stages = {row.stage for row in rows if row.session == session}
            if not set(names) <= stages:
                continue
            runs = store.runs(session=session)[::-1]
            measured = [run.stage for run in results.stages(runs) if run.stage != KEPT]
            if sorted(measured) == sorted(names) and self._is_same(runs):
                return runs
        return []

    def _is_same(self, runs: Sequence[Run]) -> bool:
        """Whether this panel would have measured these runs, each stage built on those that worked."""
        same_options = all(run.options == self._described.options for run in runs)
        return same_options and is_ladder_of(self.plan, self._described, runs)


class RecipePanel(LadderPanel):
    """Recipes measured in an interleaved order; the others are compared with the first.

    Args:
        recipes: titles and switches.
        more: as for `LadderPanel`.

    Raises:
        InvalidValue: a name or value that is not allowed.
    """

    def __init__(self, recipes: Recipes, **more: Any) -> None:
        self.recipes = recipes
        super().__init__(["baseline"], **more)

    def _titles(self) -> Recipes:
        return self.recipes

    def _question(self) -> str:
        return "Which of these recipes is fastest?"

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
        return Shown(parity, tables_studies.parity(parity))

    def communication(self) -> Shown[list[Run]]:
        """Where a step goes, for each recipe with several ranks."""
        return Shown(self.results(), [tables_studies.communication(self.results())])

    def efficiency(self, single: str, many: str) -> float:
        """Scaling efficiency of a recipe with several ranks over one with a single rank: 1 is perfect."""
        return compare.efficiency(self[single], self[many])

    def forecast(
        self, title: str, latency_s: float | None = None, bytes_per_s: float | None = None
    ) -> Shown[dict[int, float]]:
        """Predicted efficiency with more ranks, from what a recipe measured; see `studies.compare`."""
        efficiency = compare.forecast(self[title], latency_s=latency_s, bytes_per_s=bytes_per_s)
        return Shown(efficiency, [tables_studies.forecast(efficiency)])


def date(runs: Sequence[Run]) -> str:
    """When a session began."""
    return f"{runs[0].created[:16].replace('T', ' ')} UTC"
