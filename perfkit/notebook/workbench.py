"""The workbench: every switch as a control, runs beside each other, the script of any of them."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ipywidgets as widgets

from perfkit.errors import InvalidValue, PerfkitError
from perfkit.ladder.presets import PRESETS
from perfkit.notebook import layout
from perfkit.notebook.controls import Controls
from perfkit.notebook.panel import Panel, is_of, refuse_object, stored_runs
from perfkit.notebook.where import Chooser, Place
from perfkit.program.recipe import Recipe, switches
from perfkit.results import recordings
from perfkit.results.run import Run
from perfkit.results.store import RunStore
from perfkit.show import document, results, tables, tables_trace
from perfkit.show.html import fragment, session
from perfkit.studies import inspect
from perfkit.studies import ladder as ladders
from perfkit.studies import plan as plans

_AGAINST = ("the baseline", "the best so far", "nothing")
_MOST = 50
_COPY = (
    '<button class="pk-copy jupyter-button" onclick="navigator.clipboard.writeText('
    "this.closest('.pk-script').querySelector('pre').innerText); this.innerText = 'Copied'\">Copy</button>"
)


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
    missing = ("no run is ticked", "Tick one in the list of runs, or press Run")

    def __init__(
        self, workload: str | None = None, preset: str | None = None, device: str | None = None,
        options: dict[str, Any] | None = None, host: str | None = None,
    ) -> None:  # fmt: skip
        refuse_object(workload)
        self._asked = workload, preset, options
        if device:  # a recording must be of all that was asked for
            plans.plan(workload, preset, ["baseline"], None, device, options, host=host)
        self._where = Chooser(self._planned, Place(device, host), self._move)
        first = self._where.plan
        self._moving = False
        self._ticks: dict[str, widgets.Checkbox] = {}
        self._build_controls(first)
        self._build_results()
        super().__init__(f"Workbench {first.workload}")
        self._recall(first)

    def _build_controls(self, first: plans.Plan) -> None:
        def field(kind: Any, label: str, **traits: Any) -> Any:
            return layout.field(kind, label, 235, 80, **traits)

        menu, button = widgets.Dropdown, layout.button
        self._workload = field(widgets.Text, "Workload", continuous_update=False)
        self._preset = field(menu, "Preset", options=list(PRESETS))
        self._show_workload(first)
        self._against = field(menu, "Against", options=_AGAINST)
        self._name = field(widgets.Text, "Name", placeholder="of the next run")
        for control in (self._workload, self._preset):
            control.observe(lambda _: self._other_workload(), "value")
        change = "press Run to measure"
        self.controls = Controls(switches(), self._plain(), lambda recipe: self._status.show(change))
        fields = layout.row([self._workload, self._preset, self._against, self._name])
        self._above = [self._where.widget, fields, self.controls.widget]
        help_text = "Some steps under the profiler"
        self._profile = button("Profile", "pk-profile", help_text, lambda: self.profile(block=False))
        self._buttons = [
            self._profile,
            button("Reset to baseline", "pk-reset", "Every switch off", self._to_baseline),
            button("Reset to best", "pk-best", "The switches of the fastest run", self._to_best),
        ]

    def _build_results(self) -> None:
        button = layout.button
        self._history = layout.box([], "pk-history", max_height="230px", overflow="auto")
        self._made = layout.html_slot("pk-script")
        acts = [
            button("Script", "pk-export", "The standalone script of the ticked run", self.show_script),
            button("Report", "pk-make-report", "One HTML file of the ticked runs", self.show_report),
            button("Use its switches", "pk-use", "Set the controls to those of the ticked run", self._use),
        ]
        self._between = [self._history, layout.row(acts), self._made]
        self._profiled = layout.html_slot("pk-profiled")
        self._suggestions = layout.row([], "pk-apply")
        self._below = [self._profiled, self._suggestions]

    def _set_busy(self, busy: bool) -> None:
        super()._set_busy(busy)
        self._profile.disabled = busy

    # ------------------------------------------------------------ where

    def _planned(self, place: Place) -> plans.Plan:
        """A plan of the workload that was asked for; a recording brings its own."""
        recorded = (place.device or "").startswith(recordings.PREFIX)
        workload, preset, options = (None, None, None) if recorded else self._asked
        return plans.plan(workload, preset, ["baseline"], None, place.device, options, host=place.host)

    def _move(self, plan: plans.Plan) -> None:
        """Another place was chosen: its workload, its runs."""
        self._moving = True
        self._show_workload(plan)
        self._moving = False
        self._recall(plan)
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
            self._start_reading()

    def _recall(self, plan: plans.Plan) -> None:
        """The runs to begin with: those of the recording, or the newest stored ones of the workload."""
        recorded = recordings.played(recordings.find(plan.recorded)) if plan.recorded else None
        stored = [run for run in stored_runs(plan.workload, _MOST) if is_of(plan, run)]
        runs = stored if recorded is None else recorded
        self.runs = [run for run in results.stages(runs) if run.status == "ok"]
        self._list()

    # ------------------------------------------------------------ measuring

    def _plan(self, recipes: Sequence[tuple[str, Recipe]] = ()) -> plans.Plan:
        return replace(self._planned(self._where.place), recipes=tuple(recipes))

    def _read(self) -> None:
        """Asks a fresh process what the workload offers: the controls follow."""
        try:
            plan = self._plan()
            described, _ = ladders.resolve(plan)
        except PerfkitError as problem:
            self._status.end("not ready", str(problem))
            return
        self._status.error.value = ""
        self.controls.set_rule(ladders.switch_rule(plan, described))

    def _measure(self) -> list[Run]:
        recipe = self.controls.recipe
        name = self._name.value.strip() or recipe.describe()[:60]
        plan = self._plan([*self._opponent(), (name, recipe)])
        try:
            runs = ladders.measure_ladder(
                plan, RunStore(), on_progress=self._follow, cancelled=self._job.cancelled
            )
            if plan.recorded and runs[-1].status != "ok":
                raise InvalidValue(
                    f"this recipe is {runs[-1].reason}", "Tick one of its runs, Use its switches"
                )
            return runs
        finally:
            self._name.value = ""

    def _opponent(self) -> list[tuple[str, Recipe]]:
        """What the recipe is measured against, interleaved with it."""
        if self._against.value == "the best so far" and (best := self._best()):
            return [(f"{best.title} (again)"[:60], Recipe.from_dict(best.recipe))]
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
        plan = self._plan()
        profile = inspect.profile(
            plan.workload, self.controls.recipe, on_progress=self._status.progress,
            cancelled=self._job.cancelled, preset=plan.preset.name, device=plan.device, options=plan.options,
        )  # fmt: skip
        timeline = [document.Timeline(profile.lanes())] if profile.analysis.steps else []
        tables = [tables_trace.diagnosis(profile.findings), tables_trace.loading(profile.loading)]
        self._profiled.value = fragment([*tables, *timeline, profile.describe()])
        names = dict.fromkeys(name for finding in profile.findings for name in finding.try_next)
        self._suggestions.children = [
            self._suggestion(name) for name in names if not self.controls.reasons.get(name)
        ]

    def _suggestion(self, name: str) -> widgets.Button:
        """A button that sets a suggested switch to the next of its values."""
        switch = switches()[name]

        def act() -> None:
            now = getattr(self.controls.recipe, name)
            at = switch.levels.index(now) if now in switch.levels else 0
            level = switch.levels[(at + 1) % len(switch.levels)] if switch.levels else switch.default
            self.controls.show(self.controls.recipe.replace(**{name: level}))
            self._status.show(f"{switch.label} is set: press Run to see whether it helps")

        return layout.button(f"Try {switch.label}", f"pk-try-{name}", switch.help, act)

    # ------------------------------------------------------------ history

    def _keep(self, run: Run) -> None:
        if run.status != "ok" or results.is_again(run):
            return
        self.runs = [*(other for other in self.runs if other.id != run.id), run][-_MOST:]
        ticked = self.ticked()
        same = any(other.session == run.session for other in ticked)
        self._list({run.id, *(other.id for other in ticked if same)})

    def _list(self, ticked: set[str] | None = None) -> None:
        """The history, newest first; by default the newest session is ticked."""
        newest = self.runs[-1].session if self.runs else ""
        self._ticks, lines = {}, []
        for run in reversed(self.runs):
            chosen = run.id in ticked if ticked is not None else run.session == newest
            tick = widgets.Checkbox(
                chosen, description=run.title[:48], indent=False, layout={"width": "270px"}
            )
            tick.observe(lambda _: self._draw(), "value")
            self._ticks[run.id] = tick
            cells = tables.row(run)
            about = f"{cells[1]} samples/s · × baseline {cells[3]} · {run.created[:16].replace('T', ' ')}"
            place = {"align_items": "center", "flex": "none"}  # the list scrolls, its lines do not shrink
            lines.append(layout.row([tick, widgets.HTML(html.escape(about))], **place))
        heading = widgets.HTML(f"<b>Runs</b> ({len(lines)}): tick those to compare")
        self._history.children = [heading, *lines]
        self._draw()

    def ticked(self) -> list[Run]:
        """The runs that are ticked, oldest first."""
        return [run for run in self.runs if (tick := self._ticks.get(run.id)) and tick.value]

    _chosen = ticked

    def _best(self) -> Run | None:
        here = (run for run in self.runs if run.preset == self._preset.value)
        rates = {run.id: rate.value for run in here if (rate := run.samples_per_s)}
        return max((r for r in self.runs if r.id in rates), key=lambda r: rates[r.id], default=None)

    def _remarks(self, runs: Sequence[Run]) -> str:
        """A word of caution where the ticked runs were not interleaved."""
        count = len({run.session for run in runs})
        text = f"These runs are from {count} sessions, not interleaved: drift is part of their difference."
        return f"<p class='pk-mixed'>{text}</p>" if count > 1 else ""

    # ------------------------------------------------------------ what to do with a run

    def show_script(self) -> None:
        """The standalone script of the newest ticked run, to copy or to save."""

        def work() -> None:
            (text,) = plans.scripts(self._results_or_error()[-1:]).values()
            save = layout.download(text, "train.py", "text/x-python")
            self._made.value = f"<p>{save} {_COPY}</p><pre tabindex='0'>{html.escape(text)}</pre>"

        self._guard(work)

    def show_report(self) -> None:
        """One HTML file of the ticked runs."""

        def work() -> None:
            runs = self._results_or_error()
            self._made.value = f"<p>{layout.report_link(session(runs, plans.scripts(runs)))}</p>"

        self._guard(work)

    def _use(self) -> None:
        self._guard(lambda: self.controls.show(Recipe.from_dict(self._results_or_error()[-1].recipe)))

    def _to_baseline(self) -> None:
        self.controls.show(self._plain())

    def _to_best(self) -> None:
        if best := self._best():
            self.controls.show(Recipe.from_dict(best.recipe))
