"""The workbench: every switch as a control, the history of runs, their comparison, their scripts."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import anywidget
import traitlets

from perfkit import lookup, registry
from perfkit.additions.shared.download import download
from perfkit.additions.shared.looking import LOOK
from perfkit.notebook.controls import Controls
from perfkit.notebook.ladder import PlanPanel
from perfkit.notebook.pieces import preformatted, row, text
from perfkit.recipe import Recipe, Value, shown, switches
from perfkit.results import Run, recordings
from perfkit.rules import why_not
from perfkit.show import html, sentences, tables
from perfkit.show.document import Bullets, Content
from perfkit.show.units import clean
from perfkit.studies import planning, staging
from perfkit.studies.job import Job, PlanAnswer
from perfkit.studies.planning import Where


class History(anywidget.AnyWidget):
    """The table of runs on the page, to sort and filter. Its script is in the same folder."""

    _esm = Path(__file__).with_name("history.js")
    rows: "traitlets.List[Any]" = traitlets.List().tag(sync=True)
    ticked: "traitlets.List[str]" = traitlets.List().tag(sync=True)  # ids of the runs to compare


class Workbench(PlanPanel):
    """Toggle, run, compare: all switches of the recipe on one workload; arguments as for `LadderPanel`."""

    def __init__(self, workload: str | None = None, **where: Unpack[Where]) -> None:
        self._profile: Sequence[Content] = ()
        self._listed: dict[str, Run] = {}  # the runs in the history, by id
        self.controls = Controls(switches(), self._set_recipe)
        self.history = History(_dom_classes=["pk-history"])
        self.history.observe(lambda _: self._compare(), "ticked")
        self._link = text("pk-script")
        export = "The newest ticked run's script; the ticked runs as a file and as a report"
        acts = [
            self.button("Use", "Set the switches to those of the newest ticked run", self._use),
            self.button("Export", export, self._export),
            self.button("Delete", "Remove the ticked runs", self._delete),
            self.button("Undo delete", "Bring back every deleted run", self._undelete),
        ]
        own = {"above": [self.controls.widget], "below": [self.history, row(acts), self._link]}
        if "profile" in registry.table("NOTEBOOK"):
            about = "Some steps under the profiler"
            own["buttons"] = [self.button("Profile", about, lambda: self.start(self._record))]
        plan_for = partial(planning.plan, workload, stages=["baseline"])
        super().__init__("Workbench", plan_for, where, **own)
        self._plan_changed()

    def set(self, **switches: Value) -> None:
        """Sets switches, as the controls do."""
        self.require_rest()
        self.controls.set(switches)

    def _plan_changed(self) -> None:
        """Offers the switches that the workload's class declares, and shows the runs of this workload."""
        source = self.plan.source()
        self.controls.offer(source.baseline(), partial(why_not, target=source.target))
        self.plan = self.plan.trying(recipes=self._recipes())
        self._clear(self.plan)
        self._list(())
        if self.plan.recorded:
            self.history.ticked = [*self._listed]
        self._compare()

    def _set_recipe(self) -> None:
        """Takes a new recipe, which Run will measure; *Continue* would add rounds of a different one."""
        recipes = self._recipes()
        if recipes != self.plan.ladder.recipes:
            self.plan = self.plan.trying(recipes=recipes)
            self._set_answer(PlanAnswer(self.plan))
            self.status.say("press Run to measure")

    def _recipes(self) -> tuple[tuple[str, Recipe], ...]:
        """The baseline and the recipe of the controls, if it differs from the baseline."""
        recipe, base = self.controls.recipe, self.controls.base
        changed = ", ".join(_changes(recipe.to_dict(), base.to_dict()))
        return (("baseline", base), (changed[:60], recipe)) if changed else (("baseline", base),)

    @property
    def runs(self) -> list[Run]:
        """The ticked runs."""
        return [run for name, run in self._listed.items() if name in self.history.ticked]

    def _list(self, ids: Collection[str]) -> None:
        """Lists the current history, and ticks the runs of these ids."""
        history = self._history()
        self._listed = {run.id: run for run in history}
        with self.history.hold_sync():
            self.history.rows = [*map(_row, history)]
            self.history.ticked = [name for name in self._listed if name in ids]

    def _history(self) -> list[Run]:
        """The runs of this workload, oldest first, without failed runs and repeated baselines."""
        if name := self.plan.recorded:  # its runs are not in a store
            history = recordings.find(name)
        else:
            history = self.store.history(workload=self.plan.subject.workload)[::-1]
        return [run for run in history if run.samples_per_s and not run.is_again]

    def _measure(self, job: Job) -> None:
        """Measures the recipe that the job requests, with the baseline."""
        before, ticked = self.answer, self.history.ticked
        self._list(())
        try:
            self._climb(job)
        finally:
            if self.answer is before:  # the profile, if any, is still the newest result
                self._list(ticked)
            else:
                self._profile = ()
                self._list([run.id for run in self.answer.runs])

    def profile(self) -> None:
        """Profiles some steps of the recipe, and shows the profile below the calling cell."""
        self.wait(self._record)

    def _record(self, job: Job) -> None:
        job.plan.source().require(LOOK)
        subject = job.plan.subject
        profile = lookup.load(registry.table("NOTEBOOK")["profile"])
        view = profile(
            subject.workload,
            self.controls.recipe,
            progress=job.progress,
            preset=subject.size.name,
            device=self.device,
            options=subject.options,
            host=subject.host,
        )
        self._profile = view.sections()

    def sections(self) -> Sequence[Content]:
        """The profile, if it is the newest result; else the ticked runs."""
        return self._profile or super().sections()

    def _answers(self) -> list[Content]:
        """The table of the ticked runs, and their verdicts."""
        words = sentences.verdicts(self.runs)
        last, before = self.runs[-1], self.runs[-1].previous(self.runs)
        if before:
            words.append(f"{sentences.training(last, before)}.")
        if len({run.session for run in self.runs}) > 1:
            words.append("These runs were not all measured together: `perfkit compare` compares two of them.")
        return [tables.ladder(self.runs), Bullets(words)]

    def _compare(self) -> None:
        """Shows the ticked runs, unless a job is running, which shows its own at the end."""
        if not self.is_busy:
            self._profile = ()
            self.show()

    def _use(self) -> None:
        self.controls.set(Recipe.from_dict(self.results()[-1].recipe).to_dict())

    def _export(self) -> None:
        runs = self.results()
        title = f"perfkit: {runs[0].workload.rpartition(':')[2]}"
        files = {"perfkit-report.html": html.page(title, tables.report(runs, staging.scripts(runs)))}
        if not self.plan.recorded:  # which is a file already
            files["perfkit-runs.json"] = recordings.content(runs).decode()
        script = ""  # a training that was a script has none
        if runs[-1].script is None:
            files["train.py"] = script = staging.script(runs[-1], set_up=True)
        links = " · ".join(download(content, name) for name, content in files.items())
        self._link.value = f"<p>{links}</p>{preformatted(script) if script else ''}"

    def _delete(self) -> None:
        """Deletes the ticked runs. A recording's runs cannot be deleted, as they are not in the store."""
        self.store.delete([run.id for run in self.results()])
        self._list(())

    def _undelete(self) -> None:
        self.store.undelete()
        self._list(self.history.ticked)


def _row(run: Run) -> dict[str, Any]:
    """A run as plain values for the table: texts, and numbers to sort by."""
    ratio = run.speedup("baseline")
    return {
        "id": run.id,
        "name": sentences.run_name(run),
        "rate": str(tables.rate(run)),
        "rate_value": run.samples_per_s.value if run.samples_per_s else None,
        "ratio": str(tables.against(ratio)),
        "ratio_value": ratio.ratio if ratio else None,
        "changes": ", ".join(_changes(run.recipe, {})),
        "date": run.created[:16].replace("T", " "),
    }


def _changes(recipe: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """The switches that differ, as `AMP bf16`, `Pin memory off`; missing ones have torch's default."""
    return [
        f"{switches()[name].label} {clean(shown(value), 30)}"
        for name, default in Recipe().to_dict().items()
        if (value := recipe.get(name, default)) != before.get(name, default)
    ]
