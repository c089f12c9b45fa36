"""How far off a prediction may be: the model's errors on published figures, applied to what is predicted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from perfkit.recipe import Recipe
from perfkit.simulate import anchors as published
from perfkit.simulate.anchors import Anchor
from perfkit.simulate.gpus import Gpu

MEMORY_BAND = 0.05
"""Peak memory is counted, not modelled: fractions of what the ladder article and hand calculations give."""
ENOUGH = 20
"""Held-out anchors of a GPU that speak for it alone."""
_CLAIMS = {
    "amp": "amp", "channels_last": "channels_last", "compile": "compile", "batch_size": "batch",
    "accumulation": "batch",
}  # fmt: skip
"""Switches whose gain has an error of its own, and its name; other changes of kernels are `other`."""
_DATA = {
    "workers", "prefetch_factor", "batched_fetch", "pin_memory",
    "non_blocking", "device_prefetch", "cpu_threads", "uint8_copy",
}  # fmt: skip
"""Switches that leave the kernels as they are: their effect follows from bytes, waits and bottlenecks."""


def of_rate(gpu: Gpu, kernel_share: float) -> float:
    """Error of samples/s to expect, as a fraction.

    The model's error is one of kernel time. A step of which kernels are a part moves by as much of it: so far
    as the loader decides the pace, the pace is no prediction.

    Args:
        gpu: data sheet.
        kernel_share: kernel time / step.
    """
    return math.expm1(math.log1p(band(gpu.key, "rate")) * min(1.0, kernel_share))


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
    common = math.log1p(band(gpu.key, "rate")) * abs(shares[0] - shares[1])
    changed = {_CLAIMS.get(name, "other") for name in own[0].diff(other[0]) if name not in _DATA}
    gains = [math.log1p(band(gpu.key, claim)) * max(shares) for claim in changed]
    return math.expm1(math.hypot(common, *gains))


def anchors(gpu: Gpu) -> dict[str, float]:
    """The model's error for each published rate of a GPU, of few models: predicted / published - 1."""
    every = [one for one in published.load().anchors if one.gpu == gpu.key and one.claim == "rate"]
    return {f"{one.model}, {one.precision}, {one.what}": one.error for one in every if one.use != "held out"}


@cache
def band(gpu: str, claim: str) -> float:
    """The error to allow for, as a fraction: that of nine in ten held-out predictions.

    A GPU with a table of many models has the 90th percentile of its own held-out errors. One with a few
    figures of ResNet-50, which took part in the fit, cannot be better than the tables: it has theirs, or its
    own worst error if that is larger.

    Args:
        gpu: the name in `--device sim:NAME`.
        claim: an `anchors.Claim`; any other, such as `batch`, has the band of `rate`.
    """
    every = published.load().anchors
    mine = [one for one in every if one.claim == claim]
    if not any(one.use == "held out" for one in mine):
        mine = mine + [one for one in every if one.claim == "rate"]
    held = [one for one in mine if one.use == "held out"]
    own = [one for one in held if one.gpu == gpu]
    if len(own) >= ENOUGH:
        return _nine_of_ten(own)
    worst = max((_size(one) for one in mine if one.gpu == gpu), default=0.0)
    return max(_nine_of_ten(held), math.expm1(worst))


def _nine_of_ten(some: Sequence[Anchor]) -> float:
    return math.expm1(float(np.quantile([_size(one) for one in some], 0.9)))


def _size(anchor: Anchor) -> float:
    """Of its error, the same for twice and for half."""
    return abs(math.log1p(anchor.error))
