"""One optimization in a notebook: a guess, its switches, before and after."""

import contextlib
import html
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ipywidgets as widgets
from IPython.display import Markdown

from perfkit.errors import InvalidValue, PerfkitError
from perfkit.ladder.catalogue import LADDER, optimization
from perfkit.ladder.stages import Stage
from perfkit.notebook import widgets as pieces
from perfkit.notebook.controls import Controls
from perfkit.notebook.ladder import LadderPanel, date
from perfkit.recipe import Recipe, Value
from perfkit.results.parity import Parity
from perfkit.results.store import RunStore
from perfkit.show import results, sentences, simulated, tables, units
from perfkit.show.document import Bullets, Code, Content, Section
from perfkit.studies import inspect, rungs
from perfkit.studies.progress import Progress


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
        self.guess: float | None = None
        """How many times as fast the reader expects it to be."""
        self.parity: Parity | None = None
        self._diffed: tuple[Any, list[tuple[str, str]]] = (None, [])
        self.controls = Controls(self.optimization.settings, on_change=lambda recipe: self._changed())
        # Text, as number fields are never empty: a guess that stands there already would be taken.
        self._guess = pieces.field(
            widgets.Text,
            "Guess: times as fast",
            "pk-guess",
            placeholder="such as 1.5",
            continuous_update=False,
        )
        self._guess.observe(lambda change: self._take_guess(change["new"]), "value")
        super().__init__([stage], **more)

    def _question(self) -> str:
        return self.optimization.question

    def _above(self) -> Sequence[Any]:
        prose = pieces.markdown(self.optimization.prose.removeprefix("## How it works"))
        card = f"<details><summary>How it works</summary>{prose}</details>"
        return [
            self.controls.widget,
            pieces.text("pk-card", value=card),
        ]

    def _beside_run(self) -> Sequence[Any]:
        alone = self.optimization.name == "baseline"  # nothing is below it that it could be faster than
        return () if alone else [self._guess]

    # ------------------------------------------------------------ switches

    def set(self, **switches: Value) -> None:
        """Sets switches of this optimization, as the controls do; others are set before it as well.

        Raises:
            InvalidValue: an unknown switch, a value that is not allowed, or work is under way.
        """
        self.require_rest()
        own = {name: value for name, value in switches.items() if name in self.controls.by_name}
        if len(own) < len(switches):
            super().set(**{name: value for name, value in switches.items() if name not in own})
        if own:
            with contextlib.suppress(PerfkitError):  # the panel says it where it is used
                self._resolve()
            with self._lock:
                self.controls.set(own)

    def _show_stages(self, stages: Sequence[Stage]) -> None:
        self.controls.set_rule(rungs.switch_rule(self.plan, self._described))
        changes = dict(self.plan.changes)
        self.controls.base = stages[-1].recipe
        self.controls.show(stages[-1].recipe.replace(**changes))
        if reason := stages[-1].reason:
            self.bar.say_read(f"n/a here: {reason}")

    def _changed(self) -> None:
        """Measuring waits for Run; results of other switches are no longer shown."""
        self.plan = replace(self.plan, changes=self.controls.changes())
        if self.runs or self.found:
            self._forget()
            self.show()
        self.bar.say("press Run to measure")

    def _forget(self) -> None:
        super()._forget()
        self.parity = None

    # ------------------------------------------------------------ guess

    def predict(self, times: float) -> None:
        """Your guess, before you run: how many times as fast will it be? Below 1 is slower.

        Raises:
            InvalidValue: not a number above 0.
        """
        if not 0 < times < math.inf:
            raise InvalidValue(f"{times!r} is no guess", "Give a number above 0, such as 1.5")
        self.guess = times
        self._guess.value = f"{times:g}"
        if self.found and not self.runs:
            super()._recall()
        elif self.runs:
            self.show()

    def _take_guess(self, words: str) -> None:
        if not words or words == f"{self.guess or 0:g}":
            return
        try:
            self.predict(float(words.replace(",", ".").strip("×x ")))
        except ValueError:
            self.bar.say(f"'{words}' is no guess: give a number, such as 1.5")
        except InvalidValue as problem:
            self.bar.say(str(problem))

    def _recall(self) -> None:
        """Results of an earlier session would answer the question: they wait for the guess."""
        stored = RunStore().guess(results.stages(self.found)[-1].id)
        if stored is not None:
            self.guess, self._guess.value = stored, f"{stored:g}"
        if self.guess is None and self.optimization.name != "baseline":
            self.bar.say_read(f"results of {date(self.found)} are stored: guess to see them, or press Run")
        else:
            super()._recall()

    # ------------------------------------------------------------ results

    def _measure(self) -> None:
        super()._measure()
        run = results.stages(self.runs)[-1]
        if self.guess is not None and not self.plan.recorded:
            RunStore().mark(run.id, guess=self.guess)
        if run.status == "ok" and not (self.plan.recorded or run.simulated):
            self.parity = inspect.parity(
                self.plan,
                run.title,
                Recipe.from_dict(run.recipe),
                progress=Progress(lambda now: self.bar.progress(now.phase, 0.99), self.cancelled),
            )

    def _answers(self) -> list[Content]:
        """Why, whether the training is still right, and how good the guess was."""
        proof = self.parity.describe() if self.parity else simulated.no_parity(self.runs)
        lines = [*self._verdicts(), self._score(), proof, self._next()]
        return [Bullets([line for line in lines if line])]

    def _score(self) -> str:
        """The guess, the result and the article's figure, all in the guess's unit."""
        ratio = results.stages(self.runs)[-1].speedup("previous")
        published = f"The article: {self.optimization.published}." if self.optimization.published else ""
        if ratio is None or self.guess is None:
            return published
        judgement = sentences.judgement(self.guess, ratio)
        return f"Your guess: {units.times(self.guess)}, {judgement}. {published}".strip()

    def _evidence(self) -> list[Content]:
        diffs = self._diffs() if self._stages else []
        changes = [Section(title, [Code(text, "diff")]) for title, text in diffs]
        return [tables.short_ladder(self.runs), *tables.proof(self.runs, self.parity), *changes]

    def _next(self) -> str:
        """What there is to do after this rung."""
        rungs = [*LADDER, ""]
        following = rungs[rungs.index(self.optimization.name) + 1] if self.optimization.name in rungs else ""
        rung = (
            f"the next rung, {optimization(following).title} (pk.StagePanel('{following}'))"
            if following
            else ""
        )
        return f"Next: {' or '.join(filter(None, (rung, 'another value of a switch, then Run')))}."

    def card(self) -> Markdown:
        """The stage's card: how it works, when it applies, when it does not help."""
        return Markdown(self.optimization.card())

    def diff(self) -> Markdown:
        """What the stage changes in the training script: a diff of two real scripts, here and on a GPU.

        Raises:
            PerfkitError: the workload cannot be loaded.
        """
        blocks = [f"**{html.escape(title)}**\n\n```diff\n{text}```" for title, text in self._diffs()]
        return Markdown("\n\n".join(block.replace("\n\n```diff\n```", "") for block in blocks))

    def _diffs(self) -> list[tuple[str, str]]:
        self._resolve()
        plan, diffs = self._diffed
        if plan is not self.plan:
            diffs = rungs.stage_diffs(self.plan, self._described)
            self._diffed = self.plan, diffs
        return diffs
