"""Do exported scripts, run bare, gain what the ladder shows? Each rung of the CPU's ladder.

    python -m benchmarks.exported [--rounds 5] [--steps 30] [--workload photos]

Target: nine of ten ratios lie in the interval that the ladder shows. The ladder is measured at `quick`; then
the scripts of both sides run as anybody runs them (`python train.py`), alternately, with nothing set but what
a rung itself sets. Two lengths of each run are subtracted, so that start-up does not count.
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


def rate(run: Run, steps: int) -> float:
    """samples/s of the run's script."""
    took = seconds(run, SHORT + steps) - seconds(run, SHORT)
    return run.samples_per_step * steps / took


def main() -> None:
    """Prints a line for each rung, then how many agree."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--workload", default="photos")
    options = parser.parse_args()
    runs = perfkit.climb(perfkit.plan(options.workload, preset="quick", device="cpu"))
    agree = []
    for run in runs:
        before, shown = run.previous(runs), run.speedup("previous")
        if run.is_again or before is None or shown is None:
            continue
        rates: dict[str, list[float]] = {run.id: [], before.id: []}
        for _ in range(options.rounds):
            for side in random.sample([run, before], 2):
                rates[side.id].append(rate(side, options.steps))
        bare = stats.ratio(np.array(rates[run.id]), np.array(rates[before.id]), paired=True)
        agree.append(shown.low <= bare.ratio <= shown.high)
        print(
            f"{run.title}: shown {shown.ratio:.2f} ({shown.low:.2f}-{shown.high:.2f}), bare {bare.ratio:.2f} "
            f"({bare.low:.2f}-{bare.high:.2f}): {'agrees' if agree[-1] else 'DIFFERS'}",
            flush=True,
        )
    print(f"{sum(agree)} of {len(agree)} bare ratios lie in the shown interval")


if __name__ == "__main__":
    main()
