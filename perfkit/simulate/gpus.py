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
    """A GPU as its data sheet describes it. Rates are dense peaks at boost clock, accumulating in float32."""

    key: str
    name: str
    architecture: Literal["volta", "ampere", "ada"]
    capability: tuple[int, int]
    float32_tflops: float
    tf32_tflops: float | None
    half_tflops: float
    bandwidth_gbs: float
    """Device memory, in 10^9 bytes/s."""
    memory_gib: float
    """What a process can use at most, a little less than the label on the box."""
    l2_mib: float
    multiprocessors: int
    boost_ghz: float
    link_gbs: float
    """Host to device from pinned memory, in 10^9 bytes/s: about 0.8 of the link's nominal rate."""
    anchored: tuple[Literal["float32", "tf32", "float16"], ...]
    """Precisions that are checked against published figures; `float32` without Tensor Cores."""

    @property
    def cycles_per_byte(self) -> float:
        """Clock cycles of all multiprocessors in which device memory delivers a byte."""
        return self.multiprocessors * self.boost_ghz / self.bandwidth_gbs

    def band(self, claim: str) -> float:
        """The error to allow for, as a fraction. A claim with few figures has at least the band of `rate`."""
        table = error_table().errors
        errors = [e for e in table if e.gpu == self.key and e.claim == claim and e.use != "fitted"]
        widest = max((e.band for e in errors), default=0.0)
        is_known = claim == "rate" or sum(e.figures for e in errors) >= _ENOUGH
        return widest if is_known else max(widest, self.band("rate"))


# Anchors: ResNet-50 training (NVIDIA DeepLearningExamples; Lambda's deeplearning-benchmark 0551cb70), a trace
# of ResNet-50 on a V100 (pytorch/kineto), and timm's models (pytorch-image-models aa4b5850, results/):
# training on the RTX 3090, inference on the RTX 4090, both in half precision.
_SHEETS = [
    # NVIDIA V100 datasheet, January 2020; L2 from the Volta architecture white paper.
    Gpu(
        key="v100", name="Tesla V100-SXM2-16GB", architecture="volta", capability=(7, 0),
        float32_tflops=15.7, tf32_tflops=None, half_tflops=125.0, bandwidth_gbs=900, memory_gib=15.77,
        l2_mib=6, multiprocessors=80, boost_ghz=1.53, link_gbs=12.0, anchored=("float32", "float16"),
    ),
    # NVIDIA GA102 architecture white paper, table 2; half precision with float32 accumulation.
    Gpu(
        key="rtx3090", name="GeForce RTX 3090", architecture="ampere", capability=(8, 6),
        float32_tflops=35.6, tf32_tflops=35.6, half_tflops=71.0, bandwidth_gbs=936, memory_gib=23.7,
        l2_mib=6, multiprocessors=82, boost_ghz=1.695, link_gbs=24.0, anchored=("tf32", "float16"),
    ),
    # NVIDIA Ada architecture white paper, table 2; half precision with float32 accumulation.
    Gpu(
        key="rtx4090", name="GeForce RTX 4090", architecture="ada", capability=(8, 9),
        float32_tflops=82.6, tf32_tflops=82.6, half_tflops=165.2, bandwidth_gbs=1008, memory_gib=23.5,
        l2_mib=72, multiprocessors=128, boost_ghz=2.52, link_gbs=24.0, anchored=("tf32", "float16"),
    ),
]  # fmt: skip

GPUS: dict[str, Gpu] = {sheet.key: sheet for sheet in _SHEETS}
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
