"""One optimization in a notebook: a guess, its switches, before and after, and whether to keep it."""

import contextlib
import html
from dataclasses import replace
from functools import partial
from typing import Unpack

import ipywidgets as widgets

from perfkit.errors import InvalidValue, PerfkitError
from perfkit.ladder.catalogue import OPTIMIZATIONS, below, optimization
from perfkit.notebook.controls import Controls
from perfkit.notebook.ladder import PlanPanel, proof
from perfkit.notebook.pieces import row, text
from perfkit.recipe import Recipe, Value
from perfkit.results import Run, RunStore, StageDecision
from perfkit.rules import why_not
from perfkit.show import sentences, tables, units
from perfkit.show.document import Bullets, Code, Content, Markdown, Section
from perfkit.studies import decisions, planning, staging
from perfkit.studies.job import Job
from perfkit.studies.planning import Where
from perfkit.studies.sources import Plan

FIRST: dict[str, Value] = {"workers": 1, "wait_policy": "passive"}
"""For a reader who has kept no stage: the first change of the course."""


class StagePanel(PlanPanel):
    """One optimization on top of what was kept below it; it takes what a `LadderPanel` takes."""

    def __init__(self, stage: str, workload: str | None = None, **where: Unpack[Where]) -> None:
        self.optimization = optimization(stage)
        self.controls = Controls(self.optimization.settings, self._set_changes)
        question = "Your guess: how many times as fast? (0 = no guess)"
        self._guess = widgets.BoundedFloatText(
            description=question, max=1000.0, step=0.1, continuous_update=False, _dom_classes=["pk-guess"]
        )
        self._guess.observe(lambda _: self.show(), "value")
        self._decisions = text("pk-climb")
        tooltip = "The panels of later stages start from a loop with this stage, or without it"
        choices = [self.button("Keep", tooltip, self.keep), self.button("Drop", tooltip, self.drop)]
        own = {"above": [self.controls.widget, self._guess], "below": [row([*choices, self._decisions])]}
        if stage == "baseline":  # nothing is below it that it could be faster than
            own = {"above": [self.controls.widget]}
        plan_for = partial(_plan_of_stage, stage, self.store, workload)
        super().__init__(self.optimization.question, plan_for, where, **own)
        self._plan_changed()

    def set(self, **switches: Value) -> None:
        """Sets switches of this optimization, as the controls do; others are set before it as well."""
        self.require_rest()
        Recipe().replace(**switches)  # what is not allowed is refused before anything changes
        own = {name: switches.pop(name) for name in self.controls.by_name if name in switches}
        if switches:
            super().set(**switches)
        if own:
            self.controls.set(own)

    def _refresh(self) -> None:
        """Takes over what other panels have kept or dropped since."""
        plan = self._plan_for(device=self.device, settings=self._settings)
        if self._differs(plan):
            self._offer(plan)
            self._recall()
        self._show_climb()

    def _set_changes(self) -> None:
        """Shows what is known of the new switches; nothing is measured before Run."""
        plan = self.plan.trying(changes=self.controls.changes())
        if plan != self.plan:
            self.plan = plan
            self.status.say("press Run to measure")
            self._show_known()

    def _plan_changed(self) -> None:
        self._offer(self.plan)
        self._show_known()
        self._show_climb()

    def _offer(self, plan: Plan) -> None:
        """Takes a plan, and shows which switches can act, as far as the workload's class declares it."""
        source = plan.source()
        stage = staging.all_stages(source)[-1]
        self.controls.offer(stage.recipe, partial(why_not, target=source.target))
        self.plan = plan.trying(changes=self.controls.changes())
        elsewhere = f"n/a here: {stage.reason}. Choose another place in the menu Where"
        self.status.say(elsewhere if stage.reason else "ready")

    def _show_known(self) -> None:
        """Shows what was measured earlier, with the guess."""
        self._recall()
        if run := self._stage_run():
            self._guess.value = self.store.guess(run.id) or 0.0
        self.show()

    @property
    def guess(self) -> float | None:
        """How many times as fast the reader expects it to be; 0 in the field is not a guess."""
        return self._guess.value or None

    def keep(self) -> None:
        """Keeps this stage: the panels of later stages start from a loop that has it."""
        self._decide(kept=True)

    def drop(self) -> None:
        """Drops this stage: the panels of later stages start from a loop without it; otherwise as `keep`."""
        self._decide(kept=False)

    def _decide(self, kept: bool) -> None:
        self.results()
        run = self._own_run()
        if run is None:
            what = "a recording is shown" if self.plan.recorded else "this stage has no result"
            remedy = "Choose a place that measures in the menu Where, then press Run"
            raise InvalidValue(f"{what}: only your own result can be kept or dropped", remedy)
        decisions.decide(self.store, self.plan, run, run.previous(self.runs), kept)
        self._show_climb()

    def _show_climb(self) -> None:
        decided = decisions.decided(self.store, self.plan)
        climbed = " · ".join(_kept_in_words(decided[name]) for name in OPTIMIZATIONS if name in decided)
        below = staging.all_stages(self.plan.source())[0].recipe
        switched = below.describe(Recipe(batch_size=self.plan.subject.size.batch_size))
        words = f"The climb so far: {climbed}. This stage is measured on top of {switched}."
        self._decisions.value = html.escape(words) if climbed else ""

    def _stage_run(self) -> Run | None:
        return next((run for run in self.runs if run.stage == self.optimization.name), None)

    def _own_run(self) -> Run | None:
        """The run of this stage, if it is the reader's own: one of a recording is not."""
        run = self._stage_run()
        return run if run and run.status == "ok" and not self.plan.recorded else None

    def _check(self, job: Job) -> None:
        run = self._own_run()
        if run is None:
            return
        self.store.mark(run.id, guess=self.guess)  # before what comes next, which can be stopped
        if run.simulated:
            return
        job.progress.reach(0.99)
        with self._noted("Whether it trains the same could not be checked"):
            parity = proof(job.plan, run.title, Recipe.from_dict(run.recipe), job.progress)
            self._set_answer(replace(self.answer, proof=parity))
        if self.answer.proof:
            self.store.prove(run.id, self.answer.proof)

    def _answers(self) -> list[Content]:
        run = self._stage_run()
        if run is None:
            return [Bullets(sentences.verdicts(self.runs))]
        before = run.previous(self.runs)
        lines: list[str] = []
        is_proven = run.status == "ok" and before and all(check.ok for check in run.mechanism)
        if not is_proven and run.status in ("ok", "not_applicable"):  # the panel's error tells of the others
            lines.append(sentences.verdict(run, before))
        if run.status == "ok" and before:
            lines.append(f"Why: {'; '.join(sentences.reasons(run, before))}.")
            lines.append(f"{sentences.training(run, before, self.answer.proof)}.")
        if self.guess is not None and run.speedup("previous"):
            times = self.optimization.times
            article = f" The article's V100: {units.times(times)}." if times else ""
            lines.append(f"Your guess: {units.times(self.guess)}.{article}")
        return [Bullets(lines)]

    def _evidence(self) -> list[Content]:
        published = self.optimization.published
        article = [f"The article: {published}."] if published else []
        diff: list[Content] = []
        with contextlib.suppress(PerfkitError):  # a workload that cannot be exported can be measured
            title, lines = staging.stage_diff(self.answer.plan.source())
            diff.append(Section(title, [Code(lines, "diff")]))
        parity = tables.parity(self.answer.proof) if self.answer.proof else ()
        card = Section("The card", [Markdown(self.optimization.card()), *article], folded=True)
        return [tables.ladder(self.runs), *tables.evidence(self.runs), *parity, *diff, card]


def _plan_of_stage(stage: str, store: RunStore, workload: str | None, **where: Unpack[Where]) -> Plan:
    """A plan of a stage on top of what was kept below it."""
    plan = planning.plan(workload, stages=[stage], **where).trying(below=True)
    if not plan.recorded:
        climbed = decisions.settings(decisions.decided(store, plan), below(stage))
        plan = plan.trying(settings={**climbed, **plan.ladder.settings})
    staging.all_stages(plan.source())  # raises where the loop below the stage cannot run
    return plan


def _kept_in_words(decided: StageDecision) -> str:
    run = decided.run
    ratio = run.speedup("baseline")
    if not decided.decision.kept:
        return f"{run.title} dropped"
    return f"{run.title} {units.times(ratio.ratio)}" if ratio else run.title


def kept() -> dict[str, Value]:
    """The switches of the stages that you kept, for the device, workload and preset of the session."""
    decided = decisions.decided(RunStore(), planning.plan(device=PlanPanel.kernel_device))
    if not decided:
        return dict(FIRST)
    rows = {name: row for name, row in decided.items() if row.decision.kept}
    return decisions.settings(rows, OPTIMIZATIONS)
