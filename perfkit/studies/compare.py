"""Two recipes, measured in turn until their ratio is known well enough; or two stored runs."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from perfkit.errors import InvalidValue, PerfkitError
from perfkit.ladder.catalogue import LADDER, OPTIMIZATIONS
from perfkit.process import fork
from perfkit.program.recipe import Recipe, parse_settings
from perfkit.program.script import REFERENCE, is_script
from perfkit.results import noise, stats
from perfkit.results.comparison import Comparison
from perfkit.results.run import Pairing, Rounds, Run
from perfkit.results.store import RunStore
from perfkit.studies import engine

BUDGET_S = 90.0
NOISE_BUDGET_S = 30.0
"""For a pair of equal processes: with the preset's rounds alone, those scatter more than processes differ."""
PRECISION = 0.02
"""Half the width of the interval, as a fraction, at which measuring ends."""
MOST_PAIRS = 12
"""Of processes, however much equal ones differ: each pair takes its time to start."""

Side = tuple[str, Recipe | Path]
"""A title, and a recipe or an exported script."""


def side(text: str, plan: engine.Plan) -> tuple[str, Recipe]:
    """A side of a comparison by name.

    Args:
        text: a stage of the ladder, `switch=value,…` from the baseline up, or a stored run's id.
        plan: the workload and the machine.

    Raises:
        InvalidValue: none of these, or a stage that does not apply here.
    """
    if "=" in text:
        base = Recipe(batch_size=plan.preset.batch_size)
        return text, base.replace(**parse_settings(text.split(",")))
    if text in OPTIMIZATIONS:
        stages = engine.resolve(replace(plan, stages=(text,), below=True))[1]
        if stages[-1].reason:
            raise InvalidValue(f"stage '{text}' does not apply here: {stages[-1].reason}", "Choose another")
        return stages[-1].title, stages[-1].recipe
    try:
        found = RunStore().get(text)
    except InvalidValue:
        raise InvalidValue(
            f"'{text}' is no side of a comparison",
            f"Allowed: a stage ({', '.join(LADDER)} …), settings such as workers=2,amp=bf16, or the "
            "id of a run (perfkit runs)",
        ) from None
    if found.workload == REFERENCE:
        raise InvalidValue(f"run '{text}' is of a script", "Give the file itself, and another one as A or B")
    return found.title or found.id, Recipe.from_dict(found.recipe)


def sides(a: str, b: str, plan: engine.Plan) -> tuple[Side, Side]:
    """Both sides by name: two recipes (see `side`), or two exported scripts.

    Raises:
        InvalidValue: no such recipe or file, or one of each kind.
    """
    if is_script(a) != is_script(b):
        raise InvalidValue("one side is a script and the other is not", "Name two scripts, or none")
    if not is_script(a):
        return side(a, plan), side(b, plan)
    files = Path(a), Path(b)
    for file in files:
        if not file.is_file():
            raise InvalidValue(f"there is no file '{file}'", "Name a script that `perfkit export` wrote")
    names = (a, b) if files[0].name == files[1].name else (files[0].name, files[1].name)
    return (names[0], files[0]), (names[1], files[1])


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
        return precision
    of_processes = (noise or 0.0) / stats.half_width_per_pair(1.0, count)
    left = max(precision**2 - of_processes**2, precision**2 / 2)
    return stats.half_width_per_pair(math.sqrt(left), count)


def compare(
    a: Side,
    b: Side,
    plan: engine.Plan,
    budget_s: float = BUDGET_S,
    precision: float = PRECISION,
    pairs: int | None = None,
    on_progress: Callable[[engine.Progress], None] = lambda progress: None,
    cancelled: threading.Event | None = None,
) -> Comparison:
    """Measures two sides in turn, in two processes: at least 5 rounds, more until the interval is narrow.

    Equal processes differ for as long as they live, as memory and code come to lie elsewhere in each. Where
    that is more than `precision`, several pairs of fresh processes are measured instead, one after the other,
    each from a fork server of its own, with either side started first in turn, and each for as long as its
    share of the precision takes.

    Args:
        a: what is compared with.
        b: what is compared; of the same kind. A script is run as it stands now, with its own workload.
        plan: workload, preset, device, seed.
        budget_s: seconds of rounds, those of the preset at least; of all pairs together. Once four times that
            has gone by, with what it takes to start them, five pairs are enough.
        precision: half width of the interval / ratio at which measuring ends.
        pairs: of processes; None: as many as this machine's A/A noise calls for.
        on_progress: called often, from this thread.
        cancelled: set it from any thread to stop.

    Raises:
        PerfkitError: a side could not be measured.
    """
    size = replace(plan.preset, rounds=max(stats.MIN_ROUNDS, plan.preset.rounds))
    titles = (a[0], b[0] if b[0] != a[0] else f"{b[0]} (again)")
    whats = (a[1], b[1])
    known = noise.load(plan.device)
    count = pairs or pairs_for(known, precision)
    asked = replace(
        plan, preset=size,
        precision=target_half_width(precision, count, known), budget_s=budget_s / count,
        recipes=tuple(
            (title, what if isinstance(what, Recipe) else Recipe())
            for title, what in zip(titles, whats, strict=True)
        ),
        files=tuple(str(what.absolute()) for what in whats if isinstance(what, Path)),
    )  # fmt: skip
    found: list[Comparison] = []
    until = time.monotonic() + 4 * budget_s  # most of it goes into starting and warming up
    for number in range(count):
        if number >= stats.MIN_ROUNDS and time.monotonic() > until:
            break
        fork.restart()

        def tell(of_pair: engine.Progress, before: int = number) -> None:
            on_progress(replace(of_pair, fraction=(before + of_pair.fraction) / count))

        found.append(_pair(asked, None if found else RunStore(), tell, cancelled))
        # The first pair's runs tell all there is to tell of both sides; the others are there for their ratio.
        # Each has the sides in another order (of equal ones, that which starts last was seen to be faster by
        # 1.6%), and another order of data and of blocks: what those do to a ratio averages out.
        asked = replace(
            asked, rates_only=found[0].interleaved, seed=plan.seed + len(found),
            recipes=asked.recipes[::-1], files=asked.files[::-1],
        )  # fmt: skip
    return found[0] if len(found) == 1 else _pooled(found)


def _pair(
    asked: engine.Plan,
    store: RunStore | None,
    on_progress: Callable[[engine.Progress], None],
    cancelled: threading.Event | None,
) -> Comparison:
    """One pair of fresh processes."""
    runs = engine.climb(asked, store, on_progress, cancelled)
    for run in runs:
        if run.status != "ok":
            raise PerfkitError(f"{run.title} could not be compared: {run.reason}", "Mend it, then try again")
    return compare_stored(runs[0], runs[-1])


def _pooled(found: list[Comparison]) -> Comparison:
    """All pairs of processes as one comparison; in every other one A and B are exchanged."""
    first = found[0]
    further = [_rounds(one, exchanged=number % 2 == 1) for number, one in enumerate(found)][1:]
    interleaved = all(one.interleaved for one in found)
    pairing = msgspec.structs.replace(first.pairing, further_pairs=further, interleaved=interleaved)
    return Comparison(first.a, first.b, pairing)


def _rounds(of: Comparison, exchanged: bool = False) -> Rounds:
    (rounds,) = of.pairing.pairs
    return Rounds(rounds.other_samples_per_s, rounds.own_samples_per_s) if exchanged else rounds


def compare_stored(a: Run, b: Run) -> Comparison:
    """Compares two runs that were measured already; their rounds were interleaved if they are of one session.

    Raises:
        InvalidValue: they are of different machines, devices or workloads, or were not measured.
    """
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
    return Comparison(a, b, together or Pairing(a.id, "previous", False, own, other, noise.load(a.device)))


def measure_noise(
    plan: engine.Plan,
    pairs: int = 10,
    budget_s: float = NOISE_BUDGET_S,
    on_progress: Callable[[engine.Progress], None] = lambda progress: None,
) -> list[Comparison]:
    """A recipe against itself, in fresh processes each time, as equal processes differ too.

    What they differ by beyond the scatter of their rounds becomes this device's A/A noise. The more rounds,
    the less of that scatter is mistaken for a difference.

    Args:
        plan: workload, preset, device.
        pairs: of fresh processes.
        budget_s: seconds for the rounds of a pair; all of them, as a pair that ends when its rounds happen to
            lie close together would have its scatter put down to the processes.
        on_progress: called often, from this thread.

    Raises:
        PerfkitError: the recipe could not be measured.
    """
    recipe = Recipe(batch_size=plan.preset.batch_size)
    sides = ("A", recipe), ("A again", recipe)
    found = [
        compare(*sides, replace(plan, seed=seed), budget_s, 0.0, pairs=1, on_progress=on_progress)
        for seed in range(plan.seed, plan.seed + pairs)
    ]
    noise.save(plan.device, stats.aa_noise_bound([_rounds(one).rates for one in found]))
    return found
