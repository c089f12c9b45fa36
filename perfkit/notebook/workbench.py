"""The workbench: every switch as a control, runs beside each other, the script of any of them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ipywidgets as widgets

from perfkit import additions
from perfkit.errors import InvalidValue, PerfkitError
from perfkit.ladder.presets import PRESETS
from perfkit.notebook import widgets as pieces
from perfkit.notebook.controls import Controls
from perfkit.notebook.history import RunHistory
from perfkit.notebook.panel import Panel, check, refuse_object
from perfkit.notebook.where import Where
from perfkit.recipe import Recipe, Value, switches
from perfkit.results import recordings
from perfkit.results.recordings import recording_text
from perfkit.results.run import Run
from perfkit.results.store import RunStore
from perfkit.show import figures, html, sentences, tables, tables_history, units
from perfkit.show.document import Bullets, Content, Notice, Table
from perfkit.studies import rungs, sources
from perfkit.studies.compare import compare_stored
from perfkit.studies.progress import Progress
from perfkit.studies.rungs import climb
from perfkit.studies.sources import Plan

BASELINE = "baseline"


class Workbench(Panel):
    """Toggle, run, see: all switches of the recipe on one workload.

    Args:
        workload: a built-in one, or `package.module:name`; the preset's own if None.
        preset: `smoke`, `quick` or `paper`.
        device: `cuda`, `mps`, `cpu`, `sim:v100` …, or `recorded:NAME`; the session's choice if None.
        options: the workload's constructor arguments.
        host: the host of a simulated GPU.

    Raises:
        InvalidValue: a name or value that is not allowed.
    """

    text = "perfkit workbench: run this cell for the controls"

    def __init__(
        self,
        workload: str | None = None,
        preset: str | None = None,
        device: str | None = None,
        options: dict[str, Any] | None = None,
        host: str | None = None,
    ) -> None:
        refuse_object(workload)
        self._workload, self._preset, self._options = workload, preset, options
        self.where = Where(self._planned, device, host, lambda plan: self._move())
        self.plan: Plan = self.where.plan
        self.controls = Controls(
            switches(), self._plain(), lambda recipe: self.bar.say("press Run to measure")
        )
        self.history = RunHistory(self._compare)
        self._profile: Sequence[Content] = ()
        self._quiet = False
        menu = widgets.Dropdown
        self._workload_field = pieces.field(widgets.Text, "Workload", "pk-workload", continuous_update=False)
        self._preset_field = pieces.field(menu, "Preset", "pk-preset", options=list(PRESETS))
        self._name = pieces.field(widgets.Text, "Name of the run", "pk-name", placeholder="its switches")
        for control in (self._workload_field, self._preset_field):
            control.observe(lambda _: self._choose(), "value")
        self._export_link = pieces.text("pk-script")
        self._undo = self._act(
            "Undo delete", "pk-undo", "Bring back every run that was deleted here", self._bring_back
        )
        self._undo.disabled = True
        acts = [
            self._act("Use", "pk-use", "Set the switches to those of the newest ticked run", self._use),
            self._act(
                "Export",
                "pk-export",
                "The newest ticked run's script, and the ticked runs as a file",
                self._export,
            ),
            self._act(
                "Report", "pk-report", "One HTML file of the ticked runs, with every figure", self._report
            ),
            self._act("Delete", "pk-delete", "Remove the ticked runs", self._delete),
            self._undo,
        ]
        fields = pieces.box([self._workload_field, self._preset_field, self._name], "pk-grid")
        super().__init__(
            (workload, preset, device, options, host),
            [
                pieces.row([pieces.text(value="<h3>Workbench</h3>"), self.where.widget], "pk-head"),
                fields,
                self.controls.widget,
            ],
            self._other_work(),
            [self.history.grid, pieces.row(acts), self._export_link],
        )
        self._show_fields()

    # ------------------------------------------------------------ what is measured

    def set(self, **switches: Value) -> None:
        """Sets switches, as the controls do.

        Raises:
            InvalidValue: an unknown switch or a value that is not allowed.
        """
        self.controls.set(switches)

    def _planned(self, device: str | None, host: str | None) -> Plan:
        """A plan of what was asked for; a recording brings its own workload, preset and options."""
        recorded = (device or "").startswith(recordings.PREFIX)
        workload, preset, options = (
            (None, None, None) if recorded else (self._workload, self._preset, self._options)
        )
        return sources.plan(workload, preset, [BASELINE], None, device, options, host=host)

    def _plain(self) -> Recipe:
        """The baseline of the preset."""
        return Recipe(batch_size=self.plan.preset.batch_size)

    def _choose(self) -> None:
        """The workload or the preset was changed by hand; options belong to the workload they came with."""
        if self._quiet:
            return
        before = self._workload, self._preset, self._options
        if self._workload_field.value != self.plan.workload:
            self._options = None
        self._workload, self._preset = self._workload_field.value.strip() or None, self._preset_field.value
        try:
            self.where.plan_again()
        except PerfkitError as problem:
            self._workload, self._preset, self._options = before
            self._show_fields()
            self.bar.tell(problem)

    def _move(self) -> None:
        """Another place, workload or preset."""
        self.plan = self.where.plan
        self._show_fields()
        self.controls.set_base(self._plain())
        self._profile = ()
        self._start_reading()

    def _show_fields(self) -> None:
        self._quiet = True
        self._preset_field.options = list(dict.fromkeys([*PRESETS, self.plan.preset.name]))
        self._workload_field.value, self._preset_field.value = self.plan.workload, self.plan.preset.name
        self._workload_field.disabled = self._preset_field.disabled = bool(self.plan.recorded)
        self._quiet = False

    def _read(self) -> None:
        """Fills in the history, and asks a fresh process what the workload offers."""
        plan = self.plan
        try:
            self.where.fill()
            if plan.recorded:
                self.history.show_recorded(recordings.played(recordings.find(plan.recorded)))
                self._compare()
            else:
                self.history.show_stored(plan.workload)
            described, _ = rungs.resolve(plan)
            self.controls.set_rule(rungs.switch_rule(plan, described))
        except PerfkitError as problem:
            self.bar.say_read("not ready", error=str(problem))
        else:
            self.bar.say_read("ready")

    def _set_busy(self, busy: bool) -> None:
        super()._set_busy(busy)
        self.where.set_busy(busy)
        self._workload_field.disabled = self._preset_field.disabled = busy or bool(self.plan.recorded)

    def _measure(self) -> None:
        """The recipe of the controls beside the baseline; the baseline itself is measured once."""
        recipe, plain = self.controls.recipe, self._plain()
        name = self._name.value.strip()
        changed = ", ".join(tables_history.changes(recipe.to_dict(), plain.to_dict()))
        recipes = (
            [(BASELINE, plain), (name or changed[:60], recipe)]
            if recipe != plain
            else [(name or BASELINE, plain)]
        )
        plan = replace(self.plan, recipes=tuple(recipes))
        self.runs, self._profile = [], ()
        runs = climb(plan, RunStore(), Progress(self.follow, self.cancelled))
        if plan.recorded and runs[-1].status != "ok":
            raise InvalidValue(f"the recording has no such run: {runs[-1].reason}", "Tick one of its runs")
        self._name.value = ""
        self.runs = runs
        check(runs)

    def follow(self, progress: Any) -> None:
        """Adds runs to the history as they end."""
        super().follow(progress)
        if progress.run:
            self.runs = [*self.runs, progress.run]
            self.history.add(self.runs)

    def _other_work(self) -> list[widgets.Button]:
        """Profile, where there is an addition that can."""
        if "profile" not in additions.notebook_names():
            return []
        tooltip = "Some steps under the profiler"
        return [pieces.button("Profile", "pk-profile", tooltip, lambda: self.start(self._record))]

    def profile(self) -> None:
        """Profiles some steps of the recipe, and shows what they do below the cell that called.

        Raises:
            PerfkitError: they cannot be profiled here.
        """
        self.wait(self._record)

    def _record(self) -> None:
        profile = additions.load(additions.notebook_names()["profile"])
        self._profile = profile(
            self.plan.workload,
            self.controls.recipe,
            preset=self.plan.preset.name,
            device=self.plan.device,
            options=self.plan.options,
            progress=Progress(lambda now: self.bar.progress(now.phase, now.fraction), self.cancelled),
        ).sections()

    # ------------------------------------------------------------ results

    def sections(self) -> Sequence[Content]:
        """The profile, if it is the newest; else the ticked runs beside each other."""
        if self._profile:
            return self._profile
        runs = self.history.ticked()
        if not runs:
            return ()
        sessions = {run.session for run in runs}
        if len(sessions) == 1:
            words: list[Content] = [Bullets(sentences.verdicts(runs))]
        else:
            count = len(sessions)
            drift = (
                f"These runs are from {count} sessions, not interleaved: drift is part of their difference."
            )
            words = [Notice(drift), compared(runs)]
        notices = map(Notice, sentences.notices(runs))
        return [*notices, figures.headline(runs), tables.short_ladder(runs), *words]

    def _compare(self) -> None:
        self._profile = ()
        self._try(self.show)

    # ------------------------------------------------------------ what to do with ticked runs

    def _act(self, label: str, name: str, tooltip: str, act: Callable[[], None]) -> widgets.Button:
        return pieces.button(label, name, tooltip, lambda: self._try(act))

    def _try(self, act: Callable[[], None]) -> None:
        """Does what takes no time; what goes wrong stands in the panel."""
        try:
            act()
        except PerfkitError as problem:
            self.bar.tell(problem)

    def _ticked(self) -> list[Run]:
        runs = self.history.ticked()
        if not runs:
            raise InvalidValue("no run is ticked", "Tick a run in the table")
        return runs

    def _use(self) -> None:
        self.controls.show(Recipe.from_dict(self._ticked()[-1].recipe))
        self.bar.say("press Run to measure")

    def _export(self) -> None:
        runs = self._ticked()
        script = next(iter(rungs.scripts(runs[-1:]).values()))
        links = [
            pieces.download(script, "train.py", "text/x-python"),
            pieces.download(recording_text(runs).decode(), "perfkit-runs.json", "application/json"),
        ]
        self._export_link.value = f"<p>{' · '.join(links)}</p>{pieces.copyable(script)}"

    def _report(self) -> None:
        runs = self._ticked()
        page = html.session(runs, rungs.scripts(runs))
        self._export_link.value = f"<p>{pieces.download(page, 'perfkit-report.html', 'text/html')}</p>"

    def _delete(self) -> None:
        count = self.history.delete()
        self._undo.disabled = False
        self.bar.say(f"deleted; Undo delete brings back {count} run{'s' * (count > 1)}")
        self._compare()

    def _bring_back(self) -> None:
        self.history.undo()
        self._undo.disabled = True
        self.bar.say("the deleted runs are back")


def compared(runs: Sequence[Run]) -> Table:
    """Every run beside the first one: how many times as fast, and what differs in its recipe."""
    first, *others = runs
    rows = []
    for run in others:
        try:
            ratio = compare_stored(first, run).ratio
            words = f"{units.ratio(ratio)} {ratio.verdict}"
        except InvalidValue as problem:
            words = f"{units.NOT_AVAILABLE}: {problem.what}"
        differs = tables_history.changes(run.recipe, first.recipe)
        rows.append((run.title, words, ", ".join(differs) or "no switch"))
    return Table(("run", f"against {first.title}", "what differs"), rows, "Compared")
