"""The history as rows: what each run is called, how fast it was, what changed in it since which other run."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from perfkit.recipe import Recipe, Switch, spoken, switches
from perfkit.results.index import Entry, Marks
from perfkit.results.stats import Estimate, Ratio
from perfkit.results.store import History
from perfkit.show import simulated, units
from perfkit.show.document import Table
from perfkit.show.sentences import SIGNS, clean

_NARROW = ("id", "name", "samples/s")
_BARE = Marks()
_WITHOUT = {word: word for word in ("failed", "cancelled")}


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A run as a row of the history."""

    id: str
    name: str
    star: bool
    note: str
    stage: str
    rate: str
    rate_value: float | None
    ratio: str
    ratio_value: float | None
    changes: list[str]
    since: str
    """The name of the run that the changes are counted from."""
    created: str
    """UTC, ISO 8601."""
    device: str
    disturbed: str


def lines(history: History) -> list[Line]:
    """A row for each run."""
    by_id = {entry.id: entry for entry in history.entries}
    return [line(entry, history.marks, by_id) for entry in history.entries]


def line(entry: Entry, marks: Mapping[str, Marks], by_id: Mapping[str, Entry]) -> Line:
    """The row of a run.

    Args:
        entry: the run.
        marks: what people wrote beside the runs, by id.
        by_id: the runs that its changes may be counted from.
    """
    own = marks.get(entry.id, _BARE)
    parent = by_id.get(own.parent) or by_id.get(entry.previous)
    before = parent.recipe if parent else {}
    rate, ratio = entry.samples_per_s, entry.against_baseline
    return Line(
        id=entry.id, name=name(entry, own), star=own.star, note=own.note, stage=clean(entry.stage),
        rate=simulated.estimate(entry, rate) if rate else _WITHOUT.get(entry.status, units.NOT_AVAILABLE),
        rate_value=rate.value if rate else None,
        ratio=f"{units.ratio(ratio)} {SIGNS[ratio.verdict]}" if ratio else "–",
        ratio_value=ratio.ratio if ratio else None, changes=changes(entry.recipe, before),
        since=name(parent, marks.get(parent.id, _BARE)) if parent else "", created=entry.created,
        device=clean(entry.device),
        disturbed=units.percent(entry.disturbed) if entry.disturbed is not None else "",
    )  # fmt: skip


def name(entry: Entry, marks: Marks) -> str:
    """What people call it, else its title, else its stage."""
    return clean(marks.name or entry.title or entry.stage)


def changes(recipe: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """`AMP bf16`, `Pin memory off`: the switches that differ; what is not named has torch's default."""
    pairs = {name: recipe.get(name, default) for name, default in _DEFAULTS.items()}
    return [
        change(switches()[name], value)
        for name, value in pairs.items()
        if value != before.get(name, _DEFAULTS[name])
    ]


def change(switch: Switch, value: object) -> str:
    """A switch with its new value."""
    return f"{switch.label} {clean(spoken(value), 30)}"


_DEFAULTS = Recipe().to_dict()


def stored(history: History) -> Table:
    """Stored runs as a table."""
    rows = [
        [entry.id, entry.session, entry.preset, entry.workload.rpartition(":")[2],
         "★ " * row.star + row.name, row.rate, row.note]
        for entry, row in zip(history.entries, lines(history), strict=True)
    ]  # fmt: skip
    columns = ("id", "session", "preset", "workload", "name", "samples/s", "note")
    return Table(columns, rows, note="" if rows else "no runs are stored", narrow=_NARROW)


def as_csv(history: History) -> str:
    """Every run with plain numbers, for a spreadsheet; what would be a formula there begins with a quote."""
    interval = ("", "_low", "_high")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([
        "id", "session", "created", "name", "star", "note", "stage", "workload", "preset", "device",
        *(f"samples_per_s{end}" for end in interval), *(f"x_baseline{end}" for end in interval), "verdict",
        "changes", "since", "disturbed", *_DEFAULTS,
    ])  # fmt: skip
    for entry, row in zip(history.entries, lines(history), strict=True):
        ratio = entry.against_baseline
        cells = [
            entry.id, entry.session, entry.created, row.name, int(row.star), row.note, row.stage,
            entry.workload, entry.preset, row.device, *_numbers(entry.samples_per_s), *_numbers(ratio),
            ratio.verdict if ratio else "", "; ".join(row.changes), row.since, entry.disturbed,
            *(entry.recipe.get(switch, default) for switch, default in _DEFAULTS.items()),
        ]  # fmt: skip
        writer.writerow([_inert(cell) for cell in cells])
    return text.getvalue()


def _numbers(value: Estimate | Ratio | None) -> Sequence[float | None]:
    return msgspec.structs.astuple(value)[:3] if value else (None,) * 3


def _inert(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t")) else cell
