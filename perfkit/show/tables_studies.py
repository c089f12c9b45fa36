"""What studies found, as sections: comparison, noise, attribution, tuning, parity, the doctor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfkit import machine
from perfkit.results.attribution import Attribution
from perfkit.results.comparison import Comparison
from perfkit.results.parity import Parity
from perfkit.results.run import Run
from perfkit.results.tuning import Tuned
from perfkit.show import figures_studies, results, units
from perfkit.show.document import Bullets, Content, Section, Table
from perfkit.show.sentences import name

_SIGNS = {True: "✓", False: "✗"}


def comparison(result: Comparison) -> list[Content]:
    """Whether B is faster than A, in a sentence."""
    return [result.describe()]


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
        "optimization",
        "alone",
        "after the others",
        "in this order",
        "mean over orders",
        "95% interval",
    )
    narrow = ("optimization", "alone", "after the others", "mean over orders")
    pairs = [[pair.a, pair.b, units.times(pair.factor)] for pair in result.interactions]
    note = "" if pairs else "no pair was measured together and alone"
    again = [] if result.complete else ["The time budget is used up: run it again to continue."]
    return [
        Table(columns, rows, "What each optimization is worth", narrow=narrow),
        figures_studies.worth(result.effects),
        Bullets(result.sentences()),
        Table(("one", "other", "together / product of each alone"), pairs, "Interactions", note),
        *again,
    ]


def tuning(result: Tuned) -> list[Content]:
    """What was picked, and everything that was tried, the fastest first."""
    front = result.pareto()
    numbers = {run.id: str(at) for at, run in enumerate(front, 1)}
    tried = [(run, rate) for run in result.tried if (rate := results.rate(run))]
    rows = [
        [run.title, numbers.get(run.id, "") + (" (picked)" if run.id == result.best.id else ""),
         units.interval(rate), units.size(run.peak_memory_bytes or None)]
        for run, rate in sorted(tried, key=lambda pair: -pair[1].median)
    ]  # fmt: skip
    columns = ("recipe", "on the front", "samples/s", "peak memory")
    return [
        Bullets(result.sentences()),
        figures_studies.pareto(result.tried, front, result.best, result.cap_bytes),
        Table(columns, rows, "Tried", "The front: no other run is both faster and smaller."),
    ]


def parity(result: Parity) -> list[Content]:
    """Whether a recipe trains the same, check by check."""
    rows = [[check.name, _SIGNS[check.ok], check.evidence] for check in result.checks]
    return [Table(("check", "holds", "evidence"), rows, "Parity"), result.describe()]


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
        [
            str(row.ranks),
            units.duration(row.communication_s),
            units.duration(row.step_s),
            f"{row.efficiency:.0%}",
        ]
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
