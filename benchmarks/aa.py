"""How often stages that do nothing are called faster or slower.

    python -m benchmarks.aa [--ladders 10] [--stages 10] [--limit 100]

Complete ladders of one recipe of `photos` are measured as `perfkit run` measures them, with the noise learned
from their A/A rows alone. Target: at most 5 of 100.
"""

import argparse
import collections
import dataclasses
import os
import tempfile

import numpy as np

import perfkit
from perfkit.recipe import Recipe
from perfkit.results.run import Run


def ladder(stages: int, seed: int, limit_s: float) -> list[Run]:
    """The runs of one ladder; the baseline first, the A/A row last."""
    plan = perfkit.plan("photos", "quick", ["baseline"], device="cpu", seed=seed)
    titles = ["baseline", *(f"nothing {number}" for number in range(1, stages + 1))]
    preset = dataclasses.replace(plan.preset, block_s=0.5, warmup_s=2, limit_s=limit_s)
    recipes = tuple((title, Recipe(batch_size=32)) for title in titles)
    return perfkit.climb(dataclasses.replace(plan, preset=preset, recipes=recipes))


def main() -> None:
    """Prints the verdicts so far after each ladder, and half the width of its intervals."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ladders", type=int, default=10)
    parser.add_argument("--stages", type=int, default=10)
    parser.add_argument("--limit", type=float, default=100, help="seconds after which a ladder's rounds end")
    options = parser.parse_args()
    verdicts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PERFKIT_DATA"] = folder
        for number in range(options.ladders):
            widths = []
            for run in ladder(options.stages, number, options.limit)[1:]:
                for pairing in run.pairings:
                    kind = "A/A row" if run.is_again else f"against the {pairing.role}"
                    verdicts[kind][pairing.ratio.verdict] += 1
                    widths.append(pairing.ratio.half_width)
            counts = {kind: dict(some) for kind, some in verdicts.items()}
            print(number + 1, counts, f"half width {np.median(widths):.1%}", flush=True)


if __name__ == "__main__":
    main()
