"""The GPUs that can be simulated: data sheets, predicted kernel times, and errors on published figures.

A kernel is limited by arithmetic or by memory, at a share of the peak that depends on the kernel's class and
size. The constants are fitted to published measurements of whole steps (`benchmarks.fit_simulation`) and
checked on others (`Gpu.band`).
"""

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Literal

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from perfkit import lookup
from perfkit.additions.simulate.step import Allocate, Event, OperatorCall, StepEvents, Work, of_operator
from perfkit.errors import InvalidValue, one_of

Floats = NDArray[np.float64]
_FOLDER = resources.files("perfkit.additions.simulate")
_UNITS = ("float32", "tf32", "tensor")  # the last one computes 16-bit types; the last two are Tensor Cores
_ENOUGH = 20  # figures with which a claim's own error is enough


class Errors(Struct, frozen=True, kw_only=True):
    """The model's errors for one GPU and one kind of claim, as fractions."""

    gpu: str
    claim: str
    """`rate` is samples/s in eager mode, `compiled` with torch.compile; `amp` … are gains of one switch."""
    conditions: str
    figures: int
    use: str
    """`held out`: predicted by constants that were fitted without these models; `fitted`; `never fitted`."""
    median: float
    p90: float
    band: float  # the printed error: nine in ten figures that were not fitted are within it
    inside: float  # the share of the figures within the band
    worst: str


class ErrorTable(Struct, frozen=True):
    """All errors of one set of constants."""

    constants: str
    errors: list[Errors]


@cache
def error_table() -> ErrorTable:
    """The errors of the current constants; `benchmarks.fit_simulation --write` writes them."""
    return msgspec.json.decode(_FOLDER.joinpath("errors.json").read_bytes(), type=ErrorTable)


class Gpu(Struct, frozen=True, kw_only=True):
    """A GPU as its data sheet describes it; the sources are in `gpus.toml`."""

    key: str
    name: str
    architecture: Literal["volta", "ampere", "ada"]
    capability: tuple[int, int]
    float32_tflops: float
    tf32_tflops: float | None = None
    half_tflops: float
    bandwidth_gbs: float  # device memory, in 10^9 bytes/s
    memory_gib: float
    l2_mib: float
    multiprocessors: int
    boost_ghz: float
    link_gbs: float  # host to device, in 10^9 bytes/s
    anchored: tuple[Literal["float32", "tf32", "float16"], ...]
    """The precisions that are checked against published figures; `float32` means without Tensor Cores."""

    @property
    def cycles_per_byte(self) -> float:
        """The clock cycles of all multiprocessors in the time that device memory needs to deliver a byte."""
        return self.multiprocessors * self.boost_ghz / self.bandwidth_gbs

    def band(self, claim: str) -> float:
        """The expected error, as a fraction. A claim with few figures has at least the band of `rate`."""
        about = self.key, claim
        errors = [e for e in error_table().errors if (e.gpu, e.claim) == about and e.use != "fitted"]
        widest = max((e.band for e in errors), default=0.0)
        if claim == "rate" or sum(e.figures for e in errors) >= _ENOUGH:
            return widest
        return max(widest, self.band("rate"))


GPUS = {sheet.key: sheet for sheet in msgspec.convert(lookup.toml(__package__, "gpus")["gpu"], list[Gpu])}
"""GPUs by the name that follows `sim:`."""

_WITHOUT_FIGURES = ("a100", "a100-40", "h100", "h200", "b200")


def gpu(key: str) -> Gpu:
    """The data sheet of `v100` or another; an `InvalidValue` if it is unknown, or no table covers it."""
    if key in _WITHOUT_FIGURES:
        what = f"sim:{key} is refused: only ResNet-50 is published for it. It says little about other models"
        table = "a table of many models trained on it, eager and with AMP, as timm's benchmark.py writes it"
        raise InvalidValue(what, f"Choose {', '.join(sorted(GPUS))}; {table}, would make this GPU available")
    if key not in GPUS:
        raise one_of(key, sorted(GPUS), "simulated GPU")
    return GPUS[key]


class Constants(Struct, frozen=True):
    """One set of constants for all GPUs, models and precisions; `benchmarks.fit_simulation` writes it."""

    version: int  # version of the model, which says what the values mean
    values: dict[str, float]  # shares of a peak have no unit; names that end in `_us` are microseconds
    sources: dict[str, str]  # sources by name prefix; the longest prefix counts

    def find(self, gpu: Gpu, name: str) -> float:
        """A constant of this GPU, or of its architecture, or of all GPUs; 1 if there is none."""
        return self.values.get(self._key(gpu, name), 1.0)

    def share(self, gpu: Gpu, kind: str, limit: str) -> float:
        """The share of the peak (of `compute` or `memory`) that a class of kernels, or its parent, reaches.

        The constants of all GPUs were measured on an RTX 3090. A class that was slower there than its memory
        was limited by the multiprocessors. With more or faster ones it is faster, up to the bandwidth.
        """
        parts = kind.split(".")
        names = [".".join([*parts[:end], limit]) for end in range(len(parts), 0, -1)]
        key = self._key(gpu, *names, f"other.{limit}")
        if limit == "compute" or "/" in key:
            return self.values[key]
        return self.values[key] * max(1.0, gpu.cycles_per_byte / GPUS["rtx3090"].cycles_per_byte)

    def _key(self, gpu: Gpu, *names: str) -> str:
        own = f"{gpu.key}.", f"{gpu.architecture}.", f"{gpu.architecture}/", ""
        keys = (prefix + name for name in names for prefix in own)
        return next((key for key in keys if key in self.values), "")

    @property
    def digest(self) -> str:
        """Identifies the version and all values: equal digests give equal predictions."""
        content = msgspec.json.encode([self.version, sorted(self.values.items())])
        return hashlib.sha256(content).hexdigest()[:12]


@cache
def constants() -> Constants:
    """The current constants."""
    return msgspec.json.decode(_FOLDER.joinpath("constants.json").read_bytes(), type=Constants)


class Columns:
    """Columns of the attributes of many works, so that all their times are computed at once."""

    def __init__(self, works: Sequence[Work]) -> None:
        columns = map(np.array, zip(*works, strict=True))
        kind, self.nbytes, self.flops, *sizes, precision, self.winograd = columns
        self.m, self.n, self.k, self.products = sizes
        names, self.kind = np.unique(kind, return_inverse=True)
        self.kinds: list[str] = names.tolist()
        self.unit = np.select([precision == "float32", precision == "tf32"], [0, 1], 2)
        """The unit that computes each work, as an index of `_UNITS`."""


def seconds(columns: Columns, gpu: Gpu, values: Constants) -> Floats:
    """The predicted time of each work alone, in seconds."""
    memory = _memory_seconds(columns, gpu, values)
    compute = _compute_seconds(columns, gpu, values)
    # Between the two limits a kernel reaches neither: the larger the exponent, the more they overlap.
    overlap = values.find(gpu, "overlap")
    busy = (memory**overlap + compute**overlap) ** (1 / overlap)
    return busy + values.find(gpu, "kernel_us") * 1e-6


def _memory_seconds(columns: Columns, gpu: Gpu, values: Constants) -> Floats:
    tuned = values.find(gpu, "memory")
    shares = [values.share(gpu, kind, "memory") * tuned for kind in columns.kinds]
    # No kernel is faster than the data sheet. A norm counts as three passes, but needs only two.
    is_norm = ["_norm.forward" in kind or "_norm.backward" in kind for kind in columns.kinds]
    share = np.minimum(shares, np.where(is_norm, 1.5, 1.0))[columns.kind]
    # Data that fits into the L2 cache is partly still there from the previous kernel.
    reach = gpu.l2_mib * 2**20 * values.find(gpu, "l2_reach")
    hits = np.exp(-columns.nbytes / reach) * values.find(gpu, "l2_saving")
    return columns.nbytes * (1 - hits) / (gpu.bandwidth_gbs * 1e9 * share)


def _compute_seconds(columns: Columns, gpu: Gpu, values: Constants) -> Floats:
    shares = np.array([values.share(gpu, kind, "compute") for kind in columns.kinds])
    tflops = gpu.float32_tflops, gpu.tf32_tflops or np.inf, gpu.half_tflops  # of each unit
    peak = 1e12 * np.array(tflops)[columns.unit]
    tuned = np.array([values.find(gpu, unit) for unit in _UNITS])
    share = np.minimum(shares[columns.kind] * tuned[columns.unit], 1.0)
    direct = columns.flops / (peak * share * _size_share(columns, gpu, values))
    # Winograd's algorithms: fused F(2x2, 3x3), non-fused F(4x4, 3x3); cuDNN takes the fastest. The first
    # needs 2.25 times fewer multiplications, the second 4 times, but it writes and reads transformed tiles.
    bandwidth = gpu.bandwidth_gbs * 1e9 * min(1.0, values.share(gpu, "pointwise", "memory"))
    unfused = direct / values.find(gpu, "winograd_unfused") + columns.nbytes * 4.5 / bandwidth
    fastest = np.minimum(direct, np.minimum(direct / values.find(gpu, "winograd_fused"), unfused))
    return np.asarray(np.where(columns.winograd, fastest, direct))


def _size_share(columns: Columns, gpu: Gpu, values: Constants) -> Floats:
    """The share of a large product's rate that a product of this size reaches; 1 for other work."""
    half_mn, half_k, wave = (values.find(gpu, name) for name in ("half_mn", "half_k", "wave"))
    tile = 128
    padded = np.where(columns.unit == 0, 1, 8)
    m, n, k = (np.maximum(side, 1) for side in (columns.m, columns.n, columns.k))
    share = m * n / ((m + half_mn) * (n + half_mn)) * k / (k + half_k)
    share = share * np.prod([side / (np.ceil(side / padded) * padded) for side in (m, n, k)], axis=0)
    blocks = np.ceil(m / tile) * np.ceil(n / tile) * columns.products
    is_split = np.array(["wgrad" in kind for kind in columns.kinds])[columns.kind]
    blocks = np.where(is_split, blocks * np.maximum(1, k / 1024), blocks)
    waves = blocks / gpu.multiprocessors
    share = share * np.maximum(waves / np.ceil(waves), 0.01) ** wave
    return np.where(columns.m > 0, share, 1.0)


Kernel = tuple[Work, float]  # a kernel on one GPU, with its predicted time in seconds
Action = tuple[Event, list[Kernel]]
"""What the host does, and the kernels that it launches for it."""


def actions(step: StepEvents, gpu: Gpu) -> list[Action]:
    """The actions of the host in a step, in order, with the kernels that its operators launch on a GPU."""
    if gpu.tf32_tflops is None:  # a GPU without TF32 computes in float32
        step = replace(step, conv_precision="ieee", matmul_precision="ieee")
    events = [event for event in step.events if not isinstance(event, Allocate)]
    works = [of_operator(event, step) if isinstance(event, OperatorCall) else [] for event in events]
    times = iter(seconds(Columns([work for some in works for work in some]), gpu, constants()).tolist())
    return [(event, [(work, next(times)) for work in own]) for event, own in zip(events, works, strict=True)]
