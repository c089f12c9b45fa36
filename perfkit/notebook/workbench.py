"""The workbench: every switch as a control, the history of runs, runs beside each other, their scripts."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as widgets
import traitlets

from perfkit import additions
from perfkit.errors import InvalidValue, PerfkitError
from perfkit.notebook import widgets as pieces
from perfkit.notebook.panel import refuse_object
from perfkit.notebook.where import PlanPanel
from perfkit.recipe import Recipe, Value, switches
from perfkit.results import recordings
from perfkit.results.run import AGAIN, Run
from perfkit.results.store import Entry, RunStore, entry
from perfkit.show import figures, html, sentences, tables
from perfkit.show.document import Bullets, Col, Content, Notice, Table, tabulate
from perfkit.studies import rungs, sources
from perfkit.studies.compare import compare_stored
from perfkit.studies.progress import Progress
from perfkit.studies.sources import Plan

BASELINE = "baseline"


class Grid(anywidget.AnyWidget):
    """The table of runs in the page, to sort and filter; its script is the file beside this one."""

    _esm = Path(__file__).with_name("history.js")
    rows: traitlets.List[Any] = traitlets.List().tag(sync=True)
    ticked: traitlets.List[str] = traitlets.List().tag(sync=True)
    """Ids of the runs to compare."""


class History:
    """The measured runs of a workload, or those of a recording.

    Args:
        on_tick: called after a person has ticked other runs.
    """

    def __init__(self, on_tick: Callable[[], None]) -> None:
        self.grid = Grid(_dom_classes=["pk-history"])
        self._entries: dict[str, Entry] = {}
        self._recorded: dict[str, Run] = {}
        self._deleted: list[tuple[Run, Entry]] = []
        self._quiet = False

        def ticked(_: Any) -> None:
            if not self._quiet:
                on_tick()

        self.grid.observe(ticked, "ticked")

    def show_recorded(self, runs: Sequence[Run]) -> None:
        """Shows the measured runs of a recording; all are ticked."""
        self._recorded, self._entries = {run.id: run for run in runs}, {}
        self.add(runs)

    def show_stored(self, workload: str) -> None:
        """Shows the measured runs of a workload; nothing is ticked."""
        entries = RunStore().history(workload=workload)
        self._recorded, self._entries = {}, {line.id: line for line in reversed(entries) if _is_shown(line)}
        self._draw([])

    def add(self, runs: Sequence[Run]) -> None:
        """Adds runs that have just ended; they alone are ticked."""
        added = {run.id: entry(run) for run in runs if _is_shown(run)}
        self._entries |= added
        self._draw(list(added))

    def ticked(self) -> list[Run]:
        """The ticked runs, oldest first."""
        ids = [name for name in self._entries if name in self.grid.ticked]
        runs = [self._recorded.get(name) or RunStore().get(name) for name in ids]
        return sorted(runs, key=lambda run: run.created)

    def delete(self) -> int:
        """Deletes the ticked runs; returns how many `undo` can bring back.

        Raises:
            InvalidValue: the runs are those of a recording.
        """
        if self._recorded:
            raise InvalidValue("these runs are those of a recording, which is a file", "Nothing was deleted")
        removed = RunStore().delete(self.grid.ticked)
        self._deleted += [(run, self._entries.pop(run.id)) for run in removed]
        self._draw([])
        return len(self._deleted)

    def undo(self) -> None:
        """Brings back every run that was deleted here."""
        while self._deleted:
            run, line = self._deleted[-1]
            RunStore().add(run, line.guess)
            RunStore().mark(run.id, name=line.name, note=line.note)
            self._deleted.pop()  # only once it is stored
            self._entries[run.id] = line
        self._draw(self.grid.ticked)

    def _draw(self, ticked: list[str]) -> None:
        self._quiet = True
        with self.grid.hold_sync():
            self.grid.rows = [tables.history_row(entry) for entry in self._entries.values()]
            self.grid.ticked = ticked
        self._quiet = False


def _is_shown(run: Run | Entry) -> bool:
    """Failed runs have nothing to compare, and the baseline once more is no recipe of its own."""
    return run.status == "ok" and run.stage != AGAIN


class Workbench(PlanPanel):
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
        self._asked = workload, preset, options
        self._profile: Sequence[Content] = ()
        self.controls = pieces.Controls(switches(), lambda: self.bar.say("press Run to measure"))
        self.history = History(lambda: self._try(self._compare))
        self._link = pieces.text("pk-script")
        use = "Set the switches to those of the newest ticked run"
        export = "The newest ticked run's script; the ticked runs as a file and as a report"
        self._undo = self._act("Undo delete", "pk-undo", "Bring back every deleted run", self._bring_back)
        self._undo.disabled = True
        acts = [
            self._act("Use", "pk-use", use, self._use),
            self._act("Export", "pk-export", export, self._export),
            self._act("Delete", "pk-delete", "Remove the ticked runs", self._delete),
            self._undo,
        ]
        about = "Some steps under the profiler"
        profile = pieces.button("Profile", "pk-profile", about, lambda: self.start(self._record))
        super().__init__(
            "Workbench",
            (self._asked, device, host),
            device,
            host,
            [self.controls.widget],
            buttons=[profile] if "profile" in additions.notebook_names() else [],
            below=[self.history.grid, pieces.row(acts), self._link],
        )
        self._expect()

    # ------------------------------------------------------------ what is measured

    def set(self, **switches: Value) -> None:
        """Sets switches, as the controls do.

        Raises:
            InvalidValue: an unknown switch or a value that is not allowed.
        """
        self.controls.set(switches)

    def _planned(self, device: str | None, host: str | None) -> Plan:
        """A plan of what was asked for; a recording brings its own workload, preset and options."""
        is_recorded = (device or "").startswith(recordings.PREFIX)
        workload, preset, options = (None, None, None) if is_recorded else self._asked
        return sources.plan(workload, preset, [BASELINE], None, device, options, host=host)

    def _plain(self) -> Recipe:
        return Recipe(batch_size=self.plan.preset.batch_size)

    def _moved(self) -> None:
        self._profile = ()
        self._expect()

    def _expect(self) -> None:
        """Offers at once what the workload's class declares; a process that loads it takes seconds."""
        self.controls.set_base(self._plain())
        with contextlib.suppress(PerfkitError):  # `_learn` tells it
            self.controls.set_rule(rungs.switch_rule(self.plan, rungs.expected(self.plan)))

    def _learn(self, plan: Plan) -> None:
        if plan.recorded:
            self.history.show_recorded(recordings.played(recordings.find(plan.recorded)))
            self._compare()
        else:
            self.history.show_stored(plan.workload)
        description, _ = rungs.resolve(plan)
        if plan is self.plan:
            self.controls.set_rule(rungs.switch_rule(plan, description))

    def _measure(self) -> None:
        """The recipe of the controls beside the baseline; the baseline itself is measured once."""
        recipe, plain = self.controls.recipe, self._plain()
        changed = ", ".join(tables.changes(recipe.to_dict(), plain.to_dict()))
        recipes = {BASELINE: plain, changed[:60]: recipe} if changed else {BASELINE: plain}
        self._profile = ()
        self._climb(replace(self.plan, recipes=tuple(recipes.items())))

    def follow(self, progress: Any) -> None:
        """Adds runs to the history as they end."""
        super().follow(progress)
        if progress.run:
            self.history.add(self.runs)

    def profile(self) -> None:
        """Profiles some steps of the recipe, and shows what they do below the cell that called.

        Raises:
            PerfkitError: they cannot be profiled here.
        """
        self.wait(self._record)

    def _record(self) -> None:
        plan, profile = self.plan, additions.load(additions.notebook_names()["profile"])
        progress = Progress(lambda now: self.bar.progress(now.phase, now.fraction), self.cancelled)
        where = {"preset": plan.preset.name, "device": plan.device, "options": plan.options}
        view = profile(plan.workload, self.controls.recipe, progress=progress, **where)
        self._profile = view.sections()

    # ------------------------------------------------------------ results

    def sections(self) -> Sequence[Content]:
        """The profile, if it is the newest; else the ticked runs beside each other."""
        if self._profile:
            return self._profile
        runs = self.history.ticked()
        if not runs:
            return ()
        notices, sessions = [*map(Notice, sentences.notices(runs))], {run.session for run in runs}
        if len(sessions) == 1:
            words = Bullets(sentences.verdicts(runs))
            return [*notices, figures.headline(runs), tables.ladder(runs), words]
        drift = (
            f"The runs are from {len(sessions)} sessions, not interleaved: their difference contains drift."
        )
        picture = figures.view("step_time", runs)
        return [*notices, picture, tables.ladder(runs), Notice(drift), compared(runs)]

    def _compare(self) -> None:
        self._profile = ()
        self.show()

    # ------------------------------------------------------------ what to do with ticked runs

    def _act(self, label: str, name: str, tooltip: str, act: Callable[[], None]) -> widgets.Button:
        return pieces.button(label, name, tooltip, lambda: self._try(act))

    def _try(self, act: Callable[[], None]) -> None:
        self.bar.tell(None)
        try:
            act()
        except PerfkitError as problem:
            self.bar.tell(problem)

    def _ticked(self) -> list[Run]:
        if runs := self.history.ticked():
            return runs
        raise InvalidValue("no run is ticked", "Tick a run in the table")

    def _use(self) -> None:
        self.controls.show(Recipe.from_dict(self._ticked()[-1].recipe))
        self.bar.say("press Run to measure")

    def _export(self) -> None:
        runs = self._ticked()
        script = next(iter(rungs.scripts(runs[-1:]).values()))
        links = [
            pieces.download(script, "train.py", "text/x-python"),
            pieces.download(
                recordings.recording_text(runs).decode(), "perfkit-runs.json", "application/json"
            ),
            pieces.download(html.session(runs, rungs.scripts(runs)), "perfkit-report.html", "text/html"),
        ]
        self._link.value = f"<p>{' · '.join(links)}</p>{pieces.copyable(script)}"

    def _delete(self) -> None:
        self._ticked()
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

    def ratio(run: Run) -> str:
        try:
            return sentences.result(compare_stored(first, run).ratio)
        except InvalidValue as problem:
            return f"n/a: {problem.what}"

    columns = (
        Col("run", "title"),
        Col(f"against {first.title}", ratio),
        Col("what differs", lambda run: ", ".join(tables.changes(run.recipe, first.recipe)) or "no switch"),
    )
    return tabulate(columns, others, "Compared", none="one run is ticked")
