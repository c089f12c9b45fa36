"""Tables and sentences of the report on several ranks."""

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
    """The paragraphs or points of a template's text, which | separates."""
    return [" ".join(part.split()) for part in text.split("|") if part.strip()]


def ranks_table(lateness: Lateness) -> Table:
    """A mean step of each rank."""
    header = (
        "rank", "samples/s", *PARTS[:EXCHANGE], "waits for others", "communication", "hidden",
        "elements of inputs",
    )  # fmt: skip
    rows: list[list[Cell | str]] = []
    for mean in lateness.spent:
        times = [*mean.parts, mean.for_others, mean.exposed, mean.hidden]
        cells = [Cell(seconds, units.duration) for seconds in times]
        rate, elements = (Cell(value, units.number) for value in (mean.samples_per_s, mean.elements))
        rows.append([str(mean.rank), rate, *cells, elements])
    return Table(header, rows, note=str(WORDS.table_note(lateness)))


def exchanges_table(states: Sequence[State]) -> Table:
    """The collectives of each rank that took longest, and the gradients."""
    rows: list[list[Cell | str]] = []
    for state in states:
        calls = [call for call in state.exchanges if call.count]
        for call in sorted(calls, key=lambda call: -call.seconds)[:4]:
            time = Cell(call.seconds, units.duration)
            rows.append([call.name, basename(call.where), f"rank {state.rank}", Cell(call.count), time])
    for ddp in (ddp for ddp in states[0].ddps if ddp.sent):
        backward = ", ".join(map(basename, states[0].backward[:2]))
        buckets = units.plural(len(ddp.buckets), "bucket")
        rows.append([f"gradients, {units.size(ddp.bytes)} in {buckets}", backward, "all", "", ""])
    header = ("exchange", "where", "rank", "calls", "time")
    return Table(header, rows, note="" if rows else "nothing was seen")
