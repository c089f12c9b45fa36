"""What runs of several ranks measured: their scaling, its forecast, and their communication."""

from collections.abc import Sequence
from statistics import median

from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.results.run import Run
from perfkit.results.schema import Communication
from perfkit.show import units
from perfkit.show.document import Col, Content, tabulate
from perfkit.show.sentences import name


def sections(runs: Sequence[Run]) -> list[Content]:
    """Where a step of several ranks goes; nothing for runs of one rank."""
    ranked = [run for run in runs if run.communication]
    columns = (
        Col("recipe", name),
        Col("step", "communication.step_s", units.duration),
        Col("computing", "communication.compute_s", units.duration),
        Col("averaging alone", "communication.alone_s", units.duration),
        Col("exposed", lambda run: exposed_s(run.communication), units.duration),
        Col("bytes per step", "communication.bytes_per_step", units.size),
        Col("slowest rank / median", lambda run: straggling(run.communication), units.times),
    )
    return [tabulate(columns, ranked, "Communication")] if ranked else []


def exposed_s(measured: Communication) -> float:
    """The part of the communication that lengthens the step."""
    return max(0.0, measured.step_s - measured.compute_s)


def straggling(measured: Communication) -> float:
    """`compute_s` of the slowest rank / of the median rank."""
    return max(measured.rank_compute_s) / median(measured.rank_compute_s)


def efficiency(alone: Run, many: Run) -> float:
    """Scaling efficiency: samples/s of all ranks / (ranks × samples/s of one), 1 is perfect."""
    if not (alone.samples_per_s and many.samples_per_s) or Recipe.from_dict(alone.recipe).ranks > 1:
        raise InvalidValue("scaling needs a run of one rank and one of several", "Measure both")
    return many.samples_per_s.value / Recipe.from_dict(many.recipe).ranks / alone.samples_per_s.value


def forecast(run: Run, latency_s: float | None = None, bytes_per_s: float | None = None) -> dict[int, float]:
    """Predicted efficiency by number of ranks: what a run of several ranks measured, in a larger ring.

    A ring all-reduce of b bytes over n ranks takes 2 (n-1) α + 2 (n-1)/n b/β, with the latency α of a hop and
    the bandwidth β of a link. If None, those that give back the measured collectives. The share of the
    communication that overlaps with backward is assumed to stay the same.
    """
    measured, ranks = run.communication, Recipe.from_dict(run.recipe).ranks
    if measured is None:
        raise InvalidValue(f"{run.title} has one rank: nothing was communicated", "Measure it with ranks=2")
    hops = 2 * (ranks - 1)
    alpha = measured.start_s / hops if latency_s is None else latency_s
    moving_s = max(measured.alone_s - measured.start_s, 1e-9)
    beta = hops / ranks * measured.bytes_per_step / moving_s if bytes_per_s is None else bytes_per_s
    exposed = min(1.0, exposed_s(measured) / measured.alone_s) if measured.alone_s else 0.0

    def step_s(count: int) -> float:
        hops = 2 * (count - 1)
        return measured.compute_s + exposed * (hops * alpha + hops / count * measured.bytes_per_step / beta)

    return {count: measured.compute_s / step_s(count) for count in (1, 2, 4, 8, 16, 32, 64)}
