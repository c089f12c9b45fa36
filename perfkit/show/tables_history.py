"""The history as rows: what each run is called, how fast it was, what changed in it since which other run."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from perfkit.recipe import Recipe, Switch, spoken, switches
from perfkit.results.store import Entry
from perfkit.show import simulated, units
from perfkit.show.document import Cell, Col, Table, tabulate
from perfkit.show.sentences import SIGNS, clean

_WITHOUT = {word: word for word in ("failed", "cancelled")}


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A run as a row of the history."""

    id: str
    name: str
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


def lines(entries: Sequence[Entry]) -> list[Line]:
    """A row for each run."""
    by_id = {entry.id: entry for entry in entries}
    return [line(entry, by_id) for entry in entries]


def line(entry: Entry, by_id: Mapping[str, Entry]) -> Line:
    """The row of a run.

    Args:
        entry: the run.
        by_id: the runs that its changes may be counted from.
    """
    parent = by_id.get(entry.parent) or by_id.get(entry.previous)
    before = parent.recipe if parent else {}
    rate, ratio = entry.samples_per_s, entry.against_baseline
    return Line(
        id=entry.id, name=name(entry), note=entry.note, stage=clean(entry.stage),
        rate=simulated.estimate(entry, rate) if rate else _WITHOUT.get(entry.status, units.NOT_AVAILABLE),
        rate_value=rate.value if rate else None,
        ratio=f"{units.ratio(ratio)} {SIGNS[ratio.verdict]}" if ratio else "–",
        ratio_value=ratio.ratio if ratio else None, changes=changes(entry.recipe, before),
        since=name(parent) if parent else "", created=entry.created, device=clean(entry.device),
        disturbed=units.percent(entry.disturbed) if entry.disturbed is not None else "",
    )  # fmt: skip


def name(entry: Entry) -> str:
    """What people call it, else its title, else its stage."""
    return clean(entry.name or entry.title or entry.stage)


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


def stored(entries: Sequence[Entry]) -> Table:
    """Stored runs as a table."""
    columns = (
        Col("id", "id"),
        Col("session", "session", narrow=False),
        Col("preset", "preset", narrow=False),
        Col("workload", lambda entry: entry.workload.rpartition(":")[2], narrow=False),
        Col("name", name),
        Col("samples/s", _rate),
        Col("note", "note", narrow=False),
    )
    return tabulate(columns, entries, none="no runs are stored")


def _rate(entry: Entry) -> Cell:
    absent = _WITHOUT.get(entry.status, units.NOT_AVAILABLE)
    return Cell(entry.samples_per_s, lambda rate: simulated.estimate(entry, rate), absent)
