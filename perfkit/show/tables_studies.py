"""What studies found, as sections with their figures: noise, attribution, tuning, parity, the doctor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from perfkit import machine
from perfkit.results.comparison import Comparison
from perfkit.results.parity import Check, Parity
from perfkit.results.run import Mechanism, Run
from perfkit.search.attribution import Attribution, Effect
from perfkit.search.tuning import Tuned, rate
from perfkit.show import results, style, units
from perfkit.show.document import Bullets, Content, Figure, Notice, Section, Table
from perfkit.show.rows import bar, legend, named
from perfkit.show.sentences import name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKS = (("alone", "o", style.SKY), ("last", "D", style.ORANGE))
_SIGNS = {True: "✓", False: "✗"}


def noise(pairs: Sequence[Comparison], device: str, bound: float | None) -> list[Content]:
    """The ratios of pairs of identical processes, and the noise that follows from them."""
    ratios = [f"{pair.ratio.ratio:.3f} ({pair.ratio.low:.3f}-{pair.ratio.high:.3f})" for pair in pairs]
    return [Bullets(ratios), f"A/A noise of {device}: {bound or 0:.2%}, from {len(pairs)} pairs"]


def attribution(result: Attribution) -> list[Content]:
    """What each optimization is worth: alone, after the others, on average over all orders."""
    rows = [
        [e.title, *(units.times(value) for value in (e.alone, e.last, e.stepwise, e.shapley)),
         f"{e.low:.2f}–{e.high:.2f}" if e.low is not None else units.NOT_AVAILABLE]
        for e in result.effects
    ]  # fmt: skip
    columns = (
        "optimization", "alone", "after the others", "in this order", "mean over orders", "95% interval",
    )  # fmt: skip
    narrow = ("optimization", "alone", "after the others", "mean over orders")
    pairs = [[pair.a, pair.b, units.times(pair.factor)] for pair in result.interactions]
    note = "" if pairs else "no pair was measured together and alone"
    numbers = ", ".join(f"{e.title} {units.times(e.shapley)}" for e in result.effects)
    figure = Figure(
        "worth", "What each optimization is worth, whatever the order",
        f"Worth on average over the orders: {numbers}",
        lambda ax, ink: _worth(result.effects, ax, ink), style.rows_height(result.effects),
    )  # fmt: skip
    again = [] if result.complete else ["The time budget is used up: run it again to continue."]
    return [
        Table(columns, rows, "What each optimization is worth", narrow=narrow),
        figure,
        Bullets(result.sentences()),
        Table(("one", "other", "together / product of each alone"), pairs, "Interactions", note),
        *again,
    ]


def _worth(effects: Sequence[Effect], ax: Axes, ink: str) -> None:
    """A bar for the mean over the orders with its interval; marks for alone and after the others."""
    marks = "times as fast (circle: alone on the baseline · diamond: on top of all the others)"
    named(ax, ink, [e.title for e in effects], [units.times(e.shapley) for e in effects], marks)
    values = [
        1.0,
        *(v for e in effects for v in (e.alone, e.last, e.shapley, e.low, e.high) if v is not None),
    ]
    for at, e in enumerate(effects):
        if e.shapley is not None:
            bar(ax, ink, at, 1.0, e.shapley - 1.0, style.BLUE, "")
        if e.low is not None and e.high is not None:
            ax.plot([e.low, e.high], [at, at], color=ink, linewidth=1.6, solid_capstyle="butt")
        for field, sign, colour in _MARKS:
            if (value := getattr(e, field)) is not None:
                ax.plot(value, at, sign, color=colour, markeredgecolor=ink, markersize=8, zorder=4)
    room = max(values) - min(values) + 0.1
    ax.set_xlim(min(values) - 0.05 * room, max(values) + 0.06 * room)
    ax.axvline(1.0, color=ink, linewidth=1)
    legend(ax, ink, [("mean over orders", style.BLUE, "")])


def tuning(result: Tuned) -> list[Content]:
    """What was picked, and everything that was tried, the fastest first."""
    front = result.pareto()
    numbers = {run.id: str(at) for at, run in enumerate(front, 1)}
    tried = [(run, estimate) for run in result.tried if (estimate := results.rate(run))]
    rows = [
        [run.title, numbers.get(run.id, "") + (" (picked)" if run.id == result.best.id else ""),
         units.interval(estimate), units.size(run.peak_memory_bytes or None)]
        for run, estimate in sorted(tried, key=lambda pair: -pair[1].value)
    ]  # fmt: skip
    columns = ("recipe", "on the front", "samples/s", "peak memory")
    measured = [run for run, _ in tried if run.peak_memory_bytes]
    fronted = ", ".join(f"{run.title} {rate(run):.0f} samples/s" for run in front)
    figure = Figure(
        "pareto", "What was tried: speed against memory",
        f"Pareto front of {len(measured)} runs: {fronted}; picked: {result.best.title}",
        lambda ax, ink: _pareto(measured, front, result, ax, ink),
    )  # fmt: skip
    return [
        Bullets(result.sentences()),
        figure,
        Table(columns, rows, "Tried", "The front: no other run is both faster and smaller."),
    ]


def _pareto(measured: Sequence[Run], front: Sequence[Run], result: Tuned, ax: Axes, ink: str) -> None:
    """A dot for each run, a line through the front (the leanest first), a star on what was picked."""
    style.plain_axes(ax, ink)
    ax.plot(*_places(measured), "o", color=style.SKY, markeredgecolor=ink, markersize=7, label="tried")
    ax.plot(*_places(front), "-D", color=style.ORANGE, markeredgecolor=ink, markersize=8, label="the front")
    ax.plot(
        *_places([result.best]), "*", color=style.YELLOW, markeredgecolor=ink, markersize=19, label="picked"
    )
    for at, (x, y) in enumerate(zip(*_places(front), strict=True), 1):
        ax.annotate(
            str(at), (x, y), (-9, 7), textcoords="offset points", color=ink, fontsize=style.type_size(ax)
        )
    if result.cap_bytes:
        ax.axvline(result.cap_bytes / 1e6, color=ink, linestyle="--", linewidth=1.2, label="memory cap")
    ax.set_ylim(bottom=0)
    ax.margins(x=0.08, y=0.12)
    style.axis_labels(ax, ink, "peak memory, MB", "samples/s")
    style.legend_below(ax, ink, 4)


def _places(runs: Sequence[Run]) -> tuple[list[float], list[float]]:
    return [(run.peak_memory_bytes or 0) / 1e6 for run in runs], [rate(run) for run in runs]


def parity(result: Parity) -> list[Content]:
    """Whether a recipe trains the same, check by check."""
    return [_checks("Parity", result.checks), result.describe()]


def _checks(title: str, checks: Iterable[Check | Mechanism]) -> Table:
    rows = [
        [one.name if isinstance(one, Check) else one.switch, _SIGNS[one.ok], one.evidence] for one in checks
    ]
    return Table(("check", "holds", "evidence"), rows, title)


def script_sides(result: Comparison, losses: Check) -> list[Content]:
    """What was set from outside in a script, with its proof, what was not, and the losses of both sides."""
    refused = [
        f"{fact.removeprefix('not applied: ')} was not set: {why}"
        for fact, why in result.b.facts.items() if fact.startswith("not applied: ")
    ]  # fmt: skip
    return [*map(Notice, refused), _checks("Checks", [*result.b.mechanism, losses])]


def communication(runs: Sequence[Run]) -> Table:
    """Where a step of several ranks goes."""
    rows = []
    for run in runs:
        if times := run.communication:
            seconds = (times.step_s, times.compute_s, times.alone_s, times.exposed_s, times.hidden_s)
            cells = [*map(units.duration, seconds), units.size(times.bytes_per_step)]
            rows.append([name(run), *cells, units.times(times.straggling)])
    columns = (
        "recipe", "step", "computing", "averaging alone", "of it exposed", "hidden", "bytes per step",
        "slowest rank / median",
    )  # fmt: skip
    return Table(columns, rows, "Communication", "" if rows else "no run has several ranks")


def forecast(rows: Sequence[Any]) -> Table:
    """Predicted efficiency with more ranks."""
    cells = [
        [str(row.ranks), *map(units.duration, (row.communication_s, row.step_s)), f"{row.efficiency:.0%}"]
        for row in rows
    ]
    return Table(("ranks", "averaging", "step", "efficiency"), cells, "Forecast")


def doctor(about: str, checks: Sequence[machine.Check], stages: Sequence[Any]) -> list[Content]:
    """What this machine has and what to fix, and which stages can run here."""
    rows = [[c.name, "note" if c.status == "warning" else c.status, c.detail, c.remedy] for c in checks]
    can = [[stage.title, f"n/a: {stage.reason}" if stage.reason else "will be measured"] for stage in stages]
    return [
        Table(("what", "state", "found", "what to do"), rows, about),
        Section("", [Table(("stage", "here"), can, "Stages")] if can else []),
    ]
