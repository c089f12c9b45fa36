"""Published measurements beside the model's predictions: how good the simulation is, as data.

`python -m benchmarks.fit_simulation --write` writes the file, together with the constants that it is about.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Literal

import msgspec
import numpy as np
from msgspec import Struct

FILE = "anchors.json"

Claim = Literal["rate", "amp", "channels_last", "compile", "memory"]
"""`rate` is samples/s, `memory` bytes; the others are the gain of a switch, a ratio of two rates."""


class Anchor(Struct, frozen=True, kw_only=True):
    """One published figure, and what the model predicts for it."""

    gpu: str
    """The name in `--device sim:NAME`."""
    precision: str
    """`float32`, `tf32`, `float16` or `bfloat16`."""
    claim: Claim
    model: str
    family: str = ""
    """Of models that resemble each other; errors are stated for families that were not fitted to."""
    what: str = "training"
    """`training` or `inference`, layout and batch size: `training, NHWC, batch 256`."""
    published: float
    predicted: float
    use: Literal["fitted", "held out", "never fitted"]
    """`held out`: predicted by constants that were fitted without its family. `never fitted`: kept apart."""
    source: str

    @property
    def error(self) -> float:
        """Predicted / published - 1."""
        return self.predicted / self.published - 1


class Anchors(Struct, frozen=True):
    """All of them, for one set of constants."""

    constants: str
    """Digest of the constants that they are about."""
    anchors: list[Anchor]


class Summary(Struct, frozen=True, kw_only=True):
    """Errors of some anchors, as fractions."""

    count: int
    median: float
    p90: float
    worst: Anchor


@cache
def load() -> Anchors:
    """Those of this version of perfkit."""
    return msgspec.json.decode(resources.files("perfkit.simulate").joinpath(FILE).read_bytes(), type=Anchors)


def summary(anchors: Sequence[Anchor]) -> Summary:
    """Median, 90th percentile and the worst of some anchors; there must be one."""
    errors = sorted(abs(anchor.error) for anchor in anchors)
    return Summary(
        count=len(errors), median=statistics.median(errors), p90=float(np.quantile(errors, 0.9)),
        worst=max(anchors, key=lambda anchor: abs(anchor.error)),
    )  # fmt: skip


def grouped(
    anchors: Sequence[Anchor], key: Callable[[Anchor], tuple[str, ...]]
) -> dict[tuple[str, ...], list[Anchor]]:
    """Anchors by some of their properties, in order."""
    groups: dict[tuple[str, ...], list[Anchor]] = {}
    for anchor in anchors:
        groups.setdefault(key(anchor), []).append(anchor)
    return dict(sorted(groups.items()))
