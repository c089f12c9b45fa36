"""A prediction of something else than a panel's speed-up: a share, a count, a name."""

from __future__ import annotations

import datetime
import math

from perfkit.errors import InvalidValue
from perfkit.notebook.ladder import LadderPanel
from perfkit.results import guesses
from perfkit.results.guesses import Answer


def guess(question: str, value: float | str | None, sure: guesses.Sure | None = None) -> Prediction:
    """Your guess, before you look.

    Args:
        question: what is guessed.
        value: a number or a name; None for no guess.
        sure: how sure you are, in percent: 50, 70 or 90. A number is right within a fifth.

    Raises:
        InvalidValue: neither a number nor a name, or no such confidence.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not (value is None or is_number or (isinstance(value, str) and 0 < len(value.strip()) <= 200)):
        raise InvalidValue(f"{value!r} is no guess", "Give a number, a name in quotes, or None for no guess")
    return Prediction(question, value, guesses.sure(sure))


class Prediction:
    """What was guessed, and when."""

    def __init__(self, question: str, value: float | str | None, sure: guesses.Sure | None) -> None:
        self.question, self.value, self.confidence = question, value, sure
        self._made = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

    def outcome(self, result: float | str, panel: LadderPanel | None = None) -> str:
        """A sentence that lays the guess beside the result; the first one is kept.

        Args:
            result: what came out.
            panel: that measured it, if one did: a guess that is younger than its results is not kept.
        """
        found = f"{self.question[:1].upper()}{self.question[1:]}: {_shown(result)}"
        if self.value is None:
            return f"{found} (no guess)."
        run = panel.runs[-1] if panel else None
        answer = Answer(
            made=self._made, question=self.question, value=self.value, confidence=self.confidence,
            result=result, about=run.id if run else "",
        )  # fmt: skip
        known = bool(panel and run and not panel.plan.recorded and run.created < self._made)
        if not known:
            guesses.keep_answer(answer)
        sure = f", {self.confidence}% sure" if self.confidence else ""
        words = ("right", "wrong") if isinstance(result, str) else ("within a fifth", "off by more than that")
        late = " (it was known already, so this guess is not kept)" if known else ""
        return f"{found}; you guessed {_shown(self.value)}{sure}: {words[not answer.holds]}{late}."


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"
