"""What watching several ranks has shown, as a person reads it."""

from collections.abc import Sequence

from perfkit.additions.ranks.lateness import EXCHANGE, Lateness
from perfkit.additions.ranks.lines import place
from perfkit.additions.ranks.messages import PARTS, State
from perfkit.show import units
from perfkit.show.document import Cell, Table


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
    note = (
        f"A mean of {found.steps} steps that all ranks have taken, of {units.duration(found.step_s)} each. "
        "Communication is what all ranks spend in exchanges; hidden is that behind the backward pass."
    )
    return Table(head, rows, note=note)


def exchanges_table(states: Sequence[State]) -> Table:
    """The collectives that took most, and the gradients."""
    rows: list[list[Cell | str]] = []
    for state in states:
        for each in sorted(state.exchanges, key=lambda each: -each.seconds)[:4]:
            spent = Cell(each.seconds, units.duration)
            rows.append([each.name, place(each.where), f"rank {state.rank}", Cell(each.count), spent])
    for ddp in states[0].ddps:
        backward = ", ".join(map(place, states[0].backward[:2]))
        buckets = units.plural(len(ddp.buckets), "bucket")
        rows.append([f"gradients, {units.size(ddp.bytes)} in {buckets}", backward, "all", "", ""])
    note = "" if rows else "nothing was seen"
    return Table(("exchange", "where", "rank", "calls", "time"), rows, note=note)
