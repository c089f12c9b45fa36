"""The workbench: every switch as a control, the history of runs, runs beside each other, their scripts."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from perfkit import additions
from perfkit.errors import InvalidValue
from perfkit.notebook import widgets as pieces
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


class History(anywidget.AnyWidget):
    """The table of runs in the page, to sort and filter; its script is the file beside this one."""

    _esm = Path(__file__).with_name("history.js")
    rows: traitlets.List[Any] = traitlets.List().tag(sync=True)
    ticked: traitlets.List[str] = traitlets.List().tag(sync=True)
    """Ids of the runs to compare."""

    def fill(self, entries: Iterable[Entry], ticked: Sequence[str] = ()) -> None:
        """Shows these runs; some are ticked."""
        with self.hold_sync():
            self.rows = [tables.history_row(line) for line in entries]
            self.ticked = list(ticked)


def _is_shown(run: Run | Entry) -> bool:
    """Failed runs have nothing to compare, and the baseline once more is no recipe of its own."""
    return run.status == "ok" and run.stage != AGAIN


class Workbench(PlanPanel):
    """Toggle, run, see: all switches of the recipe on one workload.

    Args:
        workload: a built-in one, or `package.module:name`; the preset's own if None.
        more: preset, device, options and host, as for `PlanPanel`.

    Raises:
        InvalidValue: a name or value that is not allowed.
    """

    text = "perfkit workbench: run this cell for the controls"
    question = "Workbench"

    def __init__(self, workload: str | None = None, **more: Any) -> None:
        self._profile: Sequence[Content] = ()
        self._entries: dict[str, Entry] = {}
        """The lines of the history by id, oldest first."""
        self._played: dict[str, Run] = {}
        """The runs of a recording by id; they are in no store."""
        self._deleted: list[tuple[Run, Entry]] = []
        self.controls = pieces.Controls(switches(), lambda: self.bar.say("press Run to measure"))
        self.history = History(_dom_classes=["pk-history"])
        self.history.observe(lambda _: self.attempt(self._compare), "ticked")
        self._link = pieces.text("pk-script")
        use = "Set the switches to those of the newest ticked run"
        export = "The newest ticked run's script; the ticked runs as a file and as a report"
        self._undo = self.act("Undo delete", "pk-undo", "Bring back every deleted run", self._bring_back)
        self._undo.disabled = True
        acts = [
            self.act("Use", "pk-use", use, self._use),
            self.act("Export", "pk-export", export, self._export),
            self.act("Delete", "pk-delete", "Remove the ticked runs", self._delete),
            self._undo,
        ]
        about = "Some steps under the profiler"
        profile = pieces.button("Profile", "pk-profile", about, lambda: self.start(self._record))
        super().__init__(
            "Workbench",
            workload,
            above=[self.controls.widget],
            buttons=[profile] if "profile" in additions.notebook_names() else [],
            below=[self.history, pieces.row(acts), self._link],
            **more,
        )
        self._moved()

    # ------------------------------------------------------------ what is measured

    def set(self, **switches: Value) -> None:
        """Sets switches, as the controls do.

        Raises:
            InvalidValue: an unknown switch or a value that is not allowed.
        """
        self.controls.set(switches)

    def _planned(self, device: str | None, host: str | None) -> Plan:
        return sources.plan(stages=[BASELINE], device=device, host=host, **self._asked)

    def _plain(self) -> Recipe:
        return Recipe(batch_size=self.plan.preset.batch_size)

    def _moved(self) -> None:
        """Offers what the workload's class declares, and shows the runs of the place."""
        plan = self.plan
        self.controls.set_base(self._plain())
        self.controls.set_rule(sources.described(plan, rungs.expected(plan)).why_not_set)
        runs = recordings.played(recordings.find(plan.recorded)) if plan.recorded else []
        self._played = {run.id: run for run in runs if _is_shown(run)}
        stored = [] if runs else reversed(RunStore().history(workload=plan.workload))
        lines = [*map(entry, runs), *stored]
        self._entries = {line.id: line for line in lines if _is_shown(line)}
        self.history.fill(self._entries.values(), [*self._played])
        self._compare()

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
            new = {run.id: entry(run) for run in self.runs if _is_shown(run)}
            self._entries |= new
            self.history.fill(self._entries.values(), [*new])

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
        runs = self._ticked()
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
        """Shows other ticked runs; the work under way shows its own at its end."""
        if not self._turn.locked():
            self._profile = ()
            self.show()

    # ------------------------------------------------------------ what to do with ticked runs

    def _ticked(self) -> list[Run]:
        """The ticked runs, oldest first."""
        ids = [name for name in self._entries if name in self.history.ticked]
        runs = [self._played.get(name) or RunStore().get(name) for name in ids]
        return sorted(runs, key=lambda run: run.created)

    def _chosen(self) -> list[Run]:
        if runs := self._ticked():
            return runs
        raise InvalidValue("no run is ticked", "Tick a run in the table")

    def _use(self) -> None:
        self.controls.show(Recipe.from_dict(self._chosen()[-1].recipe))
        self.bar.say("press Run to measure")

    def _export(self) -> None:
        runs = self._chosen()
        script = next(iter(rungs.scripts(runs[-1:]).values()))
        recording = recordings.recording_text(runs).decode()
        report = html.session(runs, rungs.scripts(runs))
        links = [
            pieces.download(script, "train.py", "text/x-python"),
            pieces.download(recording, "perfkit-runs.json", "application/json"),
            pieces.download(report, "perfkit-report.html", "text/html"),
        ]
        self._link.value = f"<p>{' · '.join(links)}</p>{pieces.copyable(script)}"

    def _delete(self) -> None:
        """Takes the ticked runs away; the runs of a recording are in no store."""
        removed = RunStore().delete([run.id for run in self._chosen()])
        self._deleted += [(run, self._entries.pop(run.id)) for run in removed]
        self._undo.disabled = False
        count = len(self._deleted)
        self.bar.say(f"deleted; Undo delete brings back {count} run{'s' * (count > 1)}")
        self.history.fill(self._entries.values())

    def _bring_back(self) -> None:
        while self._deleted:
            run, line = self._deleted[-1]
            RunStore().add(run, line.guess)
            RunStore().mark(run.id, name=line.name, note=line.note)
            self._deleted.pop()  # only once it is stored
            self._entries[run.id] = line
        self._undo.disabled = True
        self.bar.say("the deleted runs are back")
        self.history.fill(self._entries.values(), self.history.ticked)


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
