"""A recipe against itself, and against a slower one, many times: false verdicts, power, interval.

    python benchmarks/aa_and_power.py [--comparisons 100] [--budget 90] [--pool 12] [--noise X]
        [--slower 0 0.05]

Targets: at most 5 of 100 A/A verdicts other than "no measurable difference"; an injected slow-down of 5%
found in at least 90 of 100 (3% is reported); half the interval's width at most 3%.

Each comparison is what `perfkit compare` does: blocks in turn in random order until the interval is narrow
enough or the budget (seconds) is spent, of one pair of processes or of several, as the A/A noise of this
machine calls for, which is measured first as `perfkit noise` does. To save time, the processes are not fresh
each time: they come from a pool of groups, each of a fork server of its own, with a process for each
slow-down; the oldest group is replaced after every fourth comparison. All slow-downs are measured in one turn
with the same rounds of A; each ends with its own round.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from perfkit import forkserver, statistics
from perfkit.compare import BUDGET_S, MOST_PAIRS, NOISE_BUDGET_S, PRECISION, pairs_for, precision_of
from perfkit.recipe import Recipe
from perfkit.runner import Child
from perfkit.statistics import Ratio, Values

BATCH = 32
SAMPLES = BATCH * 4


def child(extra_s: float = 0.0) -> Child:
    """A warm child whose step is slower by `extra_s`."""
    made = Child()
    made.ask("describe", workload="slowed:Slowed", preset="quick", options={"extra_s": extra_s}, device="cpu")
    recipe = Recipe(cpu_threads=1).to_dict()
    made.ask("train", recipe=recipe, seed=0, loss_steps=4, warmup_s=2, started=made.started)
    return made


def rate(of: Child) -> float:
    """samples/s of one block."""
    return float(of.ask("block", samples=SAMPLES, settle=True)["samples_per_s"])


def groups(count: int, extras_s: Sequence[float]) -> list[list[Child]]:
    """As many groups of warm children, one for each slow-down, each group from a fork server of its own."""
    made = []
    for _ in range(count):
        forkserver.renew()
        with ThreadPoolExecutor(2) as starting:
            made.append(list(starting.map(child, extras_s)))
    return made


def stop(all_of: list[list[Child]]) -> None:
    """Ends children."""
    for group in all_of:
        for one in group:
            one.stop()


def rounds(sides: Sequence[Child], shuffler: random.Random) -> Iterator[Values]:
    """Rates (sides, rounds), after each further round in random order."""
    rates: list[list[float]] = [[] for _ in sides]
    while True:
        order = list(zip(sides, rates, strict=True))
        shuffler.shuffle(order)
        for side, own in order:
            own.append(rate(side))
        yield np.array(rates)


def until_narrow(
    sides: Sequence[Child], shuffler: random.Random, budget_s: float, precision: float
) -> list[tuple[Values, Values]]:
    """The rates of each other side and of the first, as they were when that ratio was narrow enough."""
    # The budget is of two sides in turn.
    until = time.monotonic() + budget_s * len(sides) / 2
    found: dict[int, tuple[Values, Values]] = {}
    for rates in rounds(sides, shuffler):
        first, *others = rates
        late = time.monotonic() > until
        for side, own in enumerate(others):
            one = statistics.ratio(own, first, paired=True)
            done = late or statistics.narrow_enough(one, own.size, precision)
            if done and side not in found and own.size >= statistics.MIN_ROUNDS:
                found[side] = own, first
        if len(found) == len(others):
            break
    return [found[side] for side in sorted(found)]


def compared(drawn: list[list[Child]], budget_s: float, shuffler: random.Random, noise: float) -> list[Ratio]:
    """One comparison of each slow-down with none, over some groups."""
    count = len(drawn)
    precision = precision_of(PRECISION, count)
    found = [until_narrow(sides, shuffler, budget_s / count, precision) for sides in drawn]
    if count == 1:
        return [statistics.ratio(own, first, paired=True, noise=noise) for own, first in found[0]]
    return [statistics.ratio_over_pairs(pairs, noise=noise) for pairs in zip(*found, strict=True)]


def aa_noise(pairs: list[list[Child]], shuffler: random.Random) -> float:
    """As `perfkit noise`, from pairs of processes."""
    found = []
    for pair in pairs:
        until = time.monotonic() + NOISE_BUDGET_S
        turns = rounds(pair, shuffler)
        other, own = next(turns)
        while own.size < statistics.MIN_ROUNDS or time.monotonic() < until:
            other, own = next(turns)
        found.append((own, other))
        one = statistics.ratio(own, other, paired=True)
        print(f"  {one.ratio:.3f} ({one.low:.3f}-{one.high:.3f}), {own.size} rounds", flush=True)
    return statistics.between_processes(found)


def tell(slower: float, found: list[Ratio]) -> None:
    """One line on the comparisons of a slow-down."""
    widths = [one.half_width for one in found]
    verdicts = [one.verdict for one in found]
    print(
        f"{slower:.0%} slower: {verdicts.count('slower')} verdicts 'slower', {verdicts.count('faster')} "
        f"'faster' of {len(found)}; median ratio {np.median([one.ratio for one in found]):.3f}; "
        f"half width median {np.median(widths):.1%}, 90th percentile {np.percentile(widths, 90):.1%}",
        flush=True,
    )


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--comparisons", type=int, default=100)
    parser.add_argument("--budget", type=float, default=BUDGET_S)
    parser.add_argument("--pool", type=int, default=MOST_PAIRS)
    parser.add_argument("--noise", type=float, help="A/A noise where it is known already, a fraction")
    parser.add_argument("--slower", type=float, nargs="+", default=[0.0, 0.05])
    given = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    shuffler = random.Random(0)
    plain = groups(10, (0.0, 0.0))
    noise = aa_noise(plain, shuffler) if given.noise is None else given.noise
    step_s = BATCH / np.median([rate(one) for pair in plain for one in pair for _ in range(3)])
    stop(plain)
    extras_s = [slower * step_s for slower in (0.0, *given.slower)]
    pool = groups(given.pool, extras_s)
    count = pairs_for(noise, PRECISION)
    print(
        f"a step takes {1e3 * step_s:.2f} ms, {SAMPLES // BATCH} a block; A/A noise {noise:.1%}: "
        f"{count} pairs of processes a comparison",
        flush=True,
    )
    found: list[list[Ratio]] = []
    for number in range(given.comparisons):
        found.append(compared(shuffler.sample(pool, count), given.budget, shuffler, noise))
        if number % 4 == 3:  # the oldest gives way
            stop([pool.pop(0)])
            pool += groups(1, extras_s)
        if number % 10 == 9 or number + 1 == given.comparisons:
            print(f"after {number + 1}:", flush=True)
            for slower, of_one in zip(given.slower, zip(*found, strict=True), strict=True):
                tell(slower, list(of_one))
    stop(pool)


if __name__ == "__main__":
    main()
