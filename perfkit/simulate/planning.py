"""Plans a training step, and times how a sample is fetched, in processes of their own.

Tensors without numbers change settings of torch. What fetching costs is known for the article's data set.
"""

import statistics
import threading
import time
from typing import Any

from perfkit.errors import InvalidValue
from perfkit.process.child import call
from perfkit.recipe import Recipe
from perfkit.simulate.step import Step


def plan_step(
    workload: str, options: dict[str, Any], recipe: Recipe, cancelled: threading.Event | None = None
) -> Step:
    """One steady training step of a workload under a recipe, whatever the GPU.

    Raises:
        InvalidValue: the step cannot be planned.
        RunFailed: the workload cannot be imported or built.
        Cancelled: `cancelled` was set.
    """
    if recipe.ranks > 1:
        raise _refused("several ranks are not simulated: nothing says how fast they exchange gradients")
    if recipe.compile and recipe.compile_mode != "default":
        raise _refused(
            f"what compile_mode={recipe.compile_mode} gains on a GPU was never compared with figures"
        )
    step = call(f"{__name__}:record", workload, options, recipe.to_dict(), cancelled=cancelled)
    if isinstance(step, str):
        raise _refused(f"a step of '{workload}' cannot be simulated: {step}")
    return step  # type: ignore[no-any-return]


def _refused(what: str) -> InvalidValue:
    return InvalidValue(what, "Change that part, or measure it on a device that is here (--device cpu, cuda)")


def record(workload: str, options: dict[str, Any], switches: dict[str, Any]) -> Step | str:
    """In the planning process: a step, or why there is no plan, in the user's words."""
    import torch

    from perfkit import workloads
    from perfkit.simulate import recording

    torch.set_num_threads(1)
    target = workloads.load(workload, options)
    try:
        return recording.record(target, Recipe.from_dict(switches))
    except Exception as problem:  # whatever the workload's code raises
        return recording.reason(problem)


FETCH_SWITCHES = ("uint8_copy", "device_resize", "scaled_decode")
ARTICLE_SHARES = {
    (): 1.0, ("uint8_copy",): 0.42, ("device_resize",): 0.135, ("uint8_copy", "device_resize"): 0.043,
}  # fmt: skip
"""CPU time of a sample / that of the plain recipe, for CIFAR-10 at 224 × 224 in one thread (Xeon at 2.5 GHz,
torch 2.15.0, 2026-11); two calls differed by up to a tenth."""


def fetch_s(workload: str, options: dict[str, Any], switches: dict[str, Any], batch: int = 16) -> float:
    """Core seconds that fetching and collating a sample takes on this machine, by one thread."""
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
        default_collate([dataset[index] for index in indices])
        times.append((time.thread_time() - start) / len(indices))
    return statistics.median(times[1:])
