"""What studies found, as sections: noise, parity, communication, the check of the machine."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfkit import machine
from perfkit.results.parity import Check, Parity
from perfkit.results.run import Comparison, Mechanism, Run
from perfkit.show import units
from perfkit.show.document import Bullets, Cell, Col, Content, Figure, Section, Table, Tone, tabulate
from perfkit.show.sentences import name

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_TONES: dict[str, Tone] = {"ok": "good", "note": "warning", "problem": "bad"}


def noise(pairs: Sequence[Comparison], device: str, bound: float | None) -> list[Content]:
    """The ratios of pairs of identical processes, and the noise that follows from them."""
    ratios = [f"{pair.ratio.ratio:.3f} ({pair.ratio.low:.3f}–{pair.ratio.high:.3f})" for pair in pairs]
    return [Bullets(ratios), f"A/A noise of {device}: {bound or 0:.2%}, from {len(pairs)} pairs"]


def parity(result: Parity) -> list[Content]:
    """Whether a recipe trains the same, check by check."""
    return [checks("Parity", result.checks), result.describe()]


def checks(title: str, results: Sequence[Check | Mechanism]) -> Table:
    """Checks with their evidence."""
    columns = (
        Col("check", lambda check: check.name if isinstance(check, Check) else check.switch),
        Col("holds", lambda check: Cell("✓", tone="good") if check.ok else Cell("✗", tone="bad")),
        Col("evidence", "evidence"),
    )
    return tabulate(columns, results, title)


def communication(runs: Sequence[Run]) -> Table:
    """Where a step of several ranks goes."""
    columns = (
        Col("recipe", name),
        Col("step", lambda run: run.communication.step_s, units.duration),
        Col("computing", lambda run: run.communication.compute_s, units.duration),
        Col("averaging alone", lambda run: run.communication.alone_s, units.duration),
        Col("of it exposed", lambda run: run.communication.exposed_s, units.duration),
        Col("hidden", lambda run: run.communication.hidden_s, units.duration),
        Col("bytes per step", lambda run: run.communication.bytes_per_step, units.size),
        Col("slowest rank / median", lambda run: run.communication.straggling, units.times),
    )
    several = [run for run in runs if run.communication]
    return tabulate(columns, several, "Communication", none="no run has several ranks")


def forecast(efficiency: Mapping[int, float]) -> Figure:
    """Predicted efficiency by number of ranks."""
    numbers = ", ".join(f"{ranks} ranks {share:.0%}" for ranks, share in efficiency.items())

    def paint(figure: "Drawing") -> None:
        ax = figure.add_subplot()
        ax.plot(list(efficiency), [100 * share for share in efficiency.values()], "o-")
        ax.set_xscale("log", base=2)
        ax.set_ylim(0, 105)
        ax.set(xlabel="ranks", ylabel="efficiency, %")

    return Figure("forecast", "Predicted efficiency with more ranks", f"Efficiency: {numbers}", paint)


def doctor(about: str, checks: Sequence[machine.Check], stages: Sequence[Any]) -> list[Content]:
    """What this machine has and what to fix, and which stages can run here."""
    columns = (
        Col("what", "name"),
        Col("state", _state),
        Col("found", "detail"),
        Col("what to do", "remedy"),
    )
    here = (
        Col("stage", "title"),
        Col("here", lambda stage: f"n/a: {stage.reason}" if stage.reason else "will be measured"),
    )
    return [
        tabulate(columns, checks, about),
        Section("", [tabulate(here, stages, "Stages")] if stages else []),
    ]


def _state(check: machine.Check) -> Cell:
    state = "note" if check.status == "warning" else check.status
    return Cell(state, tone=_TONES[state])
