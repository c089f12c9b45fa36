"""How far off a prediction may be: the model's errors, applied to a rate and to the ratio of two rates."""

from __future__ import annotations

import math

from perfkit.program.recipe import Recipe
from perfkit.simulate import accuracy
from perfkit.simulate import anchors as published
from perfkit.simulate.gpus import Gpu

_CLAIMS = {
    "amp": "amp", "channels_last": "channels_last", "compile": "compile", "batch_size": "batch",
    "accumulation": "batch",
}  # fmt: skip
"""Switches whose gain has an error of its own, and its name; other changes of kernels are `other`."""
_DATA = {
    "workers", "persistent_workers", "prefetch_factor", "infinite_sampler", "batched_fetch", "pin_memory",
    "non_blocking", "device_prefetch", "cpu_threads", "log_every", "nvtx_ranges", "uint8_copy",
}  # fmt: skip
"""Switches that leave the kernels as they are: their effect follows from bytes, waits and bottlenecks."""


def of_rate(gpu: Gpu, recipe: Recipe, kernel_share: float) -> float:
    """Error of samples/s to expect, as a fraction.

    The model's error is one of kernel time. A step of which kernels are a part moves by as much of it: so far
    as the loader decides the pace, the pace is no prediction.

    Args:
        gpu: data sheet.
        recipe: what trains.
        kernel_share: kernel time / step.
    """
    return math.expm1(math.log1p(_band(gpu, "rate")) * min(1.0, kernel_share))


def of_ratio(gpu: Gpu, own: tuple[Recipe, float], other: tuple[Recipe, float]) -> float:
    """Error to expect of the ratio of two rates, as a fraction.

    Of the error that both sides have in common, the part that their kernel shares do not share remains; to
    that comes the error of the gain of each switch that changes kernels.

    Args:
        gpu: data sheet.
        own: recipe, and kernel time / step.
        other: the same of the other side.
    """
    shares = min(1.0, own[1]), min(1.0, other[1])
    common = math.log1p(_band(gpu, "rate")) * abs(shares[0] - shares[1])
    changed = {_CLAIMS.get(name, "other") for name in own[0].diff(other[0]) if name not in _DATA}
    gains = [math.log1p(_band(gpu, claim)) * max(shares) for claim in changed]
    return math.expm1(math.hypot(common, *gains))


def of_memory(gpu: Gpu) -> float:
    """Error of peak memory to expect, as a fraction."""
    return _band(gpu, "memory")


def anchors(gpu: Gpu) -> dict[str, float]:
    """The model's error for each published rate of a GPU, of few models: predicted / published - 1."""
    known = published.load()
    every = [one for one in known.anchors if one.gpu == gpu.key and one.claim == "rate"] if known else []
    return {f"{one.model}, {one.precision}, {one.what}": one.error for one in every if one.use != "held out"}


def _band(gpu: Gpu, claim: str) -> float:
    return accuracy.band(gpu, claim)
