"""Two recipes, interleaved until their ratio is known precisely enough; two stored runs; several ranks."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from perfkit.errors import Cancelled, InvalidValue, PerfkitError
from perfkit.ladder.catalogue import LADDER, OPTIMIZATIONS
from perfkit.process import server
from perfkit.recipe import Recipe, Value, parse_settings
from perfkit.results import stats
from perfkit.results.run import Comparison, Pairing, Rounds, Run
from perfkit.results.store import RunStore
from perfkit.studies import rungs
from perfkit.studies.sources import Plan, Progress, Source, StopRule, opened

BUDGET_S = 90.0
PRECISION = 0.02
"""Half the width of the interval, as a fraction, at which measuring ends."""
MOST_PAIRS = 12
"""Pairs of processes, however much equal ones differ: each pair takes time to start."""


@dataclass(frozen=True)
class Candidate:
    """One side of a comparison."""

    title: str
    recipe: Recipe | None = None
    """None: what the source trains by itself."""
    changes: Mapping[str, Value] = field(default_factory=dict)
    """Switches that are set on top."""

    def on(self, source: Source) -> Recipe:
        """Its recipe where it is to run."""
        return (self.recipe or source.baseline()).replace(**self.changes)


def candidate(text: str, plan: Plan) -> Candidate:
    """One side: a stage of the ladder, or `switch=value,…` on top of the baseline."""
    if "=" in text:
        base = Recipe(batch_size=plan.preset.batch_size)
        return Candidate(text, base.replace(**parse_settings(text.split(","))))
    if text not in OPTIMIZATIONS:
        allowed = f"Allowed: a stage ({', '.join(LADDER)} …) or settings such as workers=2,amp=bf16"
        raise InvalidValue(f"cannot compare '{text}'", allowed)
    stage = rungs.acting(rungs.described(replace(plan, stages=(text,), below=True), load=True))
    return Candidate(stage.title, stage.recipe)


def pairs_for(noise: float | None, precision: float) -> int:
    """Pairs of processes to measure on a machine with this A/A noise of one pair; both are fractions.

    One pair if the noise is unknown or no more than the precision. Otherwise enough pairs that differences
    between processes make up at most half of the variance of an interval of that precision, and an even
    number, as either side starts first equally often.
    """
    if noise is None or precision <= 0 or noise <= precision:
        return 1
    enough = (
        count
        for count in range(stats.MIN_ROUNDS + 1, MOST_PAIRS, 2)
        if noise <= stats.half_width_per_pair(precision / math.sqrt(2), count)
    )
    return next(enough, MOST_PAIRS)


def target_half_width(precision: float, count: int, noise: float | None) -> float:
    """Half width that the rounds of each pair of processes are to reach; fractions.

    With several pairs it is the share of the variance that the A/A noise leaves, at least half of it.
    """
    if count == 1:
        return stats.rounds_part(precision, noise)
    of_processes = (noise or 0.0) / stats.half_width_per_pair(1.0, count)
    left = max(precision**2 - of_processes**2, precision**2 / 2)
    return stats.half_width_per_pair(math.sqrt(left), count)


def compare(
    a: Candidate,
    b: Candidate,
    plan: Plan,
    budget_s: float = BUDGET_S,
    precision: float = PRECISION,
    pairs: int | None = None,
    ceiling: bool = True,
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
        ceiling: whether steps on a held batch are measured too.
        part: a half width of this part of the effect is enough too (`stats.rounds_needed`).
        progress: follows and stops it.
    """
    progress = progress or Progress()
    plan = replace(plan, preset=replace(plan.preset, budget_s=budget_s))
    store, until = RunStore(), time.monotonic() + 4 * budget_s  # most of it goes into starting and warming up
    aa_noise = store.noise(plan.device)
    count = pairs or pairs_for(aa_noise, precision)
    rule = StopRule(
        max(stats.MIN_ROUNDS, plan.preset.rounds),
        precision=target_half_width(precision, count, aa_noise),
        part=part,
        budget_s=budget_s / count,
        ceiling=ceiling,
    )
    sides = (a, replace(b, title=f"{b.title} (again)") if b.title == a.title else b)
    runs: list[Run] = []
    try:
        for number in range(count):
            if number >= stats.MIN_ROUNDS and time.monotonic() > until:
                break
            is_swapped, seeded = number % 2 == 1, replace(plan, seed=plan.seed + number)
            server.restart()
            with progress.part(number, count), opened(seeded, progress, "a comparison") as source:
                order = sides[::-1] if is_swapped else sides
                titled = [(side.title, side.on(source)) for side in order]
                first, second = source.measure(rungs.recipe_stages(titled, source.target), rule)
                if not runs or not source.stopped:
                    _require_rounds(first, second, store)
                if not runs:
                    store.add(first)
                    runs = [first, second]
                    rule = replace(rule, ceiling=False)  # the first pair has measured it
                elif first.status == second.status == "ok":
                    runs[1] = _with_pair(runs[1], second.pairings[0], is_swapped)
                if source.stopped:
                    break
    finally:
        if runs:
            store.add(runs[1])
    return compare_stored(*runs)


def _require_rounds(first: Run, second: Run, store: RunStore) -> None:
    for run in (first, second):
        if run.status == "cancelled":
            raise Cancelled(f"stopped before {run.title} was measured")
        if run.status != "ok":
            store.add(run)
            raise PerfkitError(f"{run.title} could not be compared: {run.reason}", "Fix it, then try again")


def _with_pair(run: Run, further: Pairing, is_swapped: bool) -> Run:
    """The run with the rounds of a further pair of processes, in which its side may have started first."""
    sides = further.own_samples_per_s, further.other_samples_per_s
    rounds = Rounds(*(sides[::-1] if is_swapped else sides), further.disturbed)
    pairings = [
        msgspec.structs.replace(
            pairing,
            interleaved=pairing.interleaved and further.interleaved,
            further_pairs=[*pairing.further_pairs, rounds],
        )
        for pairing in run.pairings
    ]
    return msgspec.structs.replace(run, pairings=pairings)


def compare_stored(a: Run, b: Run) -> Comparison:
    """Compares two runs that were measured already: interleaved if they are of one session."""
    first, second = _basis(a), _basis(b)
    if differing := [name for name in first if first[name] != second[name]]:
        raise InvalidValue(
            f"the runs differ in {differing[0]}: {first[differing[0]]} and {second[differing[0]]}",
            "Choose two runs of one workload on one device of one machine",
        )
    rates, others = b.raw.block_samples_per_s, a.raw.block_samples_per_s
    if not rates or not others:
        what = "one of the runs holds no measurement"
        raise InvalidValue(what, "Choose one that ended well (perfkit runs)")
    together = next((pairing for pairing in b.pairings if pairing.against == a.id), None)
    if together is None:
        aa_noise, assumed = RunStore().expected_noise(a.device, a.is_script)
        band = math.hypot(a.simulated.band, b.simulated.band) if a.simulated and b.simulated else None
        together = Pairing(
            rates,
            others,
            b.raw.disturbed,
            against=a.id,
            role="previous",
            interleaved=False,
            noise=aa_noise,
            assumed=assumed,
            band=band,
        )
    return Comparison(a, b, together)


def _basis(run: Run) -> dict[str, Any]:
    """What must be the same in runs that are compared."""
    model = run.simulated
    basis = {name: getattr(run, name) for name in ("workload", "options", "device")}
    basis["machine"] = run.machine.get("id")
    basis["simulation"] = model and [model.host, model.model, model.constants]
    return basis


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
