"""What a sample of the article's loader costs a core under each data recipe, over the plain recipe's cost.

`python -m benchmarks.fetch_cost` prints the shares that `perfkit.simulate.fetch` holds: a virtual host knows
the cost of the plain loader, and scales it. CPU time of one thread, medians of interleaved rounds.
"""

from __future__ import annotations

import itertools
import statistics
import time

import torch
from torch.utils.data import default_collate

from perfkit import workloads
from perfkit.recipe import Recipe

SWITCHES = ("uint8_copy", "device_resize", "batched_fetch")
BATCH, ROUNDS = 32, 15


def seconds(recipe: Recipe, dataset: object) -> float:
    """Time of one batch, collated."""
    indices = list(range(BATCH))
    start = time.thread_time()
    if recipe.batched_fetch:
        dataset.__getitems__(indices)  # type: ignore[attr-defined]
    else:
        default_collate([dataset[index] for index in indices])  # type: ignore[index]
    return time.thread_time() - start


def main() -> None:
    """Prints a line for each recipe."""
    torch.set_num_threads(1)
    workload = workloads.load("cifar_resnet18", {"image_size": 224, "samples": 256, "weights": "random"})
    recipes = [
        Recipe().replace(**dict(zip(SWITCHES, values, strict=True)))
        for values in itertools.product((False, True), repeat=3)
    ]
    sets = [(recipe, workload.dataset(recipe)) for recipe in recipes]
    times: dict[Recipe, list[float]] = {recipe: [] for recipe in recipes}
    for _ in range(ROUNDS):
        for recipe, dataset in sets:
            times[recipe].append(seconds(recipe, dataset))
    plain = statistics.median(times[recipes[0]])
    print(f"plain: {1e3 * plain / BATCH:.3f} ms a sample, torch {torch.__version__}")
    for recipe in recipes:
        print(f"{recipe.describe():60s} {statistics.median(times[recipe]) / plain:.3f}")


if __name__ == "__main__":
    main()
