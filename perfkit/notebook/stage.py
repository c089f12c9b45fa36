"""One optimization in a notebook: its switches, the diff of the script, a prediction, before and after."""

from __future__ import annotations

import html
import threading
from dataclasses import replace
from functools import partial
from typing import Any

import ipywidgets as widgets
from IPython.display import Markdown

from perfkit.errors import InvalidValue, PerfkitError
from perfkit.ladder.catalogue import optimization
from perfkit.ladder.stages import Stage
from perfkit.notebook import parts
from perfkit.notebook.controls import Controls
from perfkit.notebook.panel import LadderPanel
from perfkit.program.recipe import Recipe
from perfkit.results.parity import Check, Parity
from perfkit.results.run import Run
from perfkit.studies import engine
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

    below = True

    def __init__(self, stage: str, **more: Any) -> None:
        self.optimization = optimization(stage)
        self.prediction: float | None = None
        self._resolving = threading.Lock()
        self._stages: list[Stage] | None = None
        self._described: dict[str, Any] = {}
        self._reader: threading.Thread | None = None
        self._unread = ""
        self.parity: Parity | None = None
        super().__init__([stage], **more)

    def _top(self) -> list[widgets.Widget]:
        self._controls = Controls([*self.optimization.settings], on_change=lambda recipe: self._set())
        self._diff = parts.say("pk-diff", text="<p>reading the workload …</p>")
        titles = ("What changes in the script",)
        self._folded = widgets.Accordion([self._diff], titles=titles, selected_index=None)
        self._folded.observe(lambda _: self._show_diff(), "selected_index")
        # A number field, as ipywidgets' slider has no accessible name (axe: aria-input-field-name).
        self._guess = widgets.BoundedFloatText(
            value=1.0, min=0.05, max=100, step=0.05, description="Your guess: times as fast",
            style={"description_width": "170px"}, layout={"width": "270px"},
        )  # fmt: skip
        self._part = widgets.Dropdown(
            options=SHRINKS, description="What shrinks?", layout={"width": "290px"},
            style={"description_width": "110px"},
        )  # fmt: skip
        self._guess.add_class("pk-predict")
        self._guess.observe(lambda change: setattr(self, "prediction", change["new"]), "value")
        title = f"<h3>{html.escape(self.optimization.question)}</h3>"
        self._reset = parts.button("Reset", "pk-reset", "The ladder's own values", self._put_back)
        guess = parts.row([self._guess, self._part])
        return [parts.say("pk-question", text=title), self._controls.widget, self._folded, guess]

    def _buttons(self) -> list[widgets.Widget]:
        return [self._run, self._cancel, self._reset, self._large]

    def _shown(self) -> None:
        """Reads the workload in a child, in a thread: the panel stands at once, its values follow."""
        if self._reader is None:
            self._reader = threading.Thread(target=self._resolve, name="perfkit-read", daemon=True)
            self._reader.start()

    def _resolve(self) -> list[Stage]:
        """The two stages, before and with; empty if the workload cannot be read (the panel says why)."""
        with self._resolving:
            if self._stages is None:
                try:
                    self._described, self._stages = engine.resolve(self.plan)
                except PerfkitError as problem:
                    self._stages, self._unread = [], str(problem)
                    self._status.end("not ready", self._unread)
                    return []
                self._controls.set_target(engine.target(self.plan, self._described))
                self._controls.show(self._stages[-1].recipe)
                if self._stages[-1].reason:
                    self._status.said(f"n/a here: {self._stages[-1].reason}")
                self._set()
        return self._stages

    def _set(self) -> None:
        """After a change of a control: the plan and the diff follow; measuring waits for Run."""
        if not self._stages:
            return
        self.plan = replace(self.plan, changes=dict(self._controls.changes(self._stages[-1].recipe)))
        self._show_diff()
        if self.runs and self.plan.changes:
            self._status.said("the settings have changed: press Run")

    def _show_diff(self) -> None:
        """Where the diff is unfolded: before that none is made, as it is work for the processor.

        Nor may a thread make one beside a cell of the reader's: of two threads that parse at once one ends in
        a SystemError before Python 3.11.8 and 3.12.2 (CPython gh-106905), and the kernel parses every cell.
        """
        if self._stages and self._folded.selected_index is not None:
            self._diff.value = parts.code_diff(self._diff_text(self._stages[0].recipe, self._controls.recipe))

    def _prove(self) -> None:
        self.parity, run = None, self.runs[-1]
        if run.status == "ok":
            told = partial(self._status.progress, fraction=0.99)
            recipe = Recipe.from_dict(run.recipe)
            self.parity = proving.parity(
                self.plan, run.title, recipe, on_progress=lambda phase, _: told(phase),
                cancelled=self._job.cancelled,
            )  # fmt: skip

    def _put_back(self) -> None:
        stages = self._stages or [Stage("", "", Recipe())]
        self._controls.show(stages[-1].recipe)
        self._set()

    def _diff_text(self, before: Recipe, after: Recipe) -> str:
        name = self.optimization.name
        if self._stages and self._stages[-1].reason:
            return f"n/a here: {self._stages[-1].reason}"
        return engine.recipe_diff(self.plan, self._described, before, after, name)

    def _said(self) -> str:
        score = self._score() if self.prediction is not None and len(self.runs) > 1 else ""
        proof = self.parity.describe() if self.parity else ""
        return (
            f"{super()._said()}<p class='pk-parity'>{html.escape(proof)}</p>"
            f"<p class='pk-score'>{html.escape(score)}</p>"
        )

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
        """What the stage changes in the training script: a diff of the two real scripts."""
        stages = self._resolve()
        if not stages or stages[-1].reason:
            why = stages[-1].reason if stages else self._unread
            return Markdown(f"No diff: {html.escape(why)}")
        return Markdown(f"```diff\n{self._diff_text(stages[0].recipe, stages[-1].recipe)}```")

    def predict(self, times: float) -> None:
        """Your guess, before you run: how many times as fast will it be? Below 1 is slower.

        Raises:
            InvalidValue: not a number above 0.
        """
        if not times > 0:
            raise InvalidValue(f"you predicted {times} times as fast", "Give a number above 0")
        self._guess.value = times
        self.prediction = times

    def score(self) -> Markdown:
        """Your prediction beside what was measured."""
        self._measured()
        return Markdown(html.escape(self._score()))

    def _checks(self) -> list[Check]:
        return self.parity.checks if self.parity else []

    def _score(self) -> str:
        ratio = self.runs[-1].speedup("previous")
        if ratio is None:
            return f"Not measured here: {self.runs[-1].reason}"
        measured = f"measured: {ratio.ratio:.2f}× ({ratio.low:.2f}–{ratio.high:.2f}), {ratio.verdict}"
        if self.prediction is None:
            return f"No prediction was made; {measured}."
        inside = ratio.low <= self.prediction <= ratio.high
        off = max(self.prediction / ratio.ratio, ratio.ratio / self.prediction)
        judged = "inside the interval" if inside else f"off by a factor of {off:.2f}"
        return f"You predicted {self.prediction:.2f}×; {measured}. Your guess was {judged}.{self._shrank()}"

    def _shrank(self) -> str:
        """Which part of a step's time per sample really shrank, beside the guess."""
        before, after = (_parts(run) for run in (self.runs[0], self.runs[-1]))
        if not before or not after:
            return ""
        less = [name for name in before if after[name] < 0.95 * before[name]]
        found = "both" if len(less) > 1 else less[0] if less else "neither"
        right = "as you said" if found == self._part.value else f"you said: {self._part.value}"
        return f" What shrank: {found} ({right})."


def _parts(run: Run) -> dict[str, float]:
    """Seconds a sample waits and computes."""
    rate, share = run.samples_per_s, run.data_wait_share
    if rate is None or share is None:
        return {}
    return {"waiting for data": share / rate.median, "computing": (1 - share) / rate.median}
