"""One optimization in a notebook: its switches, the diff of the script, a prediction, before and after."""

from __future__ import annotations

import html
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
from perfkit.program.recipe import Recipe
from perfkit.results.run import Run
from perfkit.show import results, simulated, units
from perfkit.show.document import Code, Section
from perfkit.show.html import fragment
from perfkit.studies import ladder as ladders
from perfkit.studies import parity as proving

SHRINKS = ("waiting for data", "computing", "both", "neither")


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
        self.prediction: float | None = None
        self._controls = Controls(self.optimization.settings, on_change=lambda recipe: self._apply_controls())
        self._diff = layout.html_slot("pk-diff", text="<p>reading the workload …</p>")
        prose = self.optimization.prose.removeprefix("## How it works")
        card = layout.html_slot("pk-card", text=layout.markdown(prose))
        titles = ("What changes in the script", "How it works")
        self._folded = widgets.Accordion([self._diff, card], titles=titles, selected_index=None)
        self._folded.observe(lambda _: self._show_diff(), "selected_index")
        # A number field, as ipywidgets' slider has no accessible name (axe: aria-input-field-name).
        number, range_ = widgets.BoundedFloatText, {"min": 0.05, "max": 100, "step": 0.05}
        self._guess = layout.field(number, "Your guess: times as fast", 270, 170, value=1.0, **range_)
        self._part = layout.field(widgets.Dropdown, "What shrinks?", 290, 110, options=SHRINKS)
        self._guess.add_class("pk-predict")
        self._guess.observe(lambda change: setattr(self, "prediction", change["new"]), "value")
        title = layout.html_slot("pk-question", text=f"<h3>{html.escape(self.optimization.question)}</h3>")
        self._held: list[Run] = []
        help_text = "Keeps your guess, and shows results of an earlier session if there are any"
        ready = layout.button("Predict", "pk-guess", help_text, lambda: self.predict(self._guess.value))
        guesses = layout.row([self._guess, self._part, ready])
        self._above = [title, self._controls.widget, self._folded, guesses]
        self._reset = layout.button("Reset", "pk-reset", "The ladder's own values", self._put_back)
        self._buttons = [self._reset]
        super().__init__([stage], **more)

    # ------------------------------------------------------------ controls and diff

    def _read(self) -> None:
        if self._resolve():
            super()._read()

    def _recall(self, stored: list[Run]) -> None:
        """Results of an earlier session would answer the question: they wait for the prediction."""
        if self.prediction is None:
            self._held = stored
            self._status.show(f"results of {date(stored)} are stored: predict to see them, or press Run")
        else:
            super()._recall(stored)

    def _show_stages(self, stages: Sequence[Stage]) -> None:
        self._controls.set_rule(ladders.switch_rule(self.plan, self._described))
        self._controls.show(stages[-1].recipe)
        if stages[-1].reason:
            self._status.show(
                f"n/a {'in this recording' if self.plan.recorded else 'here'}: {stages[-1].reason}"
            )
        self._apply_controls()

    def _apply_controls(self) -> None:
        """After a change of a control: the plan and the diff follow; measuring waits for Run."""
        if not self._stages:
            return
        changes = dict(self._controls.changes(self._stages[-1].recipe))
        self.plan = replace(self.plan, changes=changes)
        self._show_diff()
        if self.runs and changes:
            self._status.show("the settings have changed: press Run")

    def _put_back(self) -> None:
        self._controls.show(self._stages[-1].recipe if self._stages else Recipe())
        self._apply_controls()

    def _show_diff(self) -> None:
        """Fills in the diff while it is unfolded; before that it would be work for nobody.

        Nor may a thread make one beside a cell of the reader's: of two threads that parse at once one ends in
        a SystemError before Python 3.11.8 and 3.12.2 (CPython gh-106905), and the kernel parses every cell.
        """
        if self._stages and self._folded.selected_index == 0:
            diffs = ladders.stage_diffs(self.plan, self._described)
            self._diff.value = fragment([Section(title, [Code(text, "diff")]) for title, text in diffs])

    # ------------------------------------------------------------ proof and score

    def _prove(self) -> None:
        run = results.stages(self.runs)[-1]
        if run.status == "ok" and not (self.plan.recorded or run.simulated):
            self._parity = proving.parity(
                self.plan, run.title, Recipe.from_dict(run.recipe), cancelled=self._job.cancelled,
                on_progress=lambda progress: self._status.progress(progress.phase, 0.99),
            )  # fmt: skip

    def _remarks(self, runs: Sequence[Run]) -> str:
        proof = self._parity.describe() if self._parity else simulated.no_parity(runs)
        score = self._score() if self.prediction is not None and len(runs) > 1 else ""
        return f"<p class='pk-parity'>{html.escape(proof)}</p><p class='pk-score'>{html.escape(score)}</p>"

    def _score(self) -> str:
        run = results.stages(self.runs)[-1]
        ratio = run.speedup("previous")
        if ratio is None:
            return f"Not measured here: {run.reason}"
        how = "simulated" if run.simulated else "measured"
        measured = f"{how}: {units.ratio(ratio)}, {ratio.verdict}"
        if self.prediction is None:
            return f"No prediction was made; {measured}."
        if ratio.verdict == "disturbed":
            return f"You predicted {self.prediction:.2f}×; {measured}: close other programs and run it again."
        factor = max(self.prediction / ratio.ratio, ratio.ratio / self.prediction)
        inside = ratio.low <= self.prediction <= ratio.high
        judgement = "inside the interval" if inside else f"off by a factor of {factor:.2f}"
        guess = f"You predicted {self.prediction:.2f}×; {measured}. Your guess was {judgement}."
        return guess + self._shrank()

    def _shrank(self) -> str:
        """Which part of a step's time per sample shrank, beside the guess."""
        seconds = []
        for run in (self.runs[0], results.stages(self.runs)[-1]):
            if run.samples_per_s is None or run.data_wait_share is None:
                return ""
            rate, share = run.samples_per_s.value, run.data_wait_share
            seconds.append((share / rate, (1 - share) / rate))
        less = [part for part, was, now in zip(SHRINKS, *seconds, strict=False) if now < 0.95 * was]
        answer = "both" if len(less) > 1 else less[0] if less else "neither"
        guess = "as you guessed" if answer == self._part.value else f"your guess: {self._part.value}"
        return f" What shrank: {answer} ({guess})."

    # ------------------------------------------------------------ ordinary outputs

    def question(self) -> Markdown:
        """What this stage asks, and what the articles measured."""
        published = self.optimization.published
        theirs = f"\n\n*The article: {published}.*" if published else ""
        return Markdown(f"**{self.optimization.question}**{theirs}")

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

    def predict(self, times: float) -> None:
        """Your guess, before you run: how many times as fast will it be? Below 1 is slower.

        Raises:
            InvalidValue: not a number above 0.
        """
        if not times > 0:
            raise InvalidValue(f"you predicted {times} times as fast", "Give a number above 0")
        self._guess.value = times
        self.prediction = times
        held, self._held = self._held, []
        if held and not (self.runs or self._job.busy):
            self._recall(held)

    def score(self) -> Markdown:
        """Your prediction beside what was measured."""
        self._results_or_error()
        return Markdown(html.escape(self._score()))
