"""The error that a claim about a simulated GPU has to allow for: that of nine in ten held-out predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from perfkit.simulate import anchors
from perfkit.simulate.anchors import Anchor
from perfkit.simulate.gpus import Gpu

MEMORY_BAND = 0.05
"""Peak memory is counted, not modelled: fractions of what the ladder article and hand calculations give."""
UNKNOWN_BAND = 1.0
"""Where no errors are known."""
ENOUGH = 20
"""Held-out anchors of a GPU that speak for it alone."""


def band(gpu: Gpu, claim: str) -> float:
    """The error to allow for, as a fraction.

    A GPU with a table of many models has the 90th percentile of its own held-out errors. One with a few
    figures of ResNet-50, which took part in the fit, cannot be better than the tables: it has theirs, or its
    own worst error if that is larger.

    Args:
        gpu: data sheet.
        claim: an `anchors.Claim`; any other, such as `batch`, has the band of `rate`.
    """
    return _band(gpu.key, claim)


@cache
def _band(key: str, claim: str) -> float:
    if claim == "memory":
        return MEMORY_BAND
    known = anchors.load()
    every = known.anchors if known else []
    mine = [one for one in every if one.claim == claim]
    if not any(one.use == "held out" for one in mine):
        mine = mine + [one for one in every if one.claim == "rate"]
    held = [one for one in mine if one.use == "held out"]
    own = [one for one in held if one.gpu == key]
    if len(own) >= ENOUGH:
        return _nine_of_ten(own)
    if not held:
        return UNKNOWN_BAND
    worst = max((_size(one) for one in mine if one.gpu == key), default=0.0)
    return max(_nine_of_ten(held), math.expm1(worst))


def _nine_of_ten(some: Sequence[Anchor]) -> float:
    return math.expm1(float(np.quantile([_size(one) for one in some], 0.9)))


def _size(anchor: Anchor) -> float:
    """Of its error, the same for twice and for half."""
    return abs(math.log1p(anchor.error))
