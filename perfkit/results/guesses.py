"""What a learner predicted, beside what came out: two small files, from which their calibration follows."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from perfkit import machine
from perfkit.errors import InvalidValue
from perfkit.results.stats import Ratio

Sure = Literal[50, 70, 90]
SURE: tuple[Sure, ...] = (50, 70, 90)
"""How sure one can be of a prediction, in percent."""
WITHIN = 1.2
"""A prediction holds if the result is within this factor of it, either way."""
_KEPT = 500
_MAX_BYTES = 1024**2
_NO_VERDICT = ("disturbed", "too few rounds")

Word = Annotated[str, Meta(min_length=1, max_length=200)]
Number = Annotated[float, Meta(gt=-1e9, lt=1e9)]


def sure(confidence: object) -> Sure | None:
    """A confidence, if it is one.

    Raises:
        InvalidValue: it is not.
    """
    if confidence in SURE:
        return confidence
    if confidence is None:
        return None
    choices = ", ".join(map(str, SURE))
    raise InvalidValue(f"{confidence!r} is no confidence", f"Choose one of {choices} (percent), or None")


class Guess(msgspec.Struct, frozen=True, kw_only=True):
    """A speed-up that was predicted before the result was seen, and that result."""

    made: Word
    """UTC, ISO 8601; it names the prediction."""
    stage: Word
    workload: Word
    preset: Word
    device: Word
    """As for `perfkit.plan`: also `sim:v100`, `recorded:NAME`."""
    times: Annotated[float, Meta(gt=0, le=1e6)]
    confidence: Sure | None = None
    """Percent."""
    run: Word
    """Id of the run that it is about."""
    result: Ratio
    """Against the stage before."""

    @property
    def holds(self) -> bool | None:
        """Whether it holds; None where that is open."""
        return holds(self.times, self.result)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Another prediction, of a number or a name, and what came out."""

    made: Word
    """UTC, ISO 8601."""
    question: Word
    value: Number | Word
    confidence: Sure | None = None
    """Percent."""
    result: Number | Word
    about: str = ""
    """Id of the run that the result is from, if it is of one."""

    @property
    def holds(self) -> bool:
        """A number holds if the result is within `WITHIN` of it, a name if it is the same."""
        if isinstance(self.value, str) or isinstance(self.result, str):
            return str(self.value).strip().casefold() == str(self.result).casefold()
        low, high = sorted((abs(self.value), abs(self.result)))
        return self.value * self.result >= 0 and high <= WITHIN * low


def holds(times: float, result: Ratio) -> bool | None:
    """Whether a result is within `WITHIN` of its prediction; None where the rounds cannot tell."""
    low, high = times / WITHIN, times * WITHIN
    if result.verdict in _NO_VERDICT:
        return None
    if low <= result.low and result.high <= high:
        return True
    return False if result.high < low or high < result.low else None


_Kept = TypeVar("_Kept", Guess, Answer)


def _file(kind: type[Guess] | type[Answer]) -> Path:
    return machine.runs_folder() / ("predictions.json" if kind is Guess else "answers.json")


def _load(kind: type[_Kept]) -> list[_Kept]:
    """The oldest first; none where the file is missing, damaged or far too large."""
    with contextlib.suppress(OSError, msgspec.DecodeError), _file(kind).open("rb") as file:
        return msgspec.json.decode(file.read(_MAX_BYTES), type=list[kind])  # type: ignore[valid-type]
    return []


def _write(kind: type[_Kept], every: Sequence[_Kept]) -> None:
    machine.runs_folder().mkdir(parents=True, exist_ok=True)
    machine.write_atomically(_file(kind), msgspec.json.encode(every[-_KEPT:]))


def load() -> list[Guess]:
    """Every predicted speed-up, the oldest first."""
    return [one for one in _load(Guess) if 0 < one.result.low <= one.result.high < math.inf]


def answers() -> list[Answer]:
    """Every other prediction, the oldest first."""
    return _load(Answer)


def keep_answer(answer: Answer) -> None:
    """Keeps the first answer to a question about a run; a second one was made knowing the result."""
    before = answers()
    if not any((one.question, one.about) == (answer.question, answer.about) for one in before):
        _write(Answer, [*before, answer])


def keep(guess: Guess) -> None:
    """Keeps a prediction with its result; the first result with a verdict is final, later ones are known."""
    every = {one.made: one for one in load()}
    before = every.get(guess.made)
    if before is None or before.result.verdict in _NO_VERDICT:
        every[guess.made] = guess
        _write(Guess, list(every.values()))


def of_run(run_id: str) -> Guess | None:
    """The prediction about a run."""
    return next((guess for guess in reversed(load()) if guess.run == run_id), None)


class Share(msgspec.Struct, frozen=True):
    """How many of the predictions with one confidence hold."""

    confidence: Sure
    holds: int
    count: int
    """Those that can be judged."""
    low: float
    high: float
    """95% interval of the share that holds (Wilson), 0 to 1."""

    @property
    def verdict(self) -> str:
        """What this number of predictions shows, and no more."""
        if self.confidence > 100 * self.high:
            return "too sure"
        return "not sure enough" if self.confidence < 100 * self.low else "too few to say otherwise"


def shares(guesses: Sequence[Guess | Answer]) -> list[Share]:
    """For each confidence that was used, the share of predictions that hold."""
    found = []
    for level in SURE:
        held = [one.holds for one in guesses if one.confidence == level and one.holds is not None]
        if held:
            found.append(Share(level, sum(held), len(held), *_wilson(sum(held), len(held))))
    return found


def _wilson(hits: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """Right for few trials too (Wilson 1927): near 0 and 1 it stays between them."""
    share, about = hits / count, 1 + z * z / count
    middle = (share + z * z / (2 * count)) / about
    half = z / about * math.sqrt(share * (1 - share) / count + z * z / (4 * count**2))
    return max(0.0, middle - half), min(1.0, middle + half)
