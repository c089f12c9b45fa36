"""Two recipes, interleaved until their ratio is known precisely enough; or two stored runs."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Unpack

import msgspec

from perfkit.errors import InvalidValue, PerfkitError
from perfkit.ladder.catalogue import LADDER, OPTIMIZATIONS
from perfkit.process import server
from perfkit.recipe import Recipe, Value, parse_settings
from perfkit.results import noise, stats
from perfkit.results.comparison import Comparison
from perfkit.results.run import Pairing, Rounds, Run
from perfkit.results.simulated import refuse, same_basis
from perfkit.results.store import RunStore
from perfkit.rules import Target
from perfkit.scripts.launch import Launch
from perfkit.simulate import bands
from perfkit.simulate.gpus import gpu_of
from perfkit.simulate.study import compute
from perfkit.studies.engine import Schedule, Trial, measure
from perfkit.studies.ladder import acting, recipe_stages, resolve
from perfkit.studies.plan import Plan, Progress, Watch
from perfkit.studies.setup import prepare

BUDGET_S = 90.0
NOISE_BUDGET_S = 30.0
"""For a pair of equal processes: the rounds of a preset alone scatter more than the processes differ."""
PRECISION = 0.02
"""Half the width of the interval, as a fraction, at which measuring ends."""
MOST_PAIRS = 12
"""Of processes, however much equal ones differ: each pair takes time to start."""


_BASELINE = Recipe()


@dataclass(frozen=True)
class Candidate:
    """One side of a comparison."""

    title: str
    recipe: Recipe = _BASELINE
    changes: Mapping[str, Value] = field(default_factory=dict)
    """Of a user's script: the switches that are set from outside, on top of its own settings."""
    launch: Launch | None = None
    """Another user's script than the plan's."""

    def on(self, target: Target) -> Recipe:
        """Its recipe where it is to run: a script keeps its own settings."""
        return self.recipe.replace(**{**target.own, **self.changes})


def candidate(text: str, plan: Plan) -> Candidate:
    """One side: a stage of the ladder, `switch=value,…` on top of the baseline, or a stored run by its id.

    Raises:
        InvalidValue: none of these, or a stage that does not apply here.
    """
    if "=" in text:
        base = Recipe(batch_size=plan.preset.batch_size)
        return Candidate(text, base.replace(**parse_settings(text.split(","))))
    if text in OPTIMIZATIONS:
        stage = acting(resolve(replace(plan, stages=(text,), below=True))[1][-1])
        return Candidate(stage.title, stage.recipe)
    try:
        run = RunStore().get(text)
    except InvalidValue:
        raise InvalidValue(
            f"cannot compare '{text}'",
            f"Allowed: a stage ({', '.join(LADDER)} …), settings such as workers=2,amp=bf16, or the "
            "id of a run (perfkit runs)",
        ) from None
    if run.is_script:
        raise InvalidValue(f"run '{text}' is of a script", "Give the file itself, and another one as A or B")
    return Candidate(run.title or run.id, Recipe.from_dict(run.recipe))


def pairs_for(noise: float | None, precision: float) -> int:
    """Pairs of processes to measure on a machine with this A/A noise of one pair; both are fractions.

    One pair where the noise is unknown or no more than the precision. Otherwise enough pairs that differences
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
    **watch: Unpack[Watch],
) -> Comparison:
    """Measures two sides interleaved, in two processes: at least 5 rounds, more until the interval is narrow.

    Equal processes differ for as long as they live, because memory and code lie elsewhere in each. Where they
    differ by more than `precision`, several pairs of fresh processes are measured one after the other, each
    from a fork server of its own. Either side starts first equally often (of equal processes, the one that
    starts last was seen to be faster by 1.6%), and each pair has another order of data and blocks, so that
    the effects of both average out.

    Args:
        a: what is compared with.
        b: what is compared; of the same kind.
        plan: workload, preset, device, seed.
        budget_s: seconds of rounds, those of the preset at least; of all pairs together. After four times as
            long, with the time to start them, five pairs are enough.
        precision: half width of the interval / ratio at which measuring ends.
        pairs: of processes; None: as many as this machine's A/A noise calls for.
        ceiling: whether steps on a held batch are measured too.
        part: of the effect, at which half of the interval is narrow enough too (`stats.rounds_needed`).
        watch: `on_progress` and `cancelled`.

    Raises:
        PerfkitError: a side could not be measured.
    """
    aa_noise = noise.load(plan.device)
    count = 1 if plan.gpu else pairs or pairs_for(aa_noise, precision)
    preset = replace(plan.preset, rounds=max(stats.MIN_ROUNDS, plan.preset.rounds))
    half_width = target_half_width(precision, count, aa_noise)
    schedule = Schedule(preset, ceiling=ceiling, precision=half_width, part=part, budget_s=budget_s / count)
    sides = (a, replace(b, title=f"{b.title} (again)") if b.title == a.title else b)
    runs: list[Run] = []
    store, until = RunStore(), time.monotonic() + 4 * budget_s  # most of it goes into starting and warming up
    try:
        for number in range(count):
            if number >= stats.MIN_ROUNDS and time.monotonic() > until:
                break

            def tell(progress: Progress, before: int = number) -> None:
                if "on_progress" in watch:
                    watch["on_progress"](replace(progress, fraction=(before + progress.fraction) / count))

            follow = Watch(on_progress=tell, cancelled=watch.get("cancelled"))
            exchanged, seeded = number % 2 == 1, replace(plan, seed=plan.seed + number)
            order, keeps = sides[::-1] if exchanged else sides, None if runs else store
            first, second = _measure_pair(order, seeded, schedule, keeps, **follow)
            if runs:
                runs[1] = _with_pair(runs[1], second.pairings[0], exchanged)
            else:
                runs = [first, second]
                schedule = replace(schedule, ceiling=False)  # the first pair has measured it
    finally:
        if runs:
            store.add(runs[1])
    return compare_stored(*runs)


def _measure_pair(
    sides: tuple[Candidate, Candidate],
    plan: Plan,
    schedule: Schedule,
    store: RunStore | None,
    **watch: Unpack[Watch],
) -> tuple[Run, Run]:
    """Both sides in a pair of fresh processes; the second one is left for the caller to store."""
    runs: list[Run] = []
    server.restart()
    with prepare(plan, **watch) as setup:
        stages = recipe_stages([(side.title, side.on(setup.target)) for side in sides], setup.target)
        trials = (
            Trial(stage, 2, side.launch or plan.workload) for stage, side in zip(stages, sides, strict=True)
        )
        virtual = compute(stages, setup, 2, None, []) if plan.host else None
        for run in virtual or measure(trials, setup, schedule):
            if store and (run.status != "ok" or not runs):
                store.add(run)
            if run.status != "ok":
                raise PerfkitError(
                    f"{run.title} could not be compared: {run.reason}", "Fix it, then try again"
                )
            runs.append(run)
    return runs[0], runs[1]


def _with_pair(run: Run, further: Pairing, exchanged: bool) -> Run:
    """The run with the rounds of a further pair of processes; `exchanged` if the run's side started first."""
    sides = further.own_samples_per_s, further.other_samples_per_s
    rounds = Rounds(*(sides[::-1] if exchanged else sides), further.disturbed)
    pairings = [
        msgspec.structs.replace(
            one,
            interleaved=one.interleaved and further.interleaved,
            further_pairs=[*one.further_pairs, rounds],
        )
        for one in run.pairings
    ]
    return msgspec.structs.replace(run, pairings=pairings)


def compare_stored(a: Run, b: Run) -> Comparison:
    """Compares two runs that were measured already; their rounds were interleaved if they are of one session.

    Raises:
        InvalidValue: they are of different machines, devices or workloads, or were not measured.
    """
    same_basis(a.simulated, b.simulated)
    for name in ("workload", "options", "device"):
        if getattr(a, name) != getattr(b, name):
            raise InvalidValue(
                f"the runs differ in {name}: {getattr(a, name)} and {getattr(b, name)}",
                "Choose two runs of one workload on one device",
            )
    if a.machine.get("id") != b.machine.get("id"):
        raise InvalidValue("the runs are of different machines", "Measure both on one")
    own, other = b.raw.block_samples_per_s, a.raw.block_samples_per_s
    if not own or not other:
        raise InvalidValue(
            "one of the runs holds no measurement", "Choose one that ended well (perfkit runs)"
        )
    together = next((pairing for pairing in b.pairings if pairing.against == a.id), None)
    aa_noise, assumed = noise.expected(a.device, a.is_script)
    apart = Pairing(
        own, other, b.raw.disturbed, against=a.id, role="previous", interleaved=False,
        noise=aa_noise, assumed=assumed, band=_band(a, b),
        computed=bool(a.simulated and a.simulated.is_virtual),
    )  # fmt: skip
    return Comparison(a, b, together or apart)


def _band(a: Run, b: Run) -> float | None:
    """The model's error of the ratio of two simulated runs."""
    gpu = gpu_of(a.device)
    if not gpu:
        return None
    sides = [(Recipe.from_dict(run.recipe), run.utilization or 1.0) for run in (b, a)]
    return bands.of_ratio(gpu, *sides)


def measure_noise(
    plan: Plan,
    pairs: int = 10,
    budget_s: float = NOISE_BUDGET_S,
    **watch: Unpack[Watch],
) -> list[Comparison]:
    """Compares a recipe with itself, in fresh processes each time, because equal processes differ too.

    What they differ by, beyond the scatter of their rounds, becomes this device's A/A noise. More rounds
    separate the two better.

    Args:
        plan: workload, preset, device.
        pairs: of fresh processes.
        budget_s: seconds for the rounds of a pair. It is always spent: if a pair ended as soon as its rounds
            happen to lie close together, their scatter would be attributed to the processes.
        watch: `on_progress` and `cancelled`.

    Raises:
        PerfkitError: the recipe could not be measured.
    """
    refuse(plan.device, "A/A noise", "two simulated runs differ by what this machine's loader does")
    recipe = Recipe(batch_size=plan.preset.batch_size)
    same = Candidate("A", recipe), Candidate("A again", recipe)
    comparisons = [
        compare(*same, replace(plan, seed=seed), budget_s, 0.0, pairs=1, **watch)
        for seed in range(plan.seed, plan.seed + pairs)
    ]
    sides = [comparison.pairing.pairs[0].rates for comparison in comparisons]
    noise.add(plan.device, [stats.aa_pair(*rates) for rates in sides])
    return comparisons
