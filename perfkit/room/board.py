"""The state of a room: its token and its rows, in a file that is always whole."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import NamedTuple

import jinja2
import msgspec

from perfkit import machine
from perfkit.errors import InvalidValue, StoreError
from perfkit.results.guesses import holds
from perfkit.results.run import INVALID
from perfkit.room.shared import Entry
from perfkit.show import units
from perfkit.show.calibration import judgement
from perfkit.show.sentences import clean

MAX_ENTRIES = 2_000
WIDTH = 280
"""Of the scale in a row's picture, in its own units."""


class State(msgspec.Struct, kw_only=True):
    """What the file holds."""

    schema: int = 1
    token: str
    entries: list[Entry] = []


class Board:
    """The rows of a room. What `add` has returned from survives a crash.

    Args:
        path: of its file, made where it is missing.
        token: that learners need; one is made, or the file's own is kept, if None.

    Raises:
        StoreError: the file is not a board's, or cannot be written.
    """

    def __init__(self, path: Path, token: str | None = None) -> None:
        self.path = path
        state = _read(path) if path.exists() else State(token=secrets.token_urlsafe(9))
        self.token = token or state.token
        """What posts and readers must give."""
        self._by_key: dict[tuple[str, ...], Entry] = {}
        self._write({entry.key: entry for entry in state.entries})

    @property
    def entries(self) -> Sequence[Entry]:
        """Every row, in the order in which they were first shared."""
        return list(self._by_key.values())

    def add(self, entry: Entry) -> None:
        """Keeps a row in the place of an older one of the same key; it is on the disk afterwards.

        A result that is shared without its prediction keeps the prediction that was shared before it.

        Raises:
            InvalidValue: the board is full.
            StoreError: the file cannot be written; the row is not kept.
        """
        before = self._by_key.get(entry.key)
        if before is None and len(self._by_key) >= MAX_ENTRIES:
            raise InvalidValue(f"the board is full ({MAX_ENTRIES} rows)", "Start another with --state FILE")
        if before and entry.prediction is None:
            entry = msgspec.structs.replace(entry, prediction=before.prediction, confidence=before.confidence)
        self._write({**self._by_key, entry.key: entry})

    def _write(self, by_key: dict[tuple[str, ...], Entry]) -> None:
        """Puts rows on the disk, then in the place of those that were here."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            state = State(token=self.token, entries=list(by_key.values()))
            machine.write_atomically(self.path, msgspec.json.encode(state))
            self.path.chmod(0o600)  # it holds the token
        except OSError as problem:
            raise StoreError(
                f"cannot write {self.path}: {problem.strerror}", "Check the folder and its free space"
            ) from None
        self._by_key = by_key

    # ------------------------------------------------------------ shown

    def page(self, address: str) -> str:
        """The whole page, for a projector."""
        return _template("page").render(address=address, token=self.token, body=self.body())

    def body(self) -> str:
        """What changes of the page."""
        return _template("body").render(questions=list(_questions(self.entries)), count=len(self.entries))


def _read(path: Path) -> State:
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except OSError as problem:
        raise StoreError(f"cannot read {path}: {problem.strerror}", "Check its permissions") from None
    except INVALID as problem:
        raise StoreError(
            f"{path} is not the board of a room: {problem}", "Move it away, or name another with --state FILE"
        ) from None


class Scale(NamedTuple):
    """A logarithmic axis of ratios."""

    low: float
    high: float

    def x(self, ratio: float) -> float:
        """Where a ratio stands, 0 to WIDTH."""
        part = math.log(ratio / self.low) / math.log(self.high / self.low)
        return round(WIDTH * min(1.0, max(0.0, part)), 1)

    @property
    def ticks(self) -> list[float]:
        """Powers of two, few enough to read."""
        first, last = round(math.log2(self.low)), round(math.log2(self.high))
        return [2.0**power for power in range(first, last + 1, max(1, (last - first) // 6))]


class Question(NamedTuple):
    """The rows about one stage of one workload."""

    title: str
    entries: list[Entry]
    scale: Scale
    summary: str


def _questions(entries: Sequence[Entry]) -> Iterator[Question]:
    """The newest question first."""
    about, when = attrgetter("workload", "stage"), attrgetter("when")
    order = {about(entry): at for at, entry in enumerate(sorted(entries, key=when))}
    rows = sorted(entries, key=lambda entry: (-order[about(entry)], entry.name))
    for (workload, _), group in groupby(rows, about):
        every = list(group)
        title = f"{every[0].title} · {workload.rpartition(':')[2]}"
        yield Question(title, every, _scale(every), _summary(every))


def _scale(entries: Sequence[Entry]) -> Scale:
    values = [0.5, 2.0, *(entry.prediction for entry in entries if entry.prediction)]
    values += [limit for entry in entries if entry.ratio for limit in (entry.ratio.low, entry.ratio.high)]
    low, high = max(2**-10, min(values)), min(2**10, max(values))
    return Scale(2.0 ** math.floor(math.log2(low)), 2.0 ** math.ceil(math.log2(high)))


def _summary(entries: Sequence[Entry]) -> str:
    """How the room did, in a sentence."""
    guesses = [entry.prediction for entry in entries if entry.prediction]
    results = [entry.ratio.ratio for entry in entries if entry.ratio]
    both = [holds(entry.prediction, entry.ratio) for entry in entries if entry.prediction and entry.ratio]
    judged = [one for one in both if one is not None]
    parts = [f"{len(guesses)} predictions (median {median(guesses):.2f}×)"] if guesses else []
    parts += [f"{len(results)} results (median {median(results):.2f}×)"] if results else []
    parts += [f"{sum(judged)} of {len(judged)} within a fifth"] if judged else []
    return "; ".join(parts)


@cache
def _template(name: str) -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"clean": clean, "ratio": units.ratio}
    environment.globals |= {"WIDTH": WIDTH, "judgement": judgement}
    return environment.get_template(f"{name}.jinja")
