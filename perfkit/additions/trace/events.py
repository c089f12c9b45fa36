"""Turns events into columns of numbers, piece by piece."""

import re
from collections import defaultdict
from decimal import Decimal
from enum import IntEnum
from itertools import count
from types import SimpleNamespace
from typing import Any, Self

import numpy as np

from perfkit.additions.shared.intervals import Ints
from perfkit.additions.trace import data
from perfkit.additions.trace.reader import Args, Event

_FARTHEST_NS, _LONGEST_NS = 4 * 10**18, 10**15  # the year 2096, after any valid timestamp; eleven days


class Kind(IntEnum):
    """The kind of an event. Most names are also those of the parts of a step."""

    OTHER, KERNEL, COLLECTIVE, MEMCPY, MEMSET, COMMUNICATION, RUNTIME, DATALOADER = range(8)
    CPU_OP, ANNOTATION, STEP, PYTHON, SPAN, WORKER = range(8, 14)


KERNELS = (Kind.KERNEL, Kind.COLLECTIVE)
COPIES = (Kind.MEMCPY, Kind.MEMSET)

_KIND = re.compile("|".join(f"(?P<{kind}>{pattern.pattern})" for kind, pattern in data.names("kind").items()))


class Kinds(dict[tuple[str, str, str], Kind]):
    """The kind for a phase, category and name: the first in names.toml that matches."""

    def __missing__(self, key: tuple[str, str, str]) -> Kind:
        phase, category, name = key
        fits = _KIND.match(f"{category.lower()} {name}") if phase == "X" else None
        self[key] = Kind[fits.lastgroup or ""] if fits else Kind.OTHER
        return self[key]


class EventTable(SimpleNamespace):
    """The events of interest, with an array for each property, as `Tabulator.table` makes them."""

    def __len__(self) -> int:
        return len(self.kind)

    def __getitem__(self, rows: Any) -> Self:
        return type(self)(**{name: column[rows] for name, column in vars(self).items()})


def joined(pieces: list[EventTable]) -> EventTable:
    """Joins pieces into one table, column by column. The pieces lose their columns, to save memory."""
    names = [*vars(pieces[0])]
    return EventTable(**{name: np.concatenate([vars(piece).pop(name) for piece in pieces]) for name in names})


class Tabulator:
    """Makes columns of events, and numbers their texts. `dropped` counts events with impossible times."""

    def __init__(self) -> None:
        self.texts: dict[Any, int] = defaultdict(count().__next__)
        """Numbers distinct values in order of appearance; -1 means no value."""
        self.kinds = Kinds()
        self.dropped = 0

    def table(self, events: list[Event]) -> EventTable:
        """The rows of the events of interest; those with impossible times are left out and counted."""
        nothing = Args()
        kinds = [self.kinds[event.ph, event.cat, event.name] for event in events]
        events = [event for event, kind in zip(events, kinds, strict=True) if kind]
        args = [event.args or nothing for event in events]
        start = nanoseconds([bytes(event.ts) for event in events])
        length = nanoseconds([bytes(event.dur) for event in events])
        fits = (abs(start) <= _FARTHEST_NS) & (length >= 0) & (length <= _LONGEST_NS)
        self.dropped += int((~fits).sum())
        table = EventTable(
            kind=np.array([kind for kind in kinds if kind], np.int8),
            name=np.array([self.texts[event.name] for event in events], np.int32),
            thread=np.array([self.texts[event.pid, event.tid] for event in events], np.int32),
            start=start,
            end=start + length,
            correlation=np.array([a.correlation for a in args], np.int64),
            bytes=np.array([a.bytes if a.bytes >= 0 else a.size for a in args], np.int64),
            # The profiler's own id; -1 if there is none.
            identity=np.array([a.frame or a.operator or -1 for a in args], np.float64),
        )
        return table if fits.all() else table[fits]


_WHOLE = re.compile(rb"(?:-?\d{1,16},)*")
_THOUSANDTHS = re.compile(rb"(?:-?\d{1,16}\.\d{3},)*")


def nanoseconds(texts: list[bytes]) -> Ints:
    """Converts µs to ns exactly. Texts that are not numbers get a value beyond all valid times."""
    text = b",".join([*texts, b""])
    if _THOUSANDTHS.fullmatch(text):
        return np.fromstring(text.replace(b".", b""), np.int64, sep=",")
    if _WHOLE.fullmatch(text):
        return 1000 * np.fromstring(text, np.int64, sep=",")
    return np.array([_nanoseconds(each) for each in texts], np.int64)


def _nanoseconds(text: bytes) -> int:
    try:
        us = Decimal(text.strip(b'"').decode())
        return round(1000 * us) if us.adjusted() < 16 else 2 * _FARTHEST_NS
    except (ArithmeticError, ValueError):  # not a number, NaN, infinity
        return 2 * _FARTHEST_NS
