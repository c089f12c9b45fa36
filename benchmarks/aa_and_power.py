"""A recipe against itself, and against slower ones, many times: false verdicts, power, interval.

    python -m benchmarks.aa_and_power [--groups 150] [--rounds 20] [--slower 0 0.03 0.05] [--file FILE]
    python -m benchmarks.aa_and_power --ladders 10 [--stages 10] [--limit 100]

Targets: at most 5 of 100 A/A verdicts other than "no measurable difference"; an injected slow-down of 5%
found in at least 90 of 100; half the interval's width at most 3%. A hundred comparisons of a dozen pairs of
fresh processes would take half a day, so the rounds of many groups of processes are recorded, each from a
fork server of its own, interleaved in random order; each comparison draws its groups from these. A finished
group is written to the file: a run can be stopped and continued.

With `--ladders`, complete ladders of stages that do nothing are measured as `perfkit run` measures them, with
the noise learned from their A/A rows alone. Target: at most 5 of 100 such stages are called faster or slower.
"""

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
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import perfkit
from perfkit.process import server
from perfkit.process.child import Child
from perfkit.recipe import Recipe
from perfkit.results import stats
from perfkit.results.run import Run
from perfkit.results.stats import Ratio, Values
from perfkit.studies.compare import BUDGET_S, PRECISION, pairs_for, target_half_width
from perfkit.worker.messages import Block, Description, Trained

BATCH = 32
WORKLOAD = "benchmarks.aa_and_power:Slowed"


class Slowed:
    """A small conv net on made-up images, whose steps are longer by `extra_s` busy seconds."""

    def __init__(self, extra_s: float = 0.0) -> None:
        self.extra_s = extra_s

    def dataset(self, recipe: Any) -> Any:
        """256 images of 32×32."""
        return TensorDataset(torch.randn(256, 3, 32, 32), torch.arange(256) % 10)

    def model(self) -> nn.Module:
        """Three convolutions."""
        convolutions = [nn.Conv2d(channels, 32, 3) for channels in (3, 32, 32)]
        layers = [layer for convolution in convolutions for layer in (convolution, nn.ReLU())]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))

    def loss(self, outputs: Any, targets: Any) -> Any:
        """Cross entropy, and the busy loop."""
        until = time.perf_counter() + self.extra_s
        while time.perf_counter() < until:
            pass
        return nn.functional.cross_entropy(outputs, targets)

    def optimizer(self, parameters: Any, **implementation: Any) -> Any:
        """Plain SGD."""
        return torch.optim.SGD(parameters, lr=0.01, **implementation)


class Group(NamedTuple):
    """What was measured of processes from one fork server."""

    rates: Values
    """samples/s (sides, rounds); the first side is not slowed down."""
    round_s: float
    """Seconds that a round of two sides takes."""


def start(extra_s: float) -> Child:
    """A warm child whose step is slower by `extra_s`."""
    child = Child()
    options = {"extra_s": extra_s}
    child.ask("describe", Description, workload=WORKLOAD, preset="quick", options=options, device="cpu")
    recipe = Recipe(cpu_threads=1).to_dict()
    child.ask("train", Trained, recipe=recipe, seed=0, loss_steps=4, warmup_s=2)
    return child


def record(extras_s: Sequence[float], rounds: int) -> Group:
    """Measures one process for each slow-down (seconds a step), interleaved, from a new fork server."""
    server.restart()
    sides = range(len(extras_s))
    # The first process of a server is slower than the later ones: none of the sides is always the first.
    children = {side: start(extras_s[side]) for side in random.sample(sides, len(sides))}
    rates = np.zeros((len(sides), rounds))
    began = time.monotonic()
    for turn in range(rounds):
        for side in random.sample(sides, len(sides)):
            rates[side, turn] = children[side].ask("block", Block, samples=4 * BATCH).samples_per_s
    round_s = (time.monotonic() - began) / rounds / len(sides) * 2
    for child in children.values():
        child.stop()
    return Group(rates, round_s)


def recorded(file: Path, slower: Sequence[float], rounds: int, count: int) -> Iterator[Group]:
    """As many groups: those of the file, then new ones, which it keeps."""
    known = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    for group in known:
        if group["slower"] != list(slower):
            sys.exit(f"{file} holds the slow-downs {group['slower']}: ask for these, or name another file")
        yield Group(np.array(group["rates"]), group["round_s"])
    step_s = known[0]["step_s"] if known else BATCH / float(np.median(record((0.0,), rounds).rates))
    for _ in range(count - len(known)):
        group = record([by * step_s for by in (0.0, *slower)], rounds)
        values = {"slower": slower, "step_s": step_s, "rates": group.rates.tolist(), "round_s": group.round_s}
        with file.open("a") as stream:
            stream.write(json.dumps(values) + "\n")
        yield group


def until_narrow(group: Group, side: int, budget_s: float, precision: float) -> tuple[Values, Values]:
    """The rates of a slowed side and of the first, as far as `perfkit compare` would have measured."""
    for count in range(stats.MIN_ROUNDS, group.rates.shape[1] + 1):
        own, first = group.rates[side, :count], group.rates[0, :count]
        logs = np.log(own / first)[:, np.newaxis]
        if count * group.round_s > budget_s or count >= stats.rounds_needed(logs, precision):
            break
    return own, first


def tell_groups(groups: Sequence[Group], slower: Sequence[float], comparisons: int) -> None:
    """Prints the verdicts of comparisons that draw from these groups."""
    noise = stats.aa_noise_bound([stats.aa_pair(group.rates[1], group.rates[0]) for group in groups])
    count = pairs_for(noise, PRECISION)
    precision = target_half_width(PRECISION, count, noise)
    print(f"{len(groups)} groups, A/A noise {noise:.1%}: {count} pairs of processes a comparison")
    for side, by in enumerate(slower, 1):
        pairs = [until_narrow(group, side, BUDGET_S / count, precision) for group in groups]
        ratios: list[Ratio] = []
        for _ in range(comparisons):
            drawn = random.sample(pairs, count)
            single = stats.ratio(*drawn[0], paired=True, noise=noise)
            ratios.append(single if count == 1 else stats.ratio_over_pairs(drawn, noise=noise))
        verdicts = dict(collections.Counter(ratio.verdict for ratio in ratios))
        widths = np.median([ratio.half_width for ratio in ratios])
        middle = np.median([ratio.ratio for ratio in ratios])
        print(
            f"  {by:.0%} slower: {verdicts}; median ratio {middle:.3f}, half width {widths:.1%}", flush=True
        )


def ladder(stages: int, seed: int, limit_s: float) -> list[Run]:
    """The runs of one ladder of stages that do nothing; the baseline first, the A/A row last."""
    plan = perfkit.plan(WORKLOAD, "quick", ["baseline"], device="cpu", seed=seed)
    recipe = Recipe(batch_size=BATCH)
    titled = [("baseline", recipe), *((f"nothing {number}", recipe) for number in range(1, stages + 1))]
    preset = dataclasses.replace(plan.preset, block_s=0.5, warmup_s=2, limit_s=limit_s)
    return perfkit.climb(dataclasses.replace(plan, preset=preset, recipes=tuple(titled)))


def tell_ladders(count: int, stages: int, limit_s: float) -> None:
    """Prints how often stages that do nothing are called faster or slower."""
    verdicts: dict[str, collections.Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PERFKIT_DATA"] = folder
        for number in range(count):
            for run in ladder(stages, number, limit_s)[1:]:
                for pairing in run.pairings:
                    kind = "A/A row" if run.is_again else f"against the {pairing.role}"
                    verdicts.setdefault(kind, collections.Counter())[pairing.ratio.verdict] += 1
            print(number + 1, {kind: dict(counts) for kind, counts in verdicts.items()}, flush=True)


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--groups", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--slower", type=float, nargs="+", default=[0.0, 0.03, 0.05])
    parser.add_argument("--file", type=Path, default=Path("aa_and_power.jsonl"))
    parser.add_argument("--comparisons", type=int, default=100)
    parser.add_argument("--ladders", type=int, help="measure complete ladders, as many as this")
    parser.add_argument("--stages", type=int, default=10)
    parser.add_argument(
        "--limit", type=float, default=100.0, help="seconds after which a ladder's rounds end"
    )
    options = parser.parse_args()
    if options.ladders:
        tell_ladders(options.ladders, options.stages, options.limit)
        return
    groups = list(recorded(options.file, options.slower, options.rounds, options.groups))
    tell_groups(groups, options.slower, options.comparisons)


if __name__ == "__main__":
    main()
