"""A recipe against itself, and against slower ones, many times: false verdicts, power, interval.

    python benchmarks/aa_and_power.py [--groups 150] [--rounds 20] [--slower 0 0.03 0.05] [--file FILE]
        [--comparisons 100] [--pairs 5 8 12]
    python benchmarks/aa_and_power.py --ladders 10 [--stages 10] [--limit 100]

Targets: at most 5 of 100 A/A verdicts other than "no measurable difference"; an injected slow-down of 5%
found in at least 90 of 100 (3% is reported); half the interval's width at most 3%.

`perfkit compare` measures fresh processes, so a hundred comparisons of a dozen pairs would take half a day.
Instead, the rounds of many groups of processes are recorded, one group after the other. Each group has a
fork server of its own, with one process that is not slowed down and one for each slow-down, interleaved in
random order. Each comparison then draws its groups from these and continues as `perfkit compare` does:
rounds until the interval is narrow enough or the budget is used up, ratio and verdict over the groups. The
first comparisons share no group with each other, as many as there are; another hundred draw from all
groups. Each finished group is written to the file, so you can stop a run and continue it later. The median
ratio shows what was measured for a slow-down.

With `--ladders`, whole ladders of stages that do nothing are measured as `perfkit run` measures them. The
noise that verdicts rest on is learned from the A/A rows of these ladders alone, from nothing. Target: at most
5 of 100 stages that do nothing are called faster or slower, against the previous stage and the baseline.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from perfkit.ladder.stages import AGAIN
from perfkit.process import server
from perfkit.process.child import Child
from perfkit.recipe import Recipe
from perfkit.results import noise, stats
from perfkit.results.run import Run
from perfkit.results.stats import Ratio, Values
from perfkit.studies import plan as plans
from perfkit.studies.climb import climb
from perfkit.studies.compare import BUDGET_S, PRECISION, pairs_for, target_half_width
from perfkit.worker.messages import Block, Description, Trained

BATCH = 32
SAMPLES = BATCH * 4


class Group(NamedTuple):
    """What was measured of processes from one fork server."""

    rates: Values
    """samples/s (sides, rounds); the first side is not slowed down."""
    round_s: float
    """Seconds that a round of two sides takes."""


def child(extra_s: float = 0.0) -> Child:
    """A warm child whose step is slower by `extra_s`."""
    made = Child()
    where = {"workload": "slowed:Slowed", "preset": "quick", "options": {"extra_s": extra_s}, "device": "cpu"}
    made.ask("describe", Description, **where)
    recipe = Recipe(cpu_threads=1).to_dict()
    made.ask("train", Trained, recipe=recipe, seed=0, loss_steps=4, warmup_s=2)
    return made


def rate(of: Child) -> float:
    """samples/s of one block."""
    return of.ask("block", Block, samples=SAMPLES).samples_per_s


def record(extras_s: Sequence[float], rounds: int, shuffler: random.Random) -> Group:
    """Measures one process for each slow-down (seconds a step), interleaved, from a new fork server."""
    server.restart()
    # The first process of a server is slower than the later ones: none of the sides is always the first.
    order = shuffler.sample(range(len(extras_s)), len(extras_s))
    started = {number: child(extras_s[number]) for number in order}
    sides = [started[number] for number in range(len(extras_s))]
    rates = np.zeros((len(sides), rounds))
    start = time.monotonic()
    for turn in range(rounds):
        for side in shuffler.sample(range(len(sides)), len(sides)):
            rates[side, turn] = rate(sides[side])
    round_s = (time.monotonic() - start) / rounds / len(sides) * 2
    for one in sides:
        one.stop()
    return Group(rates, round_s)


def typical_step_s(rounds: int, shuffler: random.Random) -> float:
    """Seconds of a step that is not slowed down."""
    return BATCH / float(np.median(record((0.0,), rounds, shuffler).rates))


def recorded(file: Path, slower: Sequence[float], rounds: int, count: int) -> Iterator[Group]:
    """As many groups: those of the file, then new ones, which it keeps."""
    known = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    shuffler = random.Random(len(known))
    for group in known:
        if group["slower"] != list(slower):
            sys.exit(f"{file} holds the slow-downs {group['slower']}: ask for these, or name another file")
        yield Group(np.array(group["rates"]), group["round_s"])
    step_s = known[0]["step_s"] if known else typical_step_s(rounds, shuffler)
    extras_s = [by * step_s for by in (0.0, *slower)]
    for _ in range(count - len(known)):
        new = record(extras_s, rounds, shuffler)
        with file.open("a") as stream:
            kept = {"slower": slower, "step_s": step_s, "rates": new.rates.tolist(), "round_s": new.round_s}
            stream.write(json.dumps(kept) + "\n")
        yield new


def ladder(stages: int, seed: int, limit_s: float) -> list[Run]:
    """The runs of one ladder of stages that do nothing; the baseline first, the A/A row last."""
    plan = plans.plan("slowed:Slowed", "quick", ["baseline"], device="cpu", seed=seed)
    recipe = Recipe(batch_size=BATCH)
    titled = [("baseline", recipe), *((f"nothing {number}", recipe) for number in range(1, stages + 1))]
    preset = dataclasses.replace(plan.preset, block_s=0.5, warmup_s=2, limit_s=limit_s)
    return climb(dataclasses.replace(plan, preset=preset, recipes=tuple(titled)))


def tell_ladders(count: int, stages: int, limit_s: float) -> None:
    """Prints how often stages that do nothing are called faster or slower."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PERFKIT_DATA"] = folder
        verdicts: dict[str, collections.Counter[str]] = {}
        for number in range(count):
            started, runs = time.monotonic(), ladder(stages, number, limit_s)
            for run in runs[1:]:
                for pairing in run.pairings:
                    of = "A/A row" if run.stage == AGAIN else f"against the {pairing.role}"
                    verdicts.setdefault(of, collections.Counter())[pairing.ratio.verdict] += 1
            widths = [run.pairings[-1].ratio.half_width for run in runs[1:]]
            print(
                f"{number + 1}: {time.monotonic() - started:.0f} s, {len(runs[0].raw.block_samples_per_s)} "
                f"rounds, half width median {np.median(widths):.1%}, noise {noise.load('cpu') or 0:.1%}, "
                f"A/A row {runs[-1].pairings[0].ratio.ratio:.3f}; "
                + "; ".join(f"{of}: {dict(counts)}" for of, counts in verdicts.items()),
                flush=True,
            )


def until_narrow(group: Group, side: int, budget_s: float, precision: float) -> tuple[Values, Values]:
    """The rates of a slowed side and of the first, as far as `perfkit compare` would have measured."""
    for count in range(stats.MIN_ROUNDS, group.rates.shape[1] + 1):
        own, first = group.rates[side, :count], group.rates[0, :count]
        logs = np.log(own / first)[:, np.newaxis]
        if count * group.round_s > budget_s or count >= stats.rounds_needed(logs, precision):
            break
    return own, first


def compared(pairs: Sequence[tuple[Values, Values]], noise: float) -> Ratio:
    """One comparison over the rates of some pairs of processes."""
    if len(pairs) == 1:
        return stats.ratio(*pairs[0], paired=True, noise=noise)
    return stats.ratio_over_pairs(pairs, noise=noise)


def tell(name: str, found: Sequence[Ratio]) -> None:
    """One line on the comparisons of a slow-down."""
    widths = [one.half_width for one in found]
    verdicts = [one.verdict for one in found]
    print(
        f"  {name}: {verdicts.count('slower')} verdicts 'slower', {verdicts.count('faster')} 'faster' of "
        f"{len(found)}; median ratio {np.median([one.ratio for one in found]):.3f}; "
        f"half width median {np.median(widths):.1%}, 90th percentile {np.percentile(widths, 90):.1%}",
        flush=True,
    )


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--groups", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--slower", type=float, nargs="+", default=[0.0, 0.03, 0.05])
    parser.add_argument("--file", type=Path, default=Path("aa_and_power.jsonl"))
    parser.add_argument("--comparisons", type=int, default=100)
    parser.add_argument("--pairs", type=int, nargs="+", help="instead of as many as the A/A noise calls for")
    parser.add_argument(
        "--ladders", type=int, help="whole ladders of stages that do nothing, as many as this"
    )
    parser.add_argument("--stages", type=int, default=10)
    parser.add_argument(
        "--limit", type=float, default=100.0, help="seconds after which a ladder's rounds end"
    )
    given = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    if given.ladders:
        tell_ladders(given.ladders, given.stages, given.limit)
        return
    groups = []
    for group in recorded(given.file, given.slower, given.rounds, given.groups):
        groups.append(group)
        differ = "  ".join(f"{one:+.1%}" for one in np.log(group.rates[1:] / group.rates[0]).mean(axis=1))
        print(f"{len(groups)}: {differ}", flush=True)
    aa_noise = stats.aa_noise_bound([stats.aa_pair(g.rates[1], g.rates[0]) for g in groups])
    shuffler = random.Random(0)
    for count in given.pairs or [pairs_for(aa_noise, PRECISION)]:
        precision = target_half_width(PRECISION, count, aa_noise)
        numbers = range(len(groups))
        apart = [numbers[at : at + count] for at in range(0, len(groups) - count + 1, count)]
        drawn = [shuffler.sample(numbers, count) for _ in range(given.comparisons)]
        # Where a pair's rounds end does not depend on the comparison that it is drawn for.
        sides = {
            by: [until_narrow(group, side, BUDGET_S / count, precision) for group in groups]
            for side, by in enumerate(given.slower, 1)
        }
        print(f"{len(groups)} groups, A/A noise {aa_noise:.1%}: {count} pairs of processes a comparison")
        for how, sets in (("no group in common", apart), ("drawn from all", drawn)):
            print(f" {how}:")
            for by, pairs in sides.items():
                tell(f"{by:.0%} slower", [compared([pairs[n] for n in chosen], aa_noise) for chosen in sets])


if __name__ == "__main__":
    main()
