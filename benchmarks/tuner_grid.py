"""The tuner against an exhaustive grid, and the what-if model against every recipe of it.

    python benchmarks/tuner_grid.py [--workload photos] [--rounds 5]

Targets: the tuner's pick within 3% of the grid's best in at most a quarter of the grid's time; what-if, from
the tuner's few probes, off by at most 10% in the median and 25% at the 90th percentile over the grid. All are
interleaved with the baseline, whose speed corrects their times for drift. At the end the two winners are
compared directly, because the best of many noisy measurements is partly the luckiest.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import msgspec

from perfkit.recipe import Recipe
from perfkit.results.run import Run
from perfkit.results.store import RunStore
from perfkit.search import predict, tune
from perfkit.studies import plan as plans
from perfkit.studies.compare import Candidate, compare
from perfkit.studies.engine import Schedule, Trial, measure
from perfkit.studies.ladder import recipe_stages
from perfkit.studies.setup import prepare

SPACE = {
    "batch_size": (16, 32, 64), "workers": (0, 1, 2), "amp": ("off", "bf16"), "channels_last": (False, True),
    "uint8_copy": (False, True),
}  # fmt: skip


def told(progress: plans.Progress) -> None:
    """One line a run."""
    if run := progress.run:
        rate = f"{run.samples_per_s.value:.0f} samples/s" if run.samples_per_s else run.reason
        times = f", {gain(run):.2f}x the baseline" if gain(run) else ""
        print(f"{run.title}: {rate}{times}", flush=True)


def gain(run: Run) -> float:
    """Over the baseline, interleaved; 0 where they were not compared."""
    ratio = run.speedup("baseline")
    return ratio.ratio if ratio else 0.0


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", default="photos")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write every run here, as JSON")
    given = parser.parse_args()
    plan = plans.plan(given.workload, "quick")
    plan = replace(plan, preset=replace(plan.preset, rounds=given.rounds))

    tuned = tune.tune(plan, SPACE, budget_s=3600, on_progress=told)
    print("\n".join(tuned.sentences()), flush=True)

    base = Recipe(batch_size=plan.preset.batch_size)
    started = time.monotonic()
    with prepare(plan, on_progress=told) as setup:
        every = tune.candidates(plan, setup.target, SPACE)
        titled = [(recipe.describe()[:60], recipe) for recipe in [base, *every]]
        schedule = Schedule(plan.preset, together=1)
        stages = recipe_stages(titled, setup.target)
        trials = (Trial(stage, len(stages)) for stage in stages)
        found = list(measure(trials, setup, schedule, RunStore()))
    seconds = time.monotonic() - started
    grid = [run for run in found if gain(run)]
    best = max(grid, key=gain)
    if given.out:
        given.out.write_bytes(msgspec.json.encode([*tuned.tried, *found]))

    probes = [base, *tune.probes(base, every)]
    parts = tuned.tried[: len(probes)]
    model = predict.fit(parts)
    pace = predict.drift_corrected_rates([*tuned.tried, *found])
    print(
        f"grid: {len(grid)} recipes in {seconds:.0f} s, tuner's time / grid's {tuned.seconds / seconds:.2f}"
    )
    drift = [run.samples_per_s.value / pace[run.id] for run in grid if run.samples_per_s]
    print(f"the machine's pace, over that of the first run: {min(drift):.2f}-{max(drift):.2f}")
    print(f"what-if over the grid, from {len(parts)} probes: {predict.score(model, grid, pace)}", flush=True)
    chosen, winner = (Recipe.from_dict(run.recipe) for run in (tuned.best, best))
    if chosen == winner:
        print(f"the tuner's pick is the grid's best: {chosen.describe()}")
        return
    both = compare(Candidate("grid's best", winner), Candidate("tuner's pick", chosen), plan)
    print(f"grid's best: {winner.describe()}\ntuner's pick: {chosen.describe()}\n{both.describe()}")


if __name__ == "__main__":
    main()
