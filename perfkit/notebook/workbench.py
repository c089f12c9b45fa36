"""The workbench: every switch as a control, runs beside each other, the script of any of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ipywidgets as widgets

from perfkit.errors import InvalidValue, PerfkitError
from perfkit.ladder.presets import PRESETS
from perfkit.notebook import diagnosis, exports, layout, presets
from perfkit.notebook.controls import Controls
from perfkit.notebook.history import RunHistory, compared
from perfkit.notebook.panel import STOPPED, Panel, is_of, refuse_object
from perfkit.notebook.queue import Measurement, Queue
from perfkit.notebook.where import Chooser, Place
from perfkit.recipe import Recipe, switches
from perfkit.results import recordings
from perfkit.results.run import Run
from perfkit.results.store import Entry, RunStore
from perfkit.show import document, tables_history
from perfkit.show.html import fragment
from perfkit.studies import inspect
from perfkit.studies import ladder as ladders
from perfkit.studies import plan as plans
from perfkit.trace import figures, report

_AGAINST = ("the baseline", "the best so far", "nothing")
_NEWEST = 20
"""Runs from which a suggestion is computed."""
_Asked = tuple[str | None, str | None, dict[str, Any] | None]
"""Workload, preset, and the workload's options."""


class Workbench(Panel):
    """Toggle, run, see: all switches of the recipe on one workload.

    Args:
        workload: a built-in one, or `package.module:name`; the preset's own if None.
        preset: `smoke`, `quick` or `paper`.
        device: `cuda`, `mps`, `cpu`, `sim:v100` …, or `recorded:NAME`; the session's choice if None.
        options: the workload's constructor arguments.
        host: of a simulated GPU, as for the other panels.

    Raises:
        InvalidValue: a name or value that is not allowed.
    """

    text = "perfkit workbench: run this cell for the controls"
    nothing = "<p>Set switches, then press Run.</p>"
    missing = ("no run is ticked", "Tick one in the history, or press Run")
    _where: Chooser

    def __init__(
        self, workload: str | None = None, preset: str | None = None, device: str | None = None,
        options: dict[str, Any] | None = None, host: str | None = None,
    ) -> None:  # fmt: skip
        refuse_object(workload)
        self._asked: _Asked = workload, preset, options
        if device:  # a recording must be of all that was asked for
            plans.plan(workload, preset, ["baseline"], None, device, options, host=host)
        self._where = Chooser(self._planned, Place(device, host), self._move)
        first = self._where.plan
        self._moving = False
        self.history, self.queue = RunHistory(lambda: None, self._complain), Queue()
        self._since: Measurement | str = ""
        """Where the switches in the controls come from."""
        self._now: Measurement | None = None
        self._listed = ""
        """The workload of the history."""
        self._build_controls(first)
        self._build_results()
        super().__init__(f"Workbench {first.workload}")
        self._recall(first)
        self.runs = self.ticked()
        self.history.on_tick = self._draw  # the first runs are drawn once the panel is displayed

    def _build_controls(self, first: plans.Plan) -> None:
        field, menu, button = layout.field, widgets.Dropdown, layout.button
        self._workload = field(widgets.Text, "Workload", continuous_update=False)
        self._preset = field(menu, "Preset", options=list(PRESETS))
        self._show_workload(first)
        self._against = field(menu, "Against", options=_AGAINST)
        self._name = field(widgets.Text, "Name", placeholder="of the next run")
        for control in (self._workload, self._preset):
            control.observe(lambda _: self._other_workload(), "value")
        change = "press Run to measure"
        self._ladder: Recipe | str = "The workload is being read"
        self.controls = Controls(
            switches(), self._plain(), lambda recipe: self._status.show(change), remedy=self._remedy,
            presets={"The articles' ladder": lambda: self._ladder,
                     "Best so far": lambda: presets.best(self._here()), "Suggested": self._suggested},
        )  # fmt: skip
        fields = layout.box([self._workload, self._preset, self._against, self._name], "pk-grid", "pk-fields")
        self._above = [self._where.widget, fields, self.controls.widget]
        help_text = "Some steps under the profiler"
        self._buttons = [button("Profile", "pk-profile", help_text, lambda: self.profile(block=False))]

    def _build_results(self) -> None:
        self._made = layout.html_slot("pk-script")
        about = "Set the controls to those of the ticked run"
        use = layout.button("Use its switches", "pk-use", about, lambda: self._try(self._use))
        acts = [use, *map(self._export, exports.EXPORTS), self.history.delete]
        self._between = [self.queue.widget]
        self._beside = [self.history.grid, layout.row(acts), self._made]
        self._profiled = layout.html_slot("pk-profiled")
        self._suggestions = layout.box([], "pk-apply")
        self._below = [self._suggestions, self._profiled]

    def _set_busy(self, busy: bool) -> None:
        """While something is measured, Run puts the recipe into the queue; then the next one begins."""
        super()._set_busy(busy)
        self._run.disabled = False
        self._run.description = "Add to queue" if busy else "Run"
        if not busy:
            if self.queue.names and self._now and self.error not in ("", STOPPED):
                self.queue.went_wrong(f"{self._now.name}: {self.error}")
            self._now = None
            self._begin_next()

    def _complain(self, text: str) -> None:
        self._status.error.value = layout.message(text)

    # ------------------------------------------------------------ where

    def _planned(self, place: Place, asked: _Asked | None = None) -> plans.Plan:
        """A plan of the workload that was asked for; a recording brings its own."""
        recorded = (place.device or "").startswith(recordings.PREFIX)
        workload, preset, options = (None, None, None) if recorded else asked or self._asked
        return plans.plan(workload, preset, ["baseline"], None, place.device, options, host=place.host)

    def _move(self, plan: plans.Plan) -> None:
        """Another place was chosen: its workload, its runs."""
        self._moving = True
        self._show_workload(plan)
        self._moving = False
        self._recall(plan)
        self.controls.set_base(self._plain())
        if plan.recorded:
            self.controls.show(self._plain())
        self._start_reading()

    def _show_workload(self, plan: plans.Plan) -> None:
        self._preset.options = [plan.preset.name] if plan.recorded else list(PRESETS)
        self._workload.value, self._preset.value = plan.workload, plan.preset.name
        self._workload.disabled = self._preset.disabled = bool(plan.recorded)

    def _other_workload(self) -> None:
        """The workload or the preset was changed by hand."""
        if not self._moving:
            self._asked = self._workload.value, self._preset.value, self._asked[2]
            self.controls.set_base(self._plain())
            if self._workload.value != self._listed:
                self._show_history(self._workload.value)
            self._start_reading()

    def _recall(self, plan: plans.Plan) -> None:
        """The runs to begin with: those of the recording, or the stored ones of the workload."""
        self._since = ""
        if plan.recorded:
            self.history.show_recorded(recordings.played(recordings.find(plan.recorded)))
        else:
            self._show_history(plan.workload)

    def _show_history(self, workload: str) -> None:
        self._listed = workload
        self.history.show_stored(workload, lambda one: is_of(self._where.plan, one))

    # ------------------------------------------------------------ measuring

    def run(self, block: bool = True) -> None:
        """Measures the recipe of the controls. While another is measured, the Run button adds it to a queue.

        Args:
            block: wait for the end, with progress in this cell; the kernel's stop button ends it.
        """
        if block:
            super().run()
        else:
            if not self._job.busy:
                self.queue.forget_problems()
            self.queue.add(self._pressed())
            self._begin_next()

    def retire(self) -> None:
        """A newer panel takes its place: its work ends, and nothing of its queue begins."""
        self.queue.clear()
        super().retire()

    def _begin_next(self) -> None:
        if self.queue.names and not self._job.busy:
            self._start(self._measure_next, block=False)

    def _measure_next(self) -> list[Run]:
        self._now = self.queue.take()
        return self._now.measure() if self._now else []

    def _measure(self) -> list[Run]:
        self._now = self._pressed()
        return self._now.measure()

    def _pressed(self) -> Measurement:
        """The recipe, its name, opponent and place, as they stand now."""
        recipe, plain, place, asked = self.controls.recipe, self._plain(), self._where.place, self._asked
        name = self._name.value.strip() or recipe.describe()[:60]
        recipes = (*self._opponent(), (name, recipe))

        def measure() -> list[Run]:
            plan = replace(self._planned(place, asked), recipes=recipes)
            runs = ladders.measure_ladder(
                plan, RunStore(), on_progress=self._follow, cancelled=self._job.cancelled
            )
            if plan.recorded and runs[-1].status != "ok":
                raise InvalidValue(
                    f"this recipe is {runs[-1].reason}", "Tick one of its runs, Use its switches"
                )
            return runs

        chips = tables_history.changes(recipe.to_dict(), plain.to_dict())
        self._since = Measurement(name, chips, measure, self._since)
        self._name.value = ""
        return self._since

    def _read(self) -> None:
        """Asks a fresh process what the workload offers: the controls follow."""
        try:
            plan = self._planned(self._where.place)
            described, _ = ladders.resolve(plan)
        except PerfkitError as problem:
            self._status.show_read("not ready", error=str(problem))
            return
        self._status.show_read("ready")
        played = "A recording has runs of its own: choose among them"
        self._ladder = played if plan.recorded else ladders.top(plan, described)
        self.controls.set_rule(ladders.switch_rule(plan, described))

    def _opponent(self) -> list[tuple[str, Recipe]]:
        """What the recipe is measured against, interleaved with it."""
        if self._against.value == "the best so far" and (best := self._best()):
            return [(f"{self.history.name(best.id)} (again)"[:60], Recipe.from_dict(best.recipe))]
        return [] if self._against.value == "nothing" else [("baseline", self._plain())]

    def _plain(self) -> Recipe:
        """The baseline of the preset."""
        recorded = self._where.plan.recorded
        preset = self._where.plan.preset if recorded else PRESETS[self._preset.value]
        return Recipe(batch_size=preset.batch_size)

    def profile(self, block: bool = True) -> None:
        """Some steps of the recipe under the profiler: timeline and diagnosis."""
        self._start(self._record, block)

    def _record(self) -> None:
        plan = self._planned(self._where.place)
        profile = inspect.profile(
            plan.workload, self.controls.recipe, on_progress=self._status.progress,
            cancelled=self._job.cancelled, preset=plan.preset.name, device=plan.device, options=plan.options,
        )  # fmt: skip
        timeline = [figures.interactive(profile.lanes())] if profile.analysis.steps else []
        tables = [
            report.diagnosis(profile.findings),
            *([report.loader_table(profile.loading)] if profile.loading else []),
        ]
        self._profiled.value = fragment([*tables, *timeline, profile.describe()])
        self._suggestions.children = diagnosis.rows(profile.findings, self.controls, self._newest())

    # ------------------------------------------------------------ history

    def _keep(self, run: Run) -> None:
        now, parent = self._now, ""
        if now and run.title == now.name:
            now.run_id, parent = run.id, now.parent
        self.history.keep(run, parent)

    def _chosen(self) -> list[Run]:
        self.runs = self.history.runs()
        return self.ticked()

    def ticked(self) -> list[Run]:
        """The runs that are ticked, oldest first."""
        return self.history.ticked()

    def _here(self) -> list[Entry]:
        """What was measured with this preset at this place, newest first."""
        plan, preset = self._where.plan, self._preset.value
        return [one for one in self.history.entries if one.preset == preset and is_of(plan, one)]

    def _best(self) -> Entry | None:
        return presets.fastest(self._here())

    def _remarks(self, runs: Sequence[Run]) -> list[document.Content]:
        """Every run beside the oldest one, and a word of caution where they were not interleaved."""
        if len(runs) < 2:
            return []
        count = len({run.session for run in runs})
        text = f"These runs are from {count} sessions, not interleaved: drift is part of their difference."
        return [text, compared(runs)] if count > 1 else [compared(runs)]

    # ------------------------------------------------------------ what to do with a run

    def _export(self, export: exports.Export) -> widgets.Button:
        def act() -> None:
            self._made.value = export.make(self._results_or_error, self.history)

        return layout.button(export.text, export.name, export.tooltip, lambda: self._try(act))

    def _use(self) -> None:
        run = self._results_or_error()[-1]
        self.controls.show(Recipe.from_dict(run.recipe))
        self._since = run.id

    def _try(self, act: Callable[[], None]) -> None:
        """Does what takes no time, also while something is measured."""
        try:
            self._complain("")
            act()
        except PerfkitError as problem:
            self._complain(str(problem))

    def _newest(self) -> list[Run]:
        """What predictions are made from."""
        return [run for one in self._here()[:_NEWEST] if (run := self.history.run(one.id))]

    def _suggested(self) -> Recipe | str:
        return presets.suggested(self._newest(), self.controls.by_name, self.controls.can_act)
