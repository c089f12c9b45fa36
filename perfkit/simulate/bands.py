"""How far off a prediction may be: the model's errors on published figures, applied to what is predicted."""

import math
from functools import cache
from importlib import resources

import msgspec
from msgspec import Struct

from perfkit.recipe import Recipe
from perfkit.simulate.gpus import Gpu
from perfkit.simulate.host import Host

_CLAIMS = ("amp", "channels_last", "compile")
"""Switches whose gain has an error of its own; other changes of kernels have that of a rate."""
_ON_THE_HOST = {
    "workers", "prefetch_factor", "scaled_decode", "pin_memory", "non_blocking", "device_prefetch",
    "cpu_threads", "uint8_copy",
}  # fmt: skip
"""Switches that leave the kernels as they are, or nearly so."""
ENOUGH = 20
"""Figures that speak for a claim alone."""


class Errors(Struct, frozen=True, kw_only=True):
    """The model's errors for one GPU and one kind of claim, as fractions."""

    gpu: str
    claim: str
    """`rate` is samples/s in eager mode, `compiled` with torch.compile; `amp` … are gains of a switch."""
    conditions: str
    figures: int
    use: str
    """`held out`: predicted by constants that were fitted without these models; `fitted`; `never fitted`."""
    median: float
    p90: float
    band: float
    """What is printed: nine in ten of the figures that were not fitted to lie within it."""
    inside: float
    """The share of the figures within the band."""
    worst: str


class ErrorTable(Struct, frozen=True):
    """All errors, for one set of constants."""

    constants: str
    errors: list[Errors]


@cache
def table() -> ErrorTable:
    """The errors of the constants in use; `benchmarks.fit_simulation --write` writes them."""
    content = resources.files("perfkit.simulate").joinpath("errors.json").read_bytes()
    return msgspec.json.decode(content, type=ErrorTable)


def band(gpu: Gpu, claim: str) -> float:
    """The error to allow for, as a fraction. A claim with few figures has at least the band of `rate`."""
    errors = [e for e in table().errors if e.gpu == gpu.key and e.claim == claim and e.use != "fitted"]
    widest = max((e.band for e in errors), default=0.0)
    is_known = claim == "rate" or sum(e.figures for e in errors) >= ENOUGH
    return widest if is_known else max(widest, band(gpu, "rate"))


def of_rate(gpu: Gpu, host: Host, kernel_share: float, is_compiled: bool = False) -> float:
    """The error of samples/s to expect, as a fraction.

    A step of which kernels are a part moves by that part of their error, and by the rest of the host's.
    """
    share = min(1.0, kernel_share)
    kernels = math.log1p(band(gpu, "compiled" if is_compiled else "rate")) * share
    return math.expm1(math.hypot(kernels, math.log1p(host.band) * (1 - share)))


def of_ratio(gpu: Gpu, host: Host, before: tuple[Recipe, float], after: tuple[Recipe, float]) -> float:
    """The error of the ratio of two rates to expect, as a fraction.

    A side is its recipe, and kernel time / step. What both have in common cancels so far as their kernel
    shares agree; to the rest comes the error of the gain of each switch that changes kernels.
    """
    shares = min(1.0, before[1]), min(1.0, after[1])
    differ = abs(shares[0] - shares[1])
    common = math.log1p(band(gpu, "rate")) * differ, math.log1p(host.band) * differ
    changed = [name for name in before[0].diff(after[0]) if name not in _ON_THE_HOST]
    claims = {name if name in _CLAIMS else "rate" for name in changed}
    gains = [math.log1p(band(gpu, claim)) * max(shares) for claim in claims]
    return math.expm1(math.hypot(*common, *gains))
