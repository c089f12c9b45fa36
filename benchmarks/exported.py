"""Do exported scripts, run bare, gain what the ladder shows? Each rung of the CPU's ladder.

    python -m benchmarks.exported [--rounds 5] [--steps 30]

Target: nine of ten ratios lie in the interval that the ladder shows. The ladder is measured at `quick`; then
the scripts of both sides run as anybody runs them (`python train.py`), alternately, with nothing set but what
a rung itself sets. The time of a short run is subtracted, so that start-up does not count.
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
    """Prints a line for each rung, then how many agree."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    runs = perfkit.climb(perfkit.plan("photos", preset="quick", device="cpu"))
    agree = []
    for run in runs:
        before, shown = run.previous(runs), run.speedup("previous")
        if run.is_again or before is None or shown is None:
            continue
        sides = run, before
        starting_s = [min(seconds(side, SHORT) for _ in range(2)) for side in sides]
        rates = []
        for _ in range(options.rounds):
            took = {at: seconds(sides[at], SHORT + options.steps) for at in random.sample((0, 1), 2)}
            rates.append([sides[at].samples_per_step / (took[at] - starting_s[at]) for at in (0, 1)])
        bare = stats.ratio(*np.array(rates).T, paired=True)
        agree.append(shown.low <= bare.ratio <= shown.high)
        line = f"{run.title}: shown {units.ratio(shown)}, bare {units.ratio(bare)}"
        print(f"{line}: {'agrees' if agree[-1] else 'DIFFERS'}", flush=True)
    print(f"{sum(agree)} of {len(agree)} bare ratios lie in the shown interval")


if __name__ == "__main__":
    main()
