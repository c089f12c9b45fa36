"""The tuner against an exhaustive grid, and the what-if model against every recipe of it.

    python benchmarks/tuner_grid.py [--workload photos] [--rounds 5]

Targets: the tuner's pick within 3% of the grid's best in at most a quarter of the grid's time; what-if, from
the tuner's few probes, off by at most 10% in the median and 25% at the 90th percentile over the grid. The two
winners are compared in turn, as the best of many noisy measurements is partly the luckiest.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

from perfkit import compare, experiment, tune, whatif
from perfkit.recipe import Recipe
from perfkit.runs import Run
from perfkit.store import RunStore

SPACE = {
    "batch_size": (16, 32, 64), "workers": (0, 1, 2), "amp": ("off", "bf16"), "channels_last": (False, True),
    "uint8_copy": (False, True),
}  # fmt: skip


def measured(plan: experiment.Plan, recipes: list[Recipe]) -> list[Run]:
    """Every recipe by itself, in a fresh child."""
    found = []
    for at, recipe in enumerate(recipes, 1):
        (run,) = experiment.climb(replace(plan, recipes=((recipe.describe()[:60], recipe),)), RunStore())
        found.append(run)
        rate = f"{run.samples_per_s.median:.0f} samples/s" if run.samples_per_s else run.reason
        print(f"{at}/{len(recipes)} {recipe.describe()}: {rate}", flush=True)
    return found


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", default="photos")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the grid's rates here, as JSON")
    given = parser.parse_args()
    plan = experiment.plan(given.workload, "quick")
    plan = replace(plan, preset=replace(plan.preset, rounds=given.rounds))

    tuned = tune.tune(plan, SPACE)
    print(f"tuner: {tuned.describe()}", flush=True)

    described, _ = experiment.resolve(replace(plan, stages=("baseline",)))
    every = tune.candidates(plan, experiment.target(plan, described), SPACE)
    started = time.monotonic()
    grid = [run for run in measured(plan, every) if run.samples_per_s]
    seconds = time.monotonic() - started
    best = max(grid, key=lambda run: run.samples_per_s.median if run.samples_per_s else 0.0)
    if given.out:
        rows = [
            {"recipe": r.recipe, "samples_per_s": r.samples_per_s.median, "data_wait_s": r.data_wait_s.median,
             "ceiling": r.ceiling_samples_per_s} for r in grid if r.samples_per_s and r.data_wait_s
        ]  # fmt: skip
        given.out.write_text(json.dumps(rows))

    base = Recipe(batch_size=plan.preset.batch_size)
    probes = {base.digest(), *(probe.digest() for probe in tune.probes(base, every))}
    model = whatif.fit(run for run in tuned.tried if Recipe.from_dict(run.recipe).digest() in probes)
    share = tuned.seconds / seconds
    print(f"grid: {len(grid)} recipes in {seconds:.0f} s, tuner's time / grid's {share:.2f}")
    print(f"what-if over the grid, from {len(probes)} probes: {whatif.score(model, grid)}", flush=True)
    chosen, winner = (Recipe.from_dict(run.recipe) for run in (tuned.best, best))
    if chosen == winner:
        print(f"the tuner's pick is the grid's best: {chosen.describe()}")
        return
    found = compare.compare(("grid's best", winner), ("tuner's pick", chosen), plan)
    print(f"grid's best: {winner.describe()}\ntuner's pick: {chosen.describe()}\n{found.describe()}")


if __name__ == "__main__":
    main()
