"""One optimization in a notebook: a guess, its switches, before and after, and whether to keep it."""

import html
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ipywidgets as widgets
from IPython.display import Markdown

from perfkit.errors import InvalidValue, PerfkitError
from perfkit.ladder import catalogue
from perfkit.ladder.catalogue import LADDER, OPTIMIZATIONS, optimization
from perfkit.notebook import widgets as pieces
from perfkit.notebook.ladder import LadderPanel
from perfkit.recipe import Recipe, Value
from perfkit.results.parity import Parity
from perfkit.results.store import Entry, RunStore
from perfkit.show import document, sentences, tables, units
from perfkit.show.document import Bullets, Code, Content, Section
from perfkit.studies import inspect, rungs, sources
from perfkit.studies.progress import Progress
from perfkit.studies.sources import Plan

FIRST: dict[str, Value] = {"workers": 1, "wait_policy": "passive"}
"""For a reader who has measured no rung: the first change of the course."""
_DECISIONS = ("kept", "dropped")
"""Notes of stored runs: what a person decided on the rung."""


class StagePanel(LadderPanel):
    """One optimization, on top of what was kept of the default ladder below it: before, and after.

    Args:
        stage: the optimization.
        more: as for `LadderPanel`.

    Raises:
        InvalidValue: a name or value that is not allowed.
    """

    def __init__(self, stage: str, **more: Any) -> None:
        self.optimization = optimization(stage)
        self.question = self.optimization.question
        self.guess: float | None = None
        """How many times as fast the reader expects it to be."""
        self.parity: Parity | None = None
        self.controls = pieces.Controls(self.optimization.settings, self._set_changes)
        # Text, as number fields are never empty: a guess that stands there already would be taken.
        self._guess = widgets.Text(
            description="Guess: times as fast",
            placeholder="such as 1.5",
            continuous_update=False,
            _dom_classes=["pk-guess"],
        )
        self._guess.observe(lambda change: self.attempt(lambda: self._take_guess(change["new"])), "value")
        self._line = pieces.text("pk-climb")
        loop = "The panels of later rungs start from a loop"
        self._choices = {
            "kept": self.act("Keep", "pk-keep", f"{loop} that has it", self.keep),
            "dropped": self.act("Drop", "pk-drop", f"{loop} without it", self.drop),
        }
        if stage != "baseline":  # nothing is below it that it could be faster than
            self.acts = pieces.row([*self._choices.values(), self._line], "pk-panel", "pk-acts")
        guess = [self._guess] if self.acts else []
        super().__init__([stage], above=[self.controls.widget], before=guess, **more)
        self._offer()

    # ------------------------------------------------------------ switches

    def set(self, **switches: Value) -> None:
        """Sets switches of this optimization, as the controls do; others are set before it as well.

        Raises:
            InvalidValue: an unknown switch, a value that is not allowed, or work is under way.
        """
        self.require_rest()
        changes = {name: value for name, value in switches.items() if name in self.controls.by_name}
        if others := {name: value for name, value in switches.items() if name not in changes}:
            super().set(**others)
        if changes:
            self.controls.set(changes)

    def _planned(self, device: str | None, host: str | None) -> Plan:
        plan = replace(super()._planned(device, host), below=True)
        if not plan.recorded:
            climbed = _climbed(plan, self.optimization.name)
            plan = replace(plan, settings={**climbed, **plan.settings})
        rungs.planned(plan, rungs.expected(plan))  # raises where the loop below the rung cannot run
        return plan

    def _moved(self) -> None:
        self._offer()
        super()._moved()

    def _set_changes(self) -> None:
        """Measuring waits for Run; results of other switches are no longer shown."""
        self.plan = replace(self.plan, changes=self.controls.changes())
        self.bar.say("press Run to measure")
        if self.runs:
            self._forget()
            self.show()

    def _offer(self) -> None:
        """Shows the switches as they can act there, as far as the workload's class declares it."""
        description = rungs.expected(self.plan)
        stage = rungs.planned(replace(self.plan, changes={}), description)[-1]
        self.controls.set_rule(sources.described(self.plan, description).why_not_set)
        self.controls.set_base(stage.recipe)
        self.plan = replace(self.plan, changes=self.controls.changes())
        elsewhere = f"n/a here: {stage.reason}. Choose another place at the top right"
        self.bar.say(elsewhere if stage.reason else "ready")

    def _forget(self) -> None:
        super()._forget()
        self.parity = None

    # ------------------------------------------------------------ guess

    def _take_guess(self, words: str) -> None:
        """Takes what was typed; an empty field is no guess."""
        try:
            guess = float(words.replace(",", ".").strip("×x ")) if words else None
        except ValueError:
            guess = math.nan
        if guess is not None and not 0 < guess < math.inf:
            raise InvalidValue(f"'{words}' is no guess", "Give a number above 0, such as 1.5")
        if guess != self.guess:
            self.guess = guess
            self.show()

    def _recall(self) -> None:
        super()._recall()
        if self.runs and (guess := RunStore().guess(sentences.stages(self.runs)[-1].id)):
            self.guess, self._guess.value = guess, f"{guess:g}"

    # ------------------------------------------------------------ keep or drop

    def keep(self) -> None:
        """Keeps this rung: the panels of later rungs start from a loop that has it.

        Raises:
            InvalidValue: there is no stored result of it.
        """
        self._decide("kept")

    def drop(self) -> None:
        """Drops this rung: the panels of later rungs start from a loop without it; otherwise as `keep`."""
        self._decide("dropped")

    def _decide(self, decision: str) -> None:
        run = sentences.stages(self.results())[-1]
        if self.plan.recorded or run.status != "ok":
            raise InvalidValue("there is no result of this machine to decide on", "Run it")
        RunStore().mark(run.id, note=decision)
        self._show_climb()

    def _show_climb(self) -> None:
        """The line of the climb so far, and what comes next."""
        decisions, own = _decisions(self.plan), self.optimization.name
        run = sentences.stages(self.runs)[-1]
        here = own in decisions and decisions[own].id == run.id and decisions[own].note
        for decision, button in self._choices.items():
            button.disabled = bool(self.plan.recorded) or run.status != "ok"
            button.icon = "check" if here == decision else ""
        climbed = [_told(decisions[name]) for name in LADDER if name in decisions]
        lines = [f"The climb so far: {' · '.join(climbed)}."] if climbed else []
        if self.plan.recorded:
            lines.append("A recording has decided already.")
        if own in LADDER[:-1]:
            lines.append(f"Next: pk.StagePanel('{LADDER[LADDER.index(own) + 1]}')")
        self._line.value = html.escape(" ".join(lines))

    # ------------------------------------------------------------ results

    def _measure(self) -> None:
        super()._measure()
        run = sentences.stages(self.runs)[-1]
        if self.plan.recorded or run.status != "ok":
            return
        if self.guess is not None:
            RunStore().mark(run.id, guess=self.guess)
        if not run.simulated:
            progress = Progress(lambda now: self.bar.progress(now.phase, 0.99), self.cancelled)
            recipe = Recipe.from_dict(run.recipe)
            self.parity = inspect.parity(self.plan, run.title, recipe, progress=progress)

    def sections(self) -> Sequence[Content]:
        """The result in one picture and a few sentences; details are folded."""
        if self.acts and self.runs:
            self._show_climb()
        return super().sections()

    def _answers(self) -> list[Content]:
        """Why, whether the training is still right, and how good the guess was."""
        *_, run = sentences.stages(self.runs)
        before, ratio, lines = run.previous(self.runs), run.speedup("previous"), []
        if run.status == "not_applicable" or not all(check.ok for check in run.mechanism) or not before:
            lines.append(sentences.verdict_sentence(run, before))
        if run.status == "ok" and before:
            lines.append(f"Why: {'; '.join(sentences.reasons(run, before))}.")
            lines.append(f"Training: {sentences.training(run, before, self.parity)}.")
        if self.guess is not None and ratio:
            told = f"Your guess: {units.times(self.guess)}, {sentences.judgement(self.guess, ratio)}."
            published = self.optimization.published
            if published and published.times:
                told += f" The article's V100: {units.times(published.times)}."
            lines.append(told)
        return [Bullets(lines)]

    def _evidence(self) -> list[Content]:
        card = document.Markdown(self.optimization.card())
        article = f"The article: {self.optimization.published or 'nothing of this by itself'}."
        return [
            tables.ladder(self.runs),
            tables.proof(self.runs, self.parity),
            *(Section(title, [Code(text, "diff")]) for title, text in self._diffs()),
            Section("The card", [card, article], folded=True),
        ]

    def _diffs(self) -> list[tuple[str, str]]:
        """What was changed in the script; where nothing was measured, what would be, here and on a GPU."""
        *_, run = sentences.stages(self.runs)
        try:
            if run.status != "ok" or not (before := run.previous(self.runs)):
                return rungs.stage_diffs(self.plan, rungs.expected(self.plan))
            return [("What it changes", rungs.difference(before, run))]
        except PerfkitError:
            return []  # a workload that cannot be exported can be measured

    def diff(self) -> Markdown:
        """What the stage changes in the training script: a diff of two real scripts, here and on a GPU.

        Raises:
            PerfkitError: the workload cannot be loaded.
        """
        blocks = [
            f"**{html.escape(title)}**" + f"\n\n```diff\n{text}```" * bool(text)
            for title, text in rungs.stage_diffs(self.plan)
        ]
        return Markdown("\n\n".join(blocks))


def _results(plan: Plan) -> list[Entry]:
    """The stored runs of the same workload, preset and device, oldest first."""
    rows = RunStore().history(workload=plan.workload)
    return [row for row in reversed(rows) if (row.preset, row.device) == (plan.preset.name, plan.device)]


def _decisions(plan: Plan) -> dict[str, Entry]:
    """The newest decision on each rung, on the same workload, preset and device."""
    return {row.stage: row for row in _results(plan) if row.note in _DECISIONS}


def _climbed(plan: Plan, rung: str) -> dict[str, Value]:
    """The switches of the rungs below another one: as they were kept, or were before a dropped one."""
    decisions, settings = _decisions(plan), dict[str, Value]()
    for name in catalogue.below(rung):
        if row := decisions.get(name):
            recipe = row.recipe if row.note == "kept" else RunStore().get(row.previous).recipe
            settings |= {switch: recipe[switch] for switch in OPTIMIZATIONS[name].settings}
    return settings


def _told(row: Entry) -> str:
    """A decision in a word, with what the rung gained."""
    gain = f" {units.times(row.against_baseline.ratio)}" if row.against_baseline else ""
    return f"{row.title}{gain if row.note == 'kept' else ' dropped'}"


def kept() -> dict[str, Value]:
    """The switches of the rungs that you kept in their panels, or that were faster if you decided nothing.

    Of each rung the newest result counts, on the session's device, workload and preset.
    """
    rows = _results(LadderPanel().plan)
    rungs_of = Counter(row.session for row in rows if row.stage in LADDER[1:])
    newest = {row.stage: row for row in rows if rungs_of[row.session] == 1}  # no whole ladder
    settings: dict[str, Value] = {}
    for name in LADDER[1:]:
        if name in newest and _is_kept(newest[name]):
            settings |= {switch: newest[name].recipe[switch] for switch in OPTIMIZATIONS[name].settings}
    return settings or FIRST


def _is_kept(row: Entry) -> bool:
    if row.note in _DECISIONS:
        return row.note == "kept"
    ratio = row.against_baseline
    return ratio is not None and (ratio.is_faster or (ratio.verdict == "too few rounds" and ratio.low > 1))
