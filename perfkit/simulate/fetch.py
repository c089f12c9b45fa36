"""The cost of fetching a sample: known for the article's data set, measured here for others."""

import statistics
import time
from typing import Any

from perfkit.recipe import Recipe

SWITCHES = ("uint8_copy", "device_resize", "batched_fetch")
_ARTICLE = {
    (): 1.0, ("uint8_copy",): 0.42, ("device_resize",): 0.135, ("batched_fetch",): 0.34,
    ("uint8_copy", "device_resize"): 0.043, ("uint8_copy", "batched_fetch"): 0.125,
    ("device_resize", "batched_fetch"): 0.011, ("uint8_copy", "device_resize", "batched_fetch"): 0.005,
}  # fmt: skip
"""CPU time of a sample / that of the plain recipe, for CIFAR-10 at 224 × 224 in one thread (Xeon at 2.5 GHz,
torch 2.15.0, 2026-11); two calls differed by up to a tenth."""


def article_share(recipe: Recipe) -> float:
    """The cost of a sample of the article's data set under a recipe / under the plain one."""
    return _ARTICLE[tuple(name for name in SWITCHES if getattr(recipe, name))]


def measured(workload: str, options: dict[str, Any], switches: dict[str, Any], batch: int = 16) -> float:
    """Core seconds that fetching and collating a sample takes on this machine, by one thread.

    Args:
        workload: `package.module:name`.
        options: arguments of its constructor.
        switches: of the recipe.
        batch: samples in each of the batches that are timed.
    """
    import torch
    from torch.utils.data import default_collate

    from perfkit import workloads

    torch.set_num_threads(1)
    recipe = Recipe.from_dict(switches)
    dataset: Any = workloads.load(workload, options).dataset(recipe)
    times: list[float] = []
    end = time.monotonic() + 1.0
    while len(times) < 3 or (time.monotonic() < end and len(times) < 50):
        first = (len(times) * batch) % max(1, len(dataset) - batch)
        indices = list(range(first, min(len(dataset), first + batch)))
        start = time.thread_time()
        if recipe.batched_fetch:
            dataset.__getitems__(indices)
        else:
            default_collate([dataset[index] for index in indices])
        times.append((time.thread_time() - start) / len(indices))
    return statistics.median(times[1:])
