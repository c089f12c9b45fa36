"""Two recipes, interleaved until their ratio is known precisely enough, or two stored runs."""

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
from perfkit.recipe import Value, parse_settings
from perfkit.results import stats
from perfkit.results.run import Comparison, Pairing, Rounds, Run
from perfkit.results.store import RunStore, expected_noise, keep
from perfkit.studies import rungs, sources
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
    store: RunStore | None = None,
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
        store: keeps the runs, and has the A/A noise of the device; what it cannot keep is in its `lost`.
    """
    progress = progress or Progress()
    plan = replace(plan, preset=replace(plan.preset, budget_s=budget_s))
    until = time.monotonic() + 4 * budget_s  # most of it goes into starting and warming up
    aa_noise = store.noise(plan.device) if store else None
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
            with progress.part(number, count), opened(seeded, progress, "a comparison", store) as source:
                titled = [(side.title, source.baseline().replace(**side.changes)) for side in sides[::order]]
                pair = source.measure(rungs.recipe_stages(titled, source.target), rule)[::order]
                if all(run.status == "ok" for run in pair):
                    runs = [runs[0], _with_pair(runs[1], *pair)] if runs else pair
                elif not runs or not source.stopped:
                    raise _failure(pair, store)
                if source.stopped:
                    break
    finally:
        keep(store, *runs)
    first, second = runs
    return compare_stored(first, second, store)


def compare_named(a: str, b: str, plan: Plan | None = None, progress: Progress | None = None) -> Comparison:
    """Measures how many times as fast B is as A, stages or settings (`workers=2,amp=bf16`); stores both."""
    plan = plan or sources.plan()
    return compare(candidate(a, plan), candidate(b, plan), plan, progress=progress, store=RunStore())


def _failure(pair: Sequence[Run], store: RunStore | None) -> PerfkitError:
    """Why two runs cannot be compared; the one that failed is kept."""
    run = next(run for run in pair if run.status != "ok")
    if run.status == "cancelled":
        return Cancelled(f"stopped before {run.title} was measured")
    keep(store, run)
    return PerfkitError(f"{run.title} could not be compared: {run.reason}", "Fix it, then try again")


def _with_pair(run: Run, a: Run, b: Run) -> Run:
    """The run of B with the rounds of a further pair of processes."""
    rounds = Rounds(b.raw.block_samples_per_s, a.raw.block_samples_per_s, b.raw.disturbed)
    further = [*run.pairings[0].further_pairs, rounds]  # both of its pairings are with A
    pairings = [structs.replace(pairing, further_pairs=further) for pairing in run.pairings]
    return structs.replace(run, pairings=pairings)


def compare_stored(a: Run, b: Run, store: RunStore | None = None) -> Comparison:
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
        own, others = b.block_rates.tolist(), a.block_rates.tolist()
        # Each side without its own disturbed rounds; if either has too few others, so has the comparison.
        disturbances = [run.disturbed for run in (a, b) if run.disturbed is not None]
        together = Pairing(
            own,
            others,
            [max(disturbances)] * len(own) if disturbances else [],
            against=a.id,
            role="previous",
            interleaved=False,
            noise=_noise(a, b, store),
            band=band,
        )
    return Comparison(a, b, together)


def _noise(a: Run, b: Run, store: RunStore | None) -> float | None:
    """The largest of what the store expects on the device and what the runs' own comparisons allowed for."""
    known = [expected_noise(store.noise(a.device) if store else None, a.device)]
    known += [pairing.noise for run in (a, b) for pairing in run.pairings]
    return max((noise for noise in known if noise is not None), default=None)


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
