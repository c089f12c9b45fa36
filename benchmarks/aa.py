"""How narrow, how repeatable and how often wrong: the same sides measured again and again.

    python -m benchmarks.aa [--repeats 10] [--budget 120] [--noise] [--equal | --spread]

Each repetition measures a baseline of `photos` with itself, with channels_last, with a larger batch and with
a loader worker, all in fresh processes. Targets: nine of ten intervals hold the mean of all repetitions, at
most 5% of equal sides are called faster or slower. With --noise a program takes a core in bursts; with
--equal all sides are equal. With --spread there are several kinds of pairs, and it says how far each differs
from one generation of processes to the next: what `stats.usual_spread` should know.
"""

import argparse
import contextlib
import dataclasses
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np

import perfkit
from perfkit.ladder.catalogue import Budget, Goal, Stage
from perfkit.process import zygote
from perfkit.recipe import Value
from perfkit.results import stats
from perfkit.results.run import Run

Sides = dict[str, dict[str, Value]]  # titles, and the switches that differ

WORKER: dict[str, Value] = {"workers": 1, "cpu_threads": 1, "wait_policy": "passive"}
KINDS: Sides = {
    "plain": {},
    "plain again": {},
    "channels_last": {"channels_last": True},
    "worker": WORKER,
    "worker again": WORKER,
    "worker and uint8": {**WORKER, "uint8_copy": True},
}
PAIRS = (
    ("plain again", "plain"),
    ("channels_last", "plain"),
    ("worker", "plain"),
    ("worker again", "worker"),
    ("worker and uint8", "worker"),
)
BURST_S, PAUSE_S = 1.5, 2.0
"""On average: other people's programs take about 43% of a core."""
SIDES: Sides = {
    "baseline": {},
    "again": {},
    "channels_last": {"channels_last": True},
    "batch of 64": {"batch_size": 64},
    "worker": WORKER,
}


def disturb() -> None:
    """Keeps a core busy in bursts, without an end."""
    while True:
        until = time.monotonic() + random.expovariate(1 / BURST_S)
        while time.monotonic() < until:
            pass
        time.sleep(random.expovariate(1 / PAUSE_S))


@contextlib.contextmanager
def room(noisy: bool) -> Iterator[None]:
    """A noisy room, or the machine as it is."""
    if not noisy:
        yield
        return
    command = [sys.executable, "-c", "from benchmarks.aa import disturb; disturb()"]
    with subprocess.Popen(command) as disturber:
        try:
            yield
        finally:
            disturber.kill()


def measured(sides: Sides, budget_s: float, precision: float) -> list[Run]:
    """All sides in one group, from new zygotes."""
    for known in list(zygote._zygotes.values()):
        known.close()
    plan = perfkit.plan("photos", "quick", ["baseline"], device="cpu")
    with plan.open() as session:
        base = session.source.baseline()
        stages = [Stage(title, title, base.replace(**change)) for title, change in sides.items()]
        rule = dataclasses.replace(
            plan.rule, budget=Budget(1e9, budget_s), goal=Goal(precision) if precision else None, cached=0
        )
        return session.measure(stages, rule)


def print_spread(runs: list[Run]) -> None:
    """For each kind of pair: the mean of each generation, how they scatter, and what their rounds explain."""
    rates = {run.title: np.log(run.raw.block_samples_per_s) for run in runs}
    ends = np.cumsum(runs[0].raw.sizes)[:-1]
    counts = np.split(stats.weights(runs[0].raw.disturbed, sum(runs[0].raw.sizes)), ends)
    for own, other in PAIRS:
        means, explained = [], []
        for logs, count in zip(np.split(rates[own] - rates[other], ends), counts, strict=True):
            mean = float(np.average(logs, weights=count))
            means.append(mean)
            explained.append(float(count @ (logs - mean) ** 2) / count.sum() / (len(logs) - 1))
        ratios = " ".join(f"{math.exp(mean):.3f}" for mean in means)
        print(
            f"{own} / {other}: {ratios}; differ by {np.std(means, ddof=1):.1%}, "
            f"their rounds explain {math.sqrt(np.mean(explained)):.1%}"
        )


def main() -> None:
    """Prints a line for each repetition, then what all of them say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--budget", type=float, default=120.0, help="seconds for all sides of a repetition")
    parser.add_argument("--precision", type=float, default=0.0)
    parser.add_argument("--noise", action="store_true")
    parser.add_argument("--equal", action="store_true")
    parser.add_argument("--spread", action="store_true")
    options = parser.parse_args()
    if options.spread:
        with room(options.noise):
            print_spread(measured(KINDS, options.budget, precision=0.0))
        return
    equal: Sides = {f"side {number}": {} for number in range(4)}
    sides = equal if options.equal else SIDES
    found: dict[str, list[tuple[float, float, float]]] = {}
    verdicts: dict[str, int] = {}
    with room(options.noise):
        for number in range(options.repeats):
            started = time.monotonic()
            runs = measured(sides, options.budget, options.precision)
            words = []
            for at, run in enumerate(runs[1:], 1):
                role = "previous" if options.equal and at % 2 else "baseline"
                ratio = run.speedup(role)
                if ratio is None or (options.equal and at == 2):
                    continue
                if options.equal and at == 3:
                    ratio = run.speedup("previous")
                assert ratio
                found.setdefault(run.title, []).append((ratio.ratio, ratio.low, ratio.high))
                verdicts[ratio.verdict] = verdicts.get(ratio.verdict, 0) + 1
                words.append(
                    f"{run.title} {ratio.ratio:.3f} ({ratio.low:.3f}–{ratio.high:.3f}) {ratio.verdict}"
                )
            taken = statistics.fmean(runs[0].raw.disturbed)
            about = f"{len(runs[0].raw.incarnations)} incarnations, {len(runs[0].raw.disturbed)} rounds"
            print(
                f"{number + 1}: {time.monotonic() - started:.0f} s, {about}, {taken:.0%} taken: "
                + "; ".join(words),
                flush=True,
            )
    for title, values in found.items():
        mean = math.exp(statistics.fmean(math.log(value) for value, _, _ in values))
        held = sum(low <= mean <= high for _, low, high in values)
        half = statistics.median((high - low) / 2 / value for value, low, high in values)
        print(f"{title}: mean {mean:.3f}, held by {held} of {len(values)}, half width {half:.1%} (median)")
    print(verdicts)


if __name__ == "__main__":
    main()
