"""A panel for a user's own script: watch it, set switches from outside, take the edit."""

import functools
from collections.abc import Sequence
from pathlib import Path

from perfkit import registry
from perfkit.additions.scripts import messages, study
from perfkit.additions.scripts.watched import own_or_shipped
from perfkit.additions.scripts.watching import BUDGET_S, watch_script
from perfkit.additions.shared.download import download
from perfkit.errors import InvalidValue
from perfkit.notebook.controls import Controls
from perfkit.notebook.panel import Panel
from perfkit.notebook.pieces import heading, text
from perfkit.recipe import Recipe, Value
from perfkit.results.comparison import Comparison
from perfkit.rules import why_not
from perfkit.show import figures, sentences
from perfkit.show.document import Code, Content, Notice, Section
from perfkit.studies.compare import Candidate, compare_candidates
from perfkit.studies.job import Job, PlanAnswer
from perfkit.studies.sources import Plan


class ScriptPanel(Panel):
    """Your own training script, unmodified: watch it, set switches from outside, compare, take the edit.

    Args:
        script: the file, also one of perfkit's own in `data/scripts`; with `module`, one for `python -m`.
            *Continue* refuses it once it was edited; edits of what it imports are not noticed.
        args: the script's own arguments.
        preset: `smoke`, `quick` or `paper`: how large blocks are, and how long they are measured.
    """

    def __init__(
        self, script: str | Path, args: Sequence[object] = (), module: bool = False, preset: str | None = None
    ) -> None:
        self.launch = own_or_shipped(str(script), args, module)
        self._preset = preset
        self._edit: list[Content] = []
        self._report: list[Section] = []
        self._controls = Controls(messages.SETTABLE, self._change)
        command = self.launch.describe()
        hint = "Some steps as they are: rate, waiting, profile, what to try, and which switches can be set"
        buttons = [self.button("Watch", hint, lambda: self.start(self._watch))]
        if registry.table("EDITS"):
            hint = "The edit of your file that sets them"
            buttons.append(self.button("Patch", hint, lambda: self.start(self._patch)))
        self._save = text("pk-script")
        above = [heading(command), self._controls.widget]
        super().__init__(self._planned_now(), (command, preset), above, buttons, [self._save])

    def set(self, **settings: Value) -> None:
        self.require_rest()
        self._controls.set(settings)

    def watch(self, tries: bool = False, budget_s: float = BUDGET_S) -> None:
        """Watches some steps for `budget_s`; with `tries`, also measures the two best suggestions."""
        self.wait(functools.partial(self._watch, tries=tries, budget_s=budget_s))

    def patch(self) -> None:
        self.wait(self._patch)

    def sections(self) -> list[Content]:
        result = self.answer.comparison
        return [*self._edit, *(_compared(result) if result else ()), *self._report]

    def _planned_now(self) -> Plan:
        return study.script_plan(study.ScriptStarter(self.launch), self._preset)

    def _change(self) -> None:
        self._forget_edit()
        self.status.say("press Run to measure")

    def _forget_edit(self) -> None:
        """Clears the edit, because the switches have changed, or new losses contradict it."""
        self._edit = []
        self._save.value = ""

    def _settings(self) -> dict[str, Value]:
        if settings := self._controls.changes():
            return settings
        raise InvalidValue("no switch is set", "Set one, or press Watch for what to try")

    def _watch(self, job: Job, tries: bool = False, budget_s: float = BUDGET_S) -> None:
        watched = watch_script(self.launch, job.progress, budget_s, tries=tries)
        target = study.target(watched.script)
        self._controls.offer(Recipe().replace(**target.defaults), functools.partial(why_not, target=target))
        self._report = [Section("What watching it has shown", watched.sections())]

    def _measure(self, job: Job) -> None:
        sides = job.before.sides if job.before else None
        if sides is None:
            title = self._controls.recipe.describe(self._controls.base)
            sides = Candidate(study.UNCHANGED), Candidate(title, changes=self._settings())
        earlier = job.before.comparison if job.before else None
        result = compare_candidates(*sides, job.plan, earlier, job.progress, self.store)
        self._set_answer(PlanAnswer(job.plan, [result.a, result.b], sides=sides, comparison=result))
        self._forget_edit()
        self._report = [section._replace(folded=True) for section in self._report]
        self._require_stored()

    def _patch(self, job: Job) -> None:
        settings = self._settings()
        sides = self.answer.sides
        edit = registry.first_answer("EDITS", self.launch, settings, job.progress)
        if edit is None:
            raise InvalidValue("no addition edits scripts here", "Reinstall perfkit with additions/patch")
        diff = edit.diff()
        self._save.value = download(diff, "perfkit.diff")
        self._edit = [Code(diff or "No line of the script has to change.", "diff"), *edit.notes()]
        if sides and settings == sides[1].changes and not study.losses(*self.answer.runs).ok:
            self._save.value = ""
            self._edit.insert(0, Notice("There is no file to save: with these switches the losses differ."))


def _compared(result: Comparison) -> list[Content]:
    runs = [result.a, result.b]
    shown = [figures.headline(runs), result.describe(), *study.sides(result, [study.losses(*runs)])]
    return [*map(Notice, sentences.notices(runs)), *shown]
