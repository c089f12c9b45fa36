"""The workbench: every switch as a control, runs beside each other, the script of any of them."""

from __future__ import annotations

import html
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ipywidgets as widgets

from perfkit import machine
from perfkit.errors import Cancelled, InvalidValue, PerfkitError
from perfkit.ladder.presets import PRESETS
from perfkit.notebook import parts
from perfkit.notebook.controls import Controls
from perfkit.notebook.panel import refuse_object
from perfkit.program.recipe import Recipe, switches
from perfkit.results.run import Run
from perfkit.results.store import RunStore
from perfkit.show import figures, timeline, trace_tables
from perfkit.show import html as report
from perfkit.show import tables as table
from perfkit.studies import engine, inspect

_VIEWS = ("throughput", "step_time", "memory", "losses", "utilization")
_AGAINST = ("the baseline", "the best so far", "nothing")
_MOST = 50
_COPY = (
    '<button class="pk-copy jupyter-button" onclick="navigator.clipboard.writeText('
    "this.closest('.pk-script').querySelector('pre').innerText); this.innerText = 'Copied'\">Copy</button>"
)


class Workbench(parts.Outputs):
    """Toggle, run, see: all switches of the recipe on one workload.

    Args:
        workload: a built-in one, or `package.module:name`; the preset's own if None.
        preset: `smoke`, `quick` or `paper`.
        device: `cuda`, `mps` or `cpu`; the best there is if None.
        options: the workload's constructor arguments.

    Raises:
        InvalidValue: a name or value that is not allowed.
    """

    def __init__(
        self,
        workload: str | None = None,
        preset: str | None = None,
        device: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        refuse_object(workload)
        first = engine.plan(workload, preset, ["baseline"], None, device, options)
        self.options = dict(options or {})
        self.runs: list[Run] = []
        self.error = ""
        self._ticks: dict[str, widgets.Checkbox] = {}
        self._job = parts.Job(self._busy)
        self._status = parts.Status()
        self._described: dict[str, Any] | None = None
        self._reader: threading.Thread | None = None
        self._build(first)
        parts.replace_older(f"Workbench {first.workload}", self)
        self._recall(first)

    # ------------------------------------------------------------ the look of it

    def _build(self, first: engine.Plan) -> None:
        narrow = {"layout": {"width": "235px"}, "style": {"description_width": "80px"}}
        self._workload = widgets.Text(
            first.workload, description="Workload", continuous_update=False, **narrow
        )
        self._preset = widgets.Dropdown(
            options=list(PRESETS), value=first.preset.name, description="Preset", **narrow
        )
        names = [fact for fact in ("cuda", "mps", "cpu") if _there(fact)]
        self._device = widgets.Dropdown(
            options=list(dict.fromkeys([first.device, *names])), description="Device", **narrow
        )
        self._against = widgets.Dropdown(options=_AGAINST, description="Against", **narrow)
        self._name = widgets.Text("", description="Name", placeholder="of the next run", **narrow)
        for place in (self._workload, self._preset, self._device):
            place.observe(lambda _: self._read(), "value")
        start = Recipe(batch_size=first.preset.batch_size)
        self.controls = Controls(switches(), start, lambda recipe: self._status.said("press Run to measure"))
        make = parts.button
        self._run = make("Run", "pk-run", "Measure; other cells can run meanwhile", self._click, "primary")
        self._cancel = make("Cancel", "pk-cancel", "Stop; what is finished is kept", self.cancel)
        self._cancel.disabled = True
        self._profile = make("Profile", "pk-profile", "Some steps under the profiler", self._click_profile)
        self._large = widgets.Checkbox(description="Large type", indent=False, layout={"width": "auto"})
        self._large.observe(lambda _: self._draw(), "value")
        buttons = [
            self._run, self._cancel, self._profile,
            make("Reset to baseline", "pk-reset", "Every switch off", self._to_baseline),
            make("Reset to best", "pk-best", "The switches of the fastest run", self._to_best), self._large,
        ]  # fmt: skip
        self._history = parts.box([], "pk-history")
        acts = [
            make("Script", "pk-export", "The standalone script of the ticked run", self.show_script),
            make("Report", "pk-make-report", "One HTML file of the ticked runs", self.show_report),
            make("Use its switches", "pk-use", "Set the controls as the ticked run has them", self._use),
        ]
        self._made = parts.say("pk-script")
        self._results = parts.say("pk-results")
        self._plots = [parts.say("pk-plot") for _ in _VIEWS]
        self._profiled = parts.say("pk-profiled")
        self._apply = parts.row([], "pk-apply")
        places = [self._workload, self._preset, self._device, self._against, self._name]
        self.box = parts.box(
            [widgets.HTML(parts.STYLE), parts.row(places), self.controls.widget, parts.row(buttons),
             self._status.widget(), self._history, parts.row(acts), self._made, self._results,
             *self._plots, self._profiled, self._apply], "pk-panel",
        )  # fmt: skip

    def __repr__(self) -> str:
        return "perfkit workbench: run this cell for the controls"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        if self._reader is None:
            self._read()
        bundle: dict[str, Any] = self.box._repr_mimebundle_(**kwargs)
        return {**bundle, "text/plain": repr(self)}

    def _busy(self, busy: bool) -> None:
        self._run.disabled = self._profile.disabled = busy
        self._cancel.disabled = not busy

    # ------------------------------------------------------------ what can run here

    def _plan(self, recipes: Sequence[tuple[str, Recipe]] = ()) -> engine.Plan:
        made = engine.plan(
            self._workload.value, self._preset.value, ["baseline"], None, self._device.value, self.options
        )
        return replace(made, recipes=tuple(recipes))

    def _read(self) -> None:
        """Asks the workload, in a child, what it offers: the controls follow."""
        self._reader = threading.Thread(target=self._describe, name="perfkit-read", daemon=True)
        self._reader.start()

    def _describe(self) -> None:
        try:
            plan = self._plan()
            described, _ = engine.resolve(plan)
        except PerfkitError as problem:
            self._described = None
            self._status.end("not ready", str(problem))
            return
        self._described = described
        self._status.error.value = ""
        self.controls.set_target(engine.target(plan, described))

    # ------------------------------------------------------------ measuring

    def run(self, block: bool = True) -> None:
        """Measures the recipe as the controls stand; blocking in a cell, in a thread from the button."""
        self._job.start(self._measure, block)

    def cancel(self) -> None:
        """Ends what is under way."""
        self._job.cancel()

    def _click(self) -> None:
        self.run(block=False)

    def _click_profile(self) -> None:
        self.profile(block=False)

    def _measure(self) -> None:
        recipe = self.controls.recipe
        name = self._name.value.strip() or f"{recipe.describe()}"[:60]

        def work() -> None:
            asked = [*self._other(), (name, recipe)]
            climbed = engine.climb(self._plan(asked), RunStore(), show, self._job.cancelled)
            told = [f"{run.title}: {run.reason}" for run in climbed if run.status in ("failed", "cancelled")]
            self.error = "; ".join(told)

        def show(progress: engine.Progress) -> None:
            self._status.progress(f"{progress.stage}: {progress.phase}".removeprefix(": "), progress.fraction)
            if progress.run and progress.run.status == "ok":
                self._add(progress.run)

        self._guarded(work)
        self._name.value = ""

    def _guarded(self, work: Callable[[], None]) -> None:
        self.error = ""
        self._status.begin()
        try:
            work()
        except (KeyboardInterrupt, Cancelled):
            self.error = "stopped; what was finished is kept"
        except PerfkitError as problem:
            self.error = str(problem)
        except Exception as problem:  # a thread has nobody to raise it to: it is shown in the panel
            self.error = parts.in_words(problem)
        self._status.end("stopped" if self.error else "done", self.error)

    def _other(self) -> list[tuple[str, Recipe]]:
        """What the recipe is measured in turn with."""
        if self._against.value == "the best so far" and (best := self._best()):
            return [(f"{best.title} (again)"[:60], Recipe.from_dict(best.recipe))]
        if self._against.value == "nothing":
            return []
        return [("baseline", Recipe(batch_size=PRESETS[self._preset.value].batch_size))]

    def profile(self, block: bool = True) -> None:
        """Some steps of the recipe under the profiler: timeline and diagnosis."""
        self._job.start(lambda: self._guarded(self._record), block)

    def _record(self) -> None:
        plan = self._plan()
        made = inspect.profile(
            plan.workload, self.controls.recipe, on_progress=self._status.progress,
            cancelled=self._job.cancelled, preset=plan.preset.name, device=plan.device, options=self.options,
        )  # fmt: skip
        window = made.lanes() if made.analysis.steps else None
        said = [trace_tables.diagnosis(made.findings), trace_tables.loading(made.loading)]
        tables = "".join(
            f"<h4>{html.escape(s.title)}</h4>{parts.html_table(s.columns, s.rows) if s.rows else ''}"
            f"<p>{html.escape(s.note)}</p>"
            for s in said
        )
        shown = timeline.frame(window) if window else ""
        self._profiled.value = f"{tables}{shown}<p>{html.escape(made.describe())}</p>"
        tried = dict.fromkeys(name for finding in made.findings for name in finding.try_next)
        refused = self.controls.reasons
        self._apply.children = tuple(self._applier(name) for name in tried if not refused.get(name))

    def _applier(self, name: str) -> widgets.Button:
        """A button that sets a suggested switch to the next of its values."""
        switch = switches()[name]

        def act() -> None:
            now = getattr(self.controls.recipe, name)
            at = switch.levels.index(now) if now in switch.levels else 0
            level = switch.levels[(at + 1) % len(switch.levels)] if switch.levels else switch.default
            self.controls.show(self.controls.recipe.replace(**{name: level}))
            self._status.said(f"{switch.label} is set: press Run to see whether it helps")

        return parts.button(f"Try {switch.label}", f"pk-try-{name}", switch.help, act)

    # ------------------------------------------------------------ history

    def _recall(self, plan: engine.Plan) -> None:
        try:
            stored = RunStore().list(limit=_MOST, workload=plan.workload)
        except PerfkitError:
            return
        self.runs = [run for run in reversed(list(stored)) if run.status == "ok"]
        self._list()

    def _add(self, run: Run) -> None:
        self.runs = [*self.runs, run][-_MOST:]
        ticked = {name for name, tick in self._ticks.items() if tick.value}
        self._list({*ticked, run.id} if any(r.session == run.session for r in self.ticked()) else {run.id})

    def _list(self, ticked: set[str] | None = None) -> None:
        """The history, newest first; by itself the newest session is ticked."""
        newest = self.runs[-1].session if self.runs else ""
        self._ticks, lines = {}, []
        for run in reversed(self.runs):
            chosen = run.id in ticked if ticked is not None else run.session == newest
            tick = widgets.Checkbox(chosen, description=run.title[:48], indent=False)
            tick.layout.width = "270px"
            tick.observe(lambda _: self._draw(), "value")
            self._ticks[run.id] = tick
            cells = table.row(run)
            about = f"{cells[1]} samples/s · × baseline {cells[3]} · {run.created[:16].replace('T', ' ')}"
            lines.append(parts.row([tick, widgets.HTML(html.escape(about))], align_items="center"))
        heading = widgets.HTML(f"<b>Runs</b> ({len(lines)}): tick those to compare")
        self._history.children = (heading, *lines)
        self._history.layout.max_height, self._history.layout.overflow = "230px", "auto"
        self._draw()

    def ticked(self) -> list[Run]:
        """The runs that are ticked, oldest first."""
        return [run for run in self.runs if (tick := self._ticks.get(run.id)) and tick.value]

    def _best(self) -> Run | None:
        here = [run for run in self.runs if run.samples_per_s and run.preset == self._preset.value]
        return max(here, key=lambda run: run.samples_per_s.median if run.samples_per_s else 0, default=None)

    def _draw(self) -> None:
        large, shown = self._large.value, self.ticked()
        (self.box.add_class if large else self.box.remove_class)("pk-large")
        said = "".join(f"<li>{html.escape(text)}</li>" for text in report.sentences(shown))
        self._results.value = (
            f"{parts.runs_table(shown)}<ul class='pk-verdict'>{said}</ul>{_mixed(shown)}{parts.notes(shown)}"
            if shown
            else "<p>Set switches, then press Run.</p>"
        )
        for place, view in zip(self._plots, _VIEWS, strict=True):
            drawn = shown and not figures.VIEWS[view].nothing(shown)
            place.value = parts.picture(view, shown, large) if drawn else ""

    # ------------------------------------------------------------ what to do with a run

    def _measured(self) -> list[Run]:
        if not (found := self.ticked()):
            raise InvalidValue("no run is ticked", "Tick one in the list of runs, or press Run")
        return found

    def _one(self) -> Run:
        return self._measured()[-1]

    def show_script(self) -> None:
        """The standalone script of the newest ticked run, to copy or to save."""

        def work() -> None:
            text = next(iter(engine.scripts([self._one()]).values()))
            save = parts.download(text, "train.py", "text/x-python")
            self._made.value = f"<p>{save} {_COPY}</p><pre tabindex='0'>{html.escape(text)}</pre>"

        self._guarded(work)

    def show_report(self) -> None:
        """One HTML file of the ticked runs."""

        def work() -> None:
            self._one()
            text = report.html(self.ticked(), engine.scripts(self.ticked()))
            self._made.value = f"<p>{parts.download(text, 'perfkit-report.html', 'text/html')}</p>"

        self._guarded(work)

    def _use(self) -> None:
        self._guarded(lambda: self.controls.show(Recipe.from_dict(self._one().recipe)))

    def _to_baseline(self) -> None:
        self.controls.show(Recipe(batch_size=PRESETS[self._preset.value].batch_size))

    def _to_best(self) -> None:
        if best := self._best():
            self.controls.show(Recipe.from_dict(best.recipe))


def _mixed(runs: Sequence[Run]) -> str:
    """A word of caution where the ticked runs were not measured in turn."""
    sessions = len({run.session for run in runs})
    text = f"These runs are of {sessions} sessions, not measured in turn: drift is in their difference."
    return f"<p class='pk-mixed'>{text}</p>" if sessions > 1 else ""


def _there(device: str) -> bool:
    try:
        machine.check_device(device)
    except PerfkitError:
        return False
    return True
