"""Do exported scripts, run bare, gain what the ladder shows? Each stage of the CPU's ladder.

    python -m benchmarks.exported [--rounds 20] [--steps 200] [--stage "memory reuse"]...

Target: nine of ten ratios lie in the interval that the ladder shows. The ladder is measured at `quick`; then
the scripts of its stages run as anybody runs them (`python train.py`), in rounds of random order, nothing
set but what a stage itself sets. Before each run, a short one of the same script: start-up, which takes as
long as 60 steps, is subtracted, and differs from minute to minute. Two equally precise measurements lie in
each other's 95% interval only 83% of the time: it takes many rounds.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import perfkit
from perfkit import export
from perfkit.recipe import Recipe
from perfkit.results import stats
from perfkit.results.run import Run
from perfkit.show import units

SHORT = 4
"""Steps of the run that only measures start-up."""


def seconds(run: Run, steps: int) -> float:
    """How long the run's script takes for so many steps, from its start to its end."""
    recipe = Recipe.from_dict(run.recipe)
    with tempfile.TemporaryDirectory(prefix="perfkit-bench-") as folder:
        script = export.script(recipe, run.workload, run.options, run.device, run.seed, steps)
        Path(folder, "train.py").write_text(script, encoding="utf-8")
        start = time.monotonic()
        environment = {**os.environ, **recipe.environment()}
        command = [sys.executable, "train.py"]
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
        return time.monotonic() - start


def main() -> None:
    """Prints a line for each stage, then how many agree."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--stage", action="append", help="only this one, by its title; repeatable")
    options = parser.parse_args()
    runs = perfkit.climb(perfkit.plan("photos", preset="quick", device="cpu"))
    stages = [(run, before) for run in runs if (before := run.previous(runs))]
    if options.stage:
        stages = [(run, before) for run, before in stages if run.title in options.stage]
    sides = {str(side.recipe): side for stage in stages for side in stage}
    rates: dict[str, list[float]] = {key: [] for key in sides}
    for side in sides.values():
        seconds(side, SHORT)  # compiles, for all later runs of this side
    for _ in range(options.rounds):
        for key in random.sample(list(sides), len(sides)):
            starting_s = seconds(sides[key], SHORT)
            took_s = seconds(sides[key], SHORT + options.steps) - starting_s
            rates[key].append(sides[key].samples_per_step / took_s)
    agree = []
    for run, before in stages:
        shown = run.speedup("previous")
        assert shown
        logs = np.log(rates[str(run.recipe)]) - np.log(rates[str(before.recipe)])
        mean = stats.nested(logs, [1] * logs.size, np.ones(logs.size))  # each is a process
        bare = stats.judged(mean.centre, mean.half, logs.size)
        agree.append(shown.low <= bare.ratio <= shown.high)
        line = f"{run.title}: shown {units.ratio(shown)}, bare {units.ratio(bare)}"
        print(f"{line}: {'agrees' if agree[-1] else 'DIFFERS'}", flush=True)
    print(f"{sum(agree)} of {len(agree)} bare ratios lie in the shown interval")


if __name__ == "__main__":
    main()
