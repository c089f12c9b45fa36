"""One optimization in a notebook: its switches, the diff of the script, a prediction, before and after."""

from __future__ import annotations

import datetime
import html
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ipywidgets as widgets
from IPython.display import Markdown

from perfkit.errors import InvalidValue
from perfkit.ladder.catalogue import optimization
from perfkit.ladder.stages import Stage
from perfkit.notebook import layout
from perfkit.notebook.controls import Controls
from perfkit.notebook.ladder import LadderPanel, date
from perfkit.notebook.layout import Action
from perfkit.notebook.panel import NEEDS_GPU
from perfkit.recipe import Recipe
from perfkit.results.run import Run
from perfkit.results.store import RunStore
from perfkit.show import results, sentences, simulated, tables, units
from perfkit.show.document import Code, Content, Section
from perfkit.show.html import fragment
from perfkit.studies import ladder as ladders
from perfkit.studies import parity as proving


class StagePanel(LadderPanel):
    """One optimization, on top of the default ladder below it: before, and after.

    Args:
        stage: the optimization.
        more: as for `LadderPanel`.

    Raises:
        InvalidValue: a name or value that is not allowed.
    """

    from_below = True

    def __init__(self, stage: str, **more: Any) -> None:
        self.optimization = optimization(stage)
        self._made = ""
        """When the prediction was made; empty if the result was known by then."""
        self._controls = Controls(
            self.optimization.settings, on_change=lambda _: self._apply_controls(), base="The rung below",
            presets={"The ladder's rung": self._rung},
        )  # fmt: skip
        self._diff = layout.html_slot("pk-diff", text="<p>reading the workload …</p>")
        prose = self.optimization.prose.removeprefix("## How it works")
        card = layout.html_slot("pk-card", text=layout.markdown(prose))
        titles = ("What changes in the script", "How it works")
        self._folded = widgets.Accordion([self._diff, card], titles=titles, selected_index=None)
        self._folded.observe(lambda _: self._show_diff(), "selected_index")
        # Text, as number fields are never empty: a guess that stands there already would be taken.
        self._guess = layout.field(
            widgets.Text, "Your guess: times as fast", "pk-predict", placeholder="such as 1.5"
        )
        self._told = layout.html_slot("pk-told")
        title = layout.html_slot("pk-question", text=f"<h3>{html.escape(self.optimization.question)}</h3>")
        self._held: list[Run] = []
        help_text = "Keeps your guess, and shows results of an earlier session if there are any"
        ready = layout.button("Predict", "pk-guess", help_text, self._take_guess)
        form = [layout.row([self._guess, ready]), self._told]
        alone = stage == "baseline"  # there is nothing that it could be faster than
        self._above = [title, self._controls.widget, self._folded, *([] if alone else form)]
        super().__init__([stage], **more)

    # ------------------------------------------------------------ controls and diff

    def _read(self) -> None:
        if self._resolve():
            super()._read()

    def _recall(self, stored: list[Run]) -> None:
        """Results of an earlier session would answer the question: they wait for the prediction."""
        if guess := RunStore().guess(results.stages(stored)[-1].id):
            self._fill_in(guess)
        if self.prediction is None:
            self._held = stored
            self._status.show_read(f"results of {date(stored)} are stored: predict to see them, or press Run")
        else:
            super()._recall(stored)

    def _show_stages(self, stages: Sequence[Stage]) -> None:
        self._controls.set_rule(ladders.switch_rule(self.plan, self._described))
        self._controls.set_base(stages[0].recipe)
        self._controls.show(stages[-1].recipe)
        if reason := stages[-1].reason.partition(";")[0]:
            where = "in this recording" if self.plan.recorded else "here"
            self._status.show_read(f"n/a {where}: {reason}", self._remedy(reason))
        self._apply_controls()

    def _apply_controls(self) -> None:
        """After a change of a control: the plan and the diff follow; measuring waits for Run."""
        if not self._stages:
            return
        changes = dict(self._controls.changes(self._stages[-1].recipe))
        self.plan = replace(self.plan, changes=changes)
        self._show_diff()
        if self.runs and changes:
            self._status.show("the settings have changed: predict again, and press Run")
            self._empty()

    def _remedy(self, reason: str) -> Action | None:
        """Where no GPU can be simulated either, what would change for one."""
        show_diff = Action("Show the CUDA diff", lambda: setattr(self._folded, "selected_index", 0))
        return super()._remedy(reason) or (show_diff if NEEDS_GPU.search(reason) else None)

    def _rung(self) -> Recipe | str:
        return self._stages[-1].recipe if self._stages else "The workload is being read"

    def _show_diff(self) -> None:
        """Fills in the diff while it is unfolded; before that it would be work for nobody.

        Nor may a thread make one beside a cell of the reader's: of two threads that parse at once one ends in
        a SystemError before Python 3.11.8 and 3.12.2 (CPython gh-106905), and the kernel parses every cell.
        """
        if self._stages and self._folded.selected_index == 0:
            diffs = ladders.stage_diffs(self.plan, self._described)
            self._diff.value = fragment([Section(title, [Code(text, "diff")]) for title, text in diffs])

    # ------------------------------------------------------------ proof and score

    def _measure(self) -> list[Run]:
        runs = super()._measure()
        self._keep_guess(runs)
        return runs

    def _keep_guess(self, runs: Sequence[Run]) -> None:
        """Keeps a prediction that was made before its result was known, beside the run."""
        run = results.stages(runs)[-1]
        ratio = run.speedup("previous")
        if self._made and self.prediction and ratio:
            RunStore().mark(run.id, guess=self.prediction)

    def _prove(self) -> None:
        run = results.stages(self.runs)[-1]
        if run.status == "ok" and not (self.plan.recorded or run.simulated):
            self._parity = proving.parity(
                self.plan, run.title, Recipe.from_dict(run.recipe), cancelled=self._job.cancelled,
                on_progress=lambda progress: self._status.progress(progress.phase, 0.99),
            )  # fmt: skip

    def _remarks(self, runs: Sequence[Run]) -> list[Content]:
        proof = self._parity.describe() if self._parity else simulated.no_parity(runs)
        score = self._score() if len(runs) > 1 else ""
        return [*filter(None, (score, self._article(), proof)), *tables.proof(runs, self._parity)]

    def _score(self) -> str:
        run = results.stages(self.runs)[-1]
        ratio = run.speedup("previous")
        if ratio is None:
            return f"Not measured here: {run.reason}"
        how = "simulated" if run.simulated else "measured"
        measured = f"{how}: {units.ratio(ratio)}, {ratio.verdict}"
        if self.prediction is None:
            return f"No prediction was made; {measured}."
        judgement = sentences.judgement(self.prediction, ratio)
        guess = f"You predicted {self.prediction:.2f}×; {measured}. Your guess: {judgement}."
        return guess + self._shrank()

    def _shrank(self) -> str:
        """Which part of a step's time per sample shrank."""
        seconds = []
        for run in (self.runs[0], results.stages(self.runs)[-1]):
            if run.samples_per_s is None or run.data_wait_share is None:
                return ""
            rate, share = run.samples_per_s.value, run.data_wait_share
            seconds.append((share / rate, (1 - share) / rate))
        parts = ("waiting for data", "computing")
        less = [part for part, was, now in zip(parts, *seconds, strict=True) if now < 0.95 * was]
        return f" What shrank: {' and '.join(less) or 'neither waiting for data nor computing'}."

    # ------------------------------------------------------------ ordinary outputs

    def _article(self) -> str:
        """What the article measured: shown after the prediction only."""
        published = self.optimization.published
        return f"The article: {published}." if published else ""

    def card(self) -> Markdown:
        """The stage's card: how it works, when it applies, when it does not help."""
        return Markdown(self.optimization.card())

    def diff(self) -> Markdown:
        """What the stage changes in the training script: a diff of two real scripts, here and on a GPU."""
        if not self._resolve():
            return Markdown(f"No diff: {html.escape(self._unreadable)}")
        diffs = ladders.stage_diffs(self.plan, self._described)
        blocks = (f"\n\n```diff\n{text}```" if text else "" for _, text in diffs)
        titles = (f"**{html.escape(title)}**" for title, _ in diffs)
        return Markdown("\n\n".join(map("".join, zip(titles, blocks, strict=True))))

    def _empty(self) -> None:
        """Other switches are another question."""
        self.prediction = None
        self._made = self._guess.value = self._told.value = ""

    def _take_guess(self) -> None:
        """What stands in the fields, when the button is pressed."""
        try:
            times = float(self._guess.value.replace(",", ".").strip("×x "))
        except ValueError:
            times = 0.0
        try:
            self.predict(times)
        except InvalidValue as problem:
            self._told.value = layout.message(str(problem))

    def predict(self, times: float) -> None:
        """Your guess, before you run: how many times as fast will it be? Below 1 is slower.

        Args:
            times: the rate with this stage over the rate without it.

        Raises:
            InvalidValue: not a number above 0.
        """
        if not 0 < times < math.inf:
            raise InvalidValue("this is no prediction", "Give a number above 0, such as 1.5")
        held, self._held = self._held, []
        known = held or self.runs or self._job.busy
        self._made = "" if known else datetime.datetime.now(datetime.UTC).isoformat()
        self._fill_in(times)
        if held and not (self.runs or self._job.busy):
            self._recall(held)

    def _fill_in(self, times: float) -> None:
        self._guess.value, self.prediction = f"{times:g}", times
        self._told.value = layout.markdown(self._article())
