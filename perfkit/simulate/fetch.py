"""What fetching a sample costs under the data switches, over the plain recipe: for virtual hosts."""

from __future__ import annotations

from perfkit.recipe import Recipe

_SWITCHES = ("uint8_copy", "device_resize", "batched_fetch")

_SHARES = {
    "perfkit.workloads.cifar_resnet18:CifarResNet18": {
        (): 1.0, ("uint8_copy",): 0.42, ("device_resize",): 0.135, ("batched_fetch",): 0.34,
        ("uint8_copy", "device_resize"): 0.043, ("uint8_copy", "batched_fetch"): 0.125,
        ("device_resize", "batched_fetch"): 0.011, ("uint8_copy", "device_resize", "batched_fetch"): 0.005,
    },
}  # fmt: skip
"""CPU time of one thread, by `python -m benchmarks.fetch_cost` (Xeon at 2.5 GHz, torch 2.15.0, 2026-11);
images of 224 × 224. Two calls differed by up to a tenth."""


def fetch_share(workload: str, recipe: Recipe) -> float | None:
    """The cost of a sample under a recipe / under the plain one; None where that was never measured.

    Args:
        workload: `package.module:name`.
        recipe: its data switches.
    """
    on = tuple(name for name in _SWITCHES if getattr(recipe, name))
    return _SHARES.get(workload, {(): 1.0}).get(on)
