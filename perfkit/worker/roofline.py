"""A step under the roofs of its device, and layers whose sizes do not suit it: plain numbers, no torch."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from perfkit.worker.reports import MisalignedLayer, StepWork

_MULTIPLE = 8
"""Of which sizes should be multiples, for Tensor Cores to compute 16-bit types fast (NVIDIA's rule)."""


class Operator(NamedTuple):
    """One call of an operator."""

    flops: int
    """Of a product or convolution; 0 for any other."""
    bytes: int
    """That it reads and writes."""


def shares(
    work: StepWork,
    operators: Sequence[Operator],
    step_s: float,
    peaks: Mapping[str, float],
    bytes_per_s: float,
) -> tuple[float | None, float | None]:  # fmt: skip
    """MFU, and the least time of all operators / the step's; None where the work is not known.

    An operator computes and moves data at the same time, so it needs the longer of the two (the roofline
    model: Williams, Waterman and Patterson 2009, doi:10.1145/1498765.1498785).
    """
    if not work.flops or work.dtype not in peaks:
        return None, None
    peak = peaks[work.dtype]
    least_s = sum(max(flops / peak, moved / bytes_per_s) for flops, moved in operators)
    return work.flops / peak / step_s, least_s / step_s


def misaligned_layer(name: str, kind: str, sizes: tuple[int, int]) -> MisalignedLayer | None:
    """What padding a layer's sizes (in, out) to suit 16-bit matrix units costs; None if they suit them."""
    padded = [-(-size // _MULTIPLE) * _MULTIPLE for size in sizes]
    if padded == list(sizes):
        return None
    more = padded[0] * padded[1] / (sizes[0] * sizes[1]) - 1
    return MisalignedLayer(layer=name, kind=kind, sizes=list(sizes), padded=padded, more_flops=more)
