"""A recipe against itself, and against a slower one, many times: false verdicts, power, interval.

    python benchmarks/aa_and_power.py [--comparisons 100] [--budget 90] [--processes 12] [--slower 0 0.03 0.05]

Targets: at most 5 of 100 A/A verdicts other than "no measurable difference"; an injected slow-down of 5%
found in at least 90 of 100 (3% is reported); half the interval's width at most 3%. Each comparison is what
`perfkit compare` does: blocks in turn in random order, at least 5 rounds, more until the interval is narrow
enough or the budget (seconds) is spent, and the A/A noise of this machine, from
pairs of other processes, in the verdict. Each side is a random one of several processes, as equal processes
differ too; they stay alive from one comparison to the next, to save their start.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

import numpy as np

from perfkit import statistics
from perfkit.compare import BUDGET_S, NOISE_BUDGET_S, PRECISION
from perfkit.recipe import Recipe
from perfkit.runner import Child
from perfkit.statistics import Ratio, Values

SAMPLES = 32 * 6


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


def rounds(
    a: Child, b: Child, budget_s: float, shuffler: random.Random, precision: float = PRECISION
) -> tuple[Values, Values]:
    """Rates of b and a in turn, until their ratio is known well enough or the budget is spent."""
    own: list[float] = []
    other: list[float] = []
    until = time.monotonic() + budget_s
    while True:
        order = [(a, other), (b, own)]
        shuffler.shuffle(order)
        for side, rates in order:
            rates.append(rate(side))
        found = statistics.ratio(np.array(own), np.array(other), paired=True)
        narrow = statistics.narrow_enough(found, len(own), precision)
        if len(own) >= statistics.MIN_ROUNDS and (narrow or time.monotonic() > until):
            return np.array(own), np.array(other)


def compared(a: Child, b: Child, budget_s: float, shuffler: random.Random, noise: float) -> Ratio:
    """One comparison of b with a."""
    return statistics.ratio(*rounds(a, b, budget_s, shuffler), paired=True, noise=noise)


def aa_noise(processes: list[Child], budget_s: float, shuffler: random.Random) -> float:
    """As `perfkit noise`, from pairs of processes."""
    pairs = zip(processes[::2], processes[1::2], strict=False)
    found = [rounds(a, b, budget_s, shuffler, 0.0) for a, b in pairs]
    for own, other in found:
        one = statistics.ratio(own, other, paired=True)
        print(f"  {one.ratio:.3f} ({one.low:.3f}-{one.high:.3f}), {own.size} rounds", flush=True)
    return statistics.between_processes(found)


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--comparisons", type=int, default=100)
    parser.add_argument("--budget", type=float, default=BUDGET_S)
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--slower", type=float, nargs="+", default=[0.0, 0.03, 0.05])
    given = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    shuffler = random.Random(0)
    plain = [child() for _ in range(given.processes)]
    noise = aa_noise(plain, NOISE_BUDGET_S, shuffler)
    step_s = 32 / np.median([rate(plain[0]) for _ in range(9)])
    print(f"a step takes {1e3 * step_s:.2f} ms, {SAMPLES // 32} a block; A/A noise {noise:.1%}", flush=True)
    for one in plain[::2]:
        one.stop()
    plain = plain[1::2]
    for slower in given.slower:
        others = [child(slower * step_s) for _ in range(given.processes // 2)]
        found = [
            compared(shuffler.choice(plain), shuffler.choice(others), given.budget, shuffler, noise)
            for _ in range(given.comparisons)
        ]
        for one in others:
            one.stop()
        count = sum(one.verdict == "slower" for one in found)
        faster = sum(one.verdict == "faster" for one in found)
        widths = [(one.high - one.low) / 2 / one.ratio for one in found]
        print(
            f"{slower:.0%} slower: {count} verdicts 'slower', {faster} 'faster' of {len(found)}; "
            f"median ratio {np.median([one.ratio for one in found]):.3f}; "
            f"half width median {np.median(widths):.1%}, 90th percentile {np.percentile(widths, 90):.1%}",
            flush=True,
        )
    for one in plain:
        one.stop()


if __name__ == "__main__":
    main()
