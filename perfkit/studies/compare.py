"""Two recipes, interleaved until their ratio is known precisely enough; two stored runs; several ranks."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec import structs

from perfkit.errors import Cancelled, InvalidValue, PerfkitError, one_of
from perfkit.ladder.catalogue import OPTIMIZATIONS
from perfkit.process import server
from perfkit.recipe import Recipe, Value, parse_settings
from perfkit.results import stats
from perfkit.results.run import Comparison, Pairing, Rounds, Run
from perfkit.results.store import RunStore
from perfkit.studies import rungs
from perfkit.studies.sources import Plan, Progress, opened

BUDGET_S = 90.0
PRECISION = 0.02
"""Half the width of the interval, as a fraction, at which measuring ends."""
MOST_PAIRS = 12
"""Pairs of processes, however much equal ones differ: each pair takes time to start."""


class Candidate(NamedTuple):
    """One side of a comparison: what the source trains by itself, with some switches on top."""

    title: str
    changes: Mapping[str, Value] = MappingProxyType({})


def candidate(text: str, plan: Plan) -> Candidate:
    """One side: a stage of the ladder, or `switch=value,…` on top of the baseline."""
    if "=" in text:
        return Candidate(text, parse_settings(text.split(",")))
    if text not in OPTIMIZATIONS:
        raise one_of(text, list(OPTIMIZATIONS), "stage", see=", or settings such as workers=2,amp=bf16")
    above = () if text == "baseline" else (text,)
    stage = rungs.acting(rungs.described(replace(plan, stages=above, below=True), load=True))
    return Candidate(stage.title, stage.recipe.to_dict())


def pairs_for(noise: float | None, precision: float) -> int:
    """Pairs of processes to measure on a machine with this A/A noise of one pair; both are fractions.

    One pair if the noise is unknown or no more than the precision. Otherwise enough pairs that differences
    between processes make up at most half of the variance of an interval of that precision, and an even
    number, as either side starts first equally often.
    """
    if noise is None or precision <= 0 or noise <= precision:
        return 1
    # At 2 (noise / precision)² pairs processes are half of the variance; Student's quantile asks for more.
    return min(MOST_PAIRS, 2 * math.ceil((noise / precision) ** 2 + 1.2))


def compare(
    a: Candidate,
    b: Candidate,
    plan: Plan,
    budget_s: float = BUDGET_S,
    precision: float = PRECISION,
    pairs: int | None = None,
    part: float = 0.0,
    progress: Progress | None = None,
) -> Comparison:
    """Measures two sides interleaved, in two processes: at least 5 rounds, more until the interval is narrow.

    Equal processes differ for as long as they live, because memory and code lie elsewhere in each. If they
    differ by more than `precision`, several pairs of fresh processes are measured one after the other, each
    from a fork server of its own. Either side starts first equally often (of equal processes, the one that
    starts last was seen to be faster by 1.6%), and each pair has another order of data and blocks, so that
    the effects of both average out. Stopped by a person, it gives what was measured until then.

    Args:
        a: what is compared with.
        b: what is compared; of the same kind.
        plan: workload, preset, device, seed.
        budget_s: seconds of rounds, of all pairs together. After four times as long, with the time to start
            them, five pairs are enough.
        precision: half width of the interval / ratio at which measuring ends.
        pairs: pairs of processes; None: as many as this machine's A/A noise calls for.
        part: a half width of this part of the effect is enough too (`stats.rounds_needed`).
        progress: follows and stops it.
    """
    progress = progress or Progress()
    plan = replace(plan, preset=replace(plan.preset, budget_s=budget_s))
    store, until = RunStore(), time.monotonic() + 4 * budget_s  # most of it goes into starting and warming up
    aa_noise = store.noise(plan.device)
    count = pairs or pairs_for(aa_noise, precision)
    rule = replace(
        plan.preset,
        rounds=max(stats.MIN_ROUNDS, plan.preset.rounds),
        precision=stats.rounds_part(stats.half_width_per_pair(precision, count), aa_noise),
        part=part,
        budget_s=budget_s / count,
        limit_s=math.inf,
        ceiling=False,
    )
    sides = (a, b._replace(title=f"{b.title} (again)") if b.title == a.title else b)
    runs: list[Run] = []
    try:
        for number in range(count):
            if number >= stats.MIN_ROUNDS and time.monotonic() > until:
                break
            seeded, order = replace(plan, seed=plan.seed + number), -1 if number % 2 else 1
            server.restart()
            with progress.part(number, count), opened(seeded, progress, "a comparison") as source:
                titled = [(side.title, source.baseline().replace(**side.changes)) for side in sides[::order]]
                pair = source.measure(rungs.recipe_stages(titled, source.target), rule)[::order]
                if all(run.status == "ok" for run in pair):
                    runs = [runs[0], _with_pair(runs[1], *pair)] if runs else pair
                elif not runs or not source.stopped:
                    raise _failure(pair, store)
                if source.stopped:
                    break
    finally:
        for run in runs:
            store.add(run)
    return compare_stored(*runs)


def _failure(pair: Sequence[Run], store: RunStore) -> PerfkitError:
    """Why two runs cannot be compared; the one that failed is kept."""
    run = next(run for run in pair if run.status != "ok")
    if run.status == "cancelled":
        return Cancelled(f"stopped before {run.title} was measured")
    store.add(run)
    return PerfkitError(f"{run.title} could not be compared: {run.reason}", "Fix it, then try again")


def _with_pair(run: Run, a: Run, b: Run) -> Run:
    """The run of B with the rounds of a further pair of processes."""
    rounds = Rounds(b.raw.block_samples_per_s, a.raw.block_samples_per_s, b.raw.disturbed)
    further = [*run.pairings[0].further_pairs, rounds]  # both of its pairings are with A
    pairings = [structs.replace(pairing, further_pairs=further) for pairing in run.pairings]
    return structs.replace(run, pairings=pairings)


def compare_stored(a: Run, b: Run) -> Comparison:
    """Compares two runs with a rate that were measured already: interleaved if they are of one session."""
    first, second = _basis(a), _basis(b)
    if differing := [name for name in first if first[name] != second[name]]:
        raise InvalidValue(
            f"the runs differ in {differing[0]}: {first[differing[0]]} and {second[differing[0]]}",
            "Choose two runs of one workload on one device of one machine",
        )
    together = next((pairing for pairing in b.pairings if pairing.against == a.id), None)
    if together is None:
        band = math.hypot(a.simulated.band, b.simulated.band) if a.simulated and b.simulated else None
        together = Pairing(
            b.raw.block_samples_per_s,
            a.raw.block_samples_per_s,
            b.raw.disturbed,
            against=a.id,
            role="previous",
            interleaved=False,
            noise=RunStore().expected_noise(a.device, a.is_script),
            band=band,
        )
    return Comparison(a, b, together)


def _basis(run: Run) -> dict[str, Any]:
    """What must be the same in runs that are compared."""
    model = run.simulated
    return {
        "workload": run.workload,
        "options": run.options,
        "device": run.device,
        "machine": run.machine.get("id"),
        "simulation": model and (model.host, model.model, model.constants),
    }


def measure_noise(
    plan: Plan, pairs: int = 10, budget_s: float = 30.0, progress: Progress | None = None
) -> Comparison:
    """Compares a recipe with itself, in fresh processes each time, because equal processes differ too.

    What they differ by, beyond the scatter of their rounds, becomes this device's A/A noise. More rounds
    separate the two better. The budget of a pair is always spent: if it ended as soon as its rounds happen to
    lie close together, their scatter would be attributed to the processes. Stopped by a person, it gives and
    keeps the pairs until then.
    """
    progress = progress or Progress()
    plan.source(plan, progress).require("A/A noise")
    same = Candidate("A"), Candidate("A again")
    result = compare(*same, plan, budget_s * pairs, 0.0, pairs, progress=progress)
    sides = [pair.rates for pair in result.pairing.pairs]
    RunStore().add_noise(plan.device, [stats.aa_pair(*rates) for rates in sides if len(rates[0]) > 1])
    return result


# ---------------------------------------------------------------- several ranks


def efficiency(alone: Run, many: Run) -> float:
    """Scaling efficiency: samples/s of all ranks / (ranks × samples/s of one), 1 is perfect."""
    if not (alone.samples_per_s and many.samples_per_s) or alone.recipe.get("ranks", 1) > 1:
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
    exposed = min(1.0, measured.exposed_s / measured.alone_s) if measured.alone_s else 0.0

    def step_s(count: int) -> float:
        hops = 2 * (count - 1)
        return measured.compute_s + exposed * (hops * alpha + hops / count * measured.bytes_per_step / beta)

    return {count: measured.compute_s / step_s(count) for count in (1, 2, 4, 8, 16, 32, 64)}
