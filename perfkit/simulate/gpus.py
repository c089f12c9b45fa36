"""The GPUs that can be simulated: their data sheets, and the model's errors on published figures."""

from functools import cache
from importlib import resources
from typing import Literal

import msgspec
from msgspec import Struct

from perfkit.errors import InvalidValue, one_of

_ENOUGH = 20
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
def error_table() -> ErrorTable:
    """The errors of the constants in use; `benchmarks.fit_simulation --write` writes them."""
    content = resources.files("perfkit.simulate").joinpath("errors.json").read_bytes()
    return msgspec.json.decode(content, type=ErrorTable)


class Gpu(Struct, frozen=True, kw_only=True):
    """A GPU as its data sheet describes it; `gpus.toml` says where from."""

    key: str
    name: str
    architecture: Literal["volta", "ampere", "ada"]
    capability: tuple[int, int]
    float32_tflops: float
    tf32_tflops: float | None = None
    half_tflops: float
    bandwidth_gbs: float
    """Device memory, in 10^9 bytes/s."""
    memory_gib: float
    l2_mib: float
    multiprocessors: int
    boost_ghz: float
    link_gbs: float
    """Host to device, in 10^9 bytes/s."""
    anchored: tuple[Literal["float32", "tf32", "float16"], ...]
    """Precisions that published figures vouch for; `float32` without Tensor Cores."""

    @property
    def cycles_per_byte(self) -> float:
        """Clock cycles of all multiprocessors in which device memory delivers a byte."""
        return self.multiprocessors * self.boost_ghz / self.bandwidth_gbs

    def band(self, claim: str) -> float:
        """The error to allow for, as a fraction. A claim with few figures has at least the band of `rate`."""
        about = self.key, claim
        errors = [e for e in error_table().errors if (e.gpu, e.claim) == about and e.use != "fitted"]
        widest = max((e.band for e in errors), default=0.0)
        if claim == "rate" or sum(e.figures for e in errors) >= _ENOUGH:
            return widest
        return max(widest, self.band("rate"))


_SHEETS = resources.files("perfkit.simulate").joinpath("gpus.toml").read_bytes()
GPUS = {sheet.key: sheet for sheet in msgspec.toml.decode(_SHEETS, type=dict[str, list[Gpu]])["gpu"]}
"""By the name that follows `sim:`."""

_WITHOUT_FIGURES = ("a100", "a100-40", "h100", "h200", "b200")


def gpu(key: str) -> Gpu:
    """The data sheet of `v100`, `rtx3090` or `rtx4090`.

    Raises:
        InvalidValue: an unknown name, or a GPU that no published table covers.
    """
    if key in _WITHOUT_FIGURES:
        raise InvalidValue(
            f"sim:{key} is refused: only ResNet-50 is published for it, and says little about other models",
            f"Choose {', '.join(sorted(GPUS))}; a table of many models trained on it, eager and with AMP, as "
            "timm's benchmark.py writes it, would bring this GPU",
        )
    if key not in GPUS:
        raise one_of(key, sorted(GPUS), "simulated GPU")
    return GPUS[key]
