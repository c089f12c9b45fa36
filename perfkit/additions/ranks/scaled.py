"""How training scales with its ranks, as a person reads it; scaled.jinja has the sentences."""

from collections.abc import Sequence

from perfkit.additions.ranks.report import divided
from perfkit.additions.ranks.scaling import LOSSES, Scaling, ScalingPoint
from perfkit.additions.scripts.report import sentences
from perfkit.show import style, units
from perfkit.show.document import Bullets, Cell, Col, Content, Notice, Section, Table, tabulate
from perfkit.show.style import Figure, Look, Row

_RATE = Look("samples/s", style.SKY)
_COLOURS = ((style.PURPLE, "//"), (style.ORANGE, "\\\\"), (style.GREEN, "xx"), (style.GREY, "--"))
_LOST = {name: Look(name, *colour) for name, colour in zip(LOSSES, _COLOURS, strict=True)}
_LEAST = 0.03  # of the rate: what is worth a word


def sections(found: Scaling) -> list[Content]:
    """The answer, the picture, what is lost, and what more ranks could give."""
    base, last = found.measured[0], found.measured[-1]
    words = sentences(__package__, "scaled.jinja")
    lost = [(name, share) for name, share in last.losses(base).items() if share >= _LEAST]
    lost.sort(key=lambda each: -each[1])
    contents: list[Content] = divided(words.answer(found, lost, last.efficiency(base)))
    contents += [Notice(f"{units.plural(count, 'rank')}: {why}") for count, why in found.failures.items()]
    contents.append(picture(found))
    contents.append(_table(found, found.measured, "What is lost to what", str(words.table_note())))
    if remarks := divided(words.remarks(found)):
        contents.append(Bullets(remarks))
    most = _table(found, found.predicted, f"At most, with {found.regime} scaling")
    contents.append(Section("What more ranks could give (predicted)", [most, *divided(words.limits(found))]))
    return [*contents, Section("Details", [units.clean(found.command)])]


def picture(found: Scaling) -> Figure:
    """A bar for each number of ranks: samples/s, and what is lost, up to the rate of perfect scaling."""
    base = found.measured[0]
    rows = list[Row]()
    for each in found.measured:
        rate, efficiency = each.samples_per_s, each.efficiency(base)
        pieces = [(rate.value, _RATE)]
        for name, share in each.losses(base).items():
            if share > 0 and each is not base:
                pieces.append((share * rate.value / efficiency, _LOST[name]))
        text = f"{units.number(rate.value)} samples/s\nefficiency {units.percent(efficiency)}"
        rows.append(Row(units.plural(each.ranks, "rank"), pieces, text, rate))
    unit = "samples/s: mean, 95% interval; what is lost, up to perfect scaling"
    return Figure("scaling", "Samples/s by ranks", rows, unit)


def _table(found: Scaling, things: Sequence[ScalingPoint], title: str, note: str = "") -> Table:
    base = found.measured[0]

    def lost(name: str) -> Col:
        return Col(name, lambda each: None if each is base else each.losses(base)[name], units.percent)

    def rate(each: ScalingPoint) -> Cell:
        if each in found.predicted:
            return Cell(each.samples_per_s.value, units.number)
        return Cell(each.samples_per_s, units.interval)

    columns = [
        Col("ranks", lambda each: str(each.ranks)),
        Col("samples/s", rate),
        Col("efficiency", lambda each: each.efficiency(base), units.percent),
        *map(lost, LOSSES),
        Col("step", "step_s", units.duration),
    ]
    return tabulate(columns, things, title, note)
