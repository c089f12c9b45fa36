"""What watching several ranks has shown, as a person reads it."""

from collections.abc import Sequence
from os.path import basename
from typing import Any

from perfkit.additions.ranks.lateness import EXCHANGE, Lateness
from perfkit.additions.ranks.messages import PARTS, State
from perfkit.additions.scripts.report import sentences
from perfkit.show import units
from perfkit.show.document import Cell, Table

WORDS = sentences(__package__, "watched.jinja", place=basename)


def divided(text: str) -> list[Any]:
    """The paragraphs or points of a template's text, at |."""
    return [" ".join(part.split()) for part in text.split("|") if part.strip()]


def ranks_table(found: Lateness) -> Table:
    """A mean step of each rank."""
    head = (
        "rank", "samples/s", *PARTS[:EXCHANGE], "waits for others", "communication", "hidden",
        "elements of inputs",
    )  # fmt: skip
    rows: list[list[Cell | str]] = []
    for spent in found.spent:
        times = [*spent.parts, spent.for_others, spent.exposed, spent.hidden]
        cells = [Cell(seconds, units.duration) for seconds in times]
        rate, elements = (Cell(value, units.number) for value in (spent.samples_per_s, spent.elements))
        rows.append([str(spent.rank), rate, *cells, elements])
    return Table(head, rows, note=str(WORDS.table_note(found)))


def exchanges_table(states: Sequence[State]) -> Table:
    """The collectives that took most, and the gradients."""
    rows: list[list[Cell | str]] = []
    for state in states:
        called = [each for each in state.exchanges if each.count]
        for each in sorted(called, key=lambda each: -each.seconds)[:4]:
            spent = Cell(each.seconds, units.duration)
            rows.append([each.name, basename(each.where), f"rank {state.rank}", Cell(each.count), spent])
    for ddp in (each for each in states[0].ddps if each.sent):
        backward = ", ".join(map(basename, states[0].backward[:2]))
        buckets = units.plural(len(ddp.buckets), "bucket")
        rows.append([f"gradients, {units.size(ddp.bytes)} in {buckets}", backward, "all", "", ""])
    head = ("exchange", "where", "rank", "calls", "time")
    return Table(head, rows, note="" if rows else "nothing was seen")
