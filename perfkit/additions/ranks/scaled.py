"""The report on how training scales with its ranks; scaled.jinja has the sentences."""

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
_LEAST = 0.03  # of the rate; smaller losses are not mentioned


def sections(scaling: Scaling) -> list[Content]:
    """The answer, the picture, the losses by cause, and the limit for more ranks."""
    base, last = scaling.measured[0], scaling.measured[-1]
    words = sentences(__package__, "scaled.jinja")
    lost = [(name, share) for name, share in last.losses(base).items() if share >= _LEAST]
    lost.sort(key=lambda loss: -loss[1])
    contents: list[Content] = divided(words.answer(scaling, lost, last.efficiency(base)))
    contents += [Notice(f"{units.plural(count, 'rank')}: {why}") for count, why in scaling.failures.items()]
    contents.append(picture(scaling))
    contents.append(_table(scaling, scaling.measured, "What is lost to what", str(words.table_note())))
    if remarks := divided(words.remarks(scaling)):
        contents.append(Bullets(remarks))
    most = _table(scaling, scaling.predicted, f"At most, with {scaling.regime} scaling")
    limits = divided(words.limits(scaling))
    contents.append(Section("What more ranks could give (predicted)", [most, *limits]))
    return [*contents, Section("Details", [units.clean(scaling.command)])]


def picture(scaling: Scaling) -> Figure:
    """A bar for each number of ranks: samples/s, then the losses, up to the rate of perfect scaling."""
    base = scaling.measured[0]
    rows = list[Row]()
    for point in scaling.measured:
        rate, efficiency = point.samples_per_s, point.efficiency(base)
        pieces = [(rate.value, _RATE)]
        for name, share in point.losses(base).items():
            if share > 0 and point is not base:
                pieces.append((share * rate.value / efficiency, _LOST[name]))
        text = f"{units.number(rate.value)} samples/s\nefficiency {units.percent(efficiency)}"
        rows.append(Row(units.plural(point.ranks, "rank"), pieces, text, rate))
    unit = "samples/s: mean, 95% interval; what is lost, up to perfect scaling"
    return Figure("scaling", "Samples/s by ranks", rows, unit)


def _table(scaling: Scaling, points: Sequence[ScalingPoint], title: str, note: str = "") -> Table:
    base = scaling.measured[0]

    def lost(name: str) -> Col:
        return Col(name, lambda point: None if point is base else point.losses(base)[name], units.percent)

    def rate(point: ScalingPoint) -> Cell:
        if point in scaling.predicted:
            return Cell(point.samples_per_s.value, units.number)
        return Cell(point.samples_per_s, units.interval)

    columns = [
        Col("ranks", lambda point: str(point.ranks)),
        Col("samples/s", rate),
        Col("efficiency", lambda point: point.efficiency(base), units.percent),
        *map(lost, LOSSES),
        Col("step", "step_s", units.duration),
    ]
    return tabulate(columns, points, title, note)
