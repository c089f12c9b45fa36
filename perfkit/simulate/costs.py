"""Predicted times of kernels on one GPU: each is limited by arithmetic or by memory, at a share of the peak.

Which share depends on the class of the kernel and on its size. The constants are fitted to published
measurements of whole steps (`benchmarks.fit_simulation`) and checked on others (`Gpu.band`).
"""

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from perfkit.simulate.gpus import GPUS, Gpu
from perfkit.simulate.step import Allocate, Copy, Fetch, Operator, Step, Wait, Work, of_operator

Floats = NDArray[np.float64]
_UNITS = ("float32", "tf32", "tensor")
"""The last one computes what has 16 bits; the last two are Tensor Cores."""


class Constants(msgspec.Struct, frozen=True):
    """One set for all GPUs, models and precisions, as `benchmarks.fit_simulation` writes it."""

    version: int
    """Version of the model: what the values mean."""
    values: dict[str, float]
    """Shares of a peak have no unit; names that end in `_us` are microseconds."""
    sources: dict[str, str]
    """Origins by name prefix; the longest prefix wins."""

    def find(self, gpu: Gpu, name: str) -> float:
        """A constant as it is known of a GPU, its architecture, or all; 1 if it is not."""
        return self.values.get(self._key(gpu, name), 1.0)

    def share(self, gpu: Gpu, kind: str, limit: str) -> float:
        """The share of a peak that a class of kernels reaches; a class without one has that of its parent.

        What is known of all GPUs was measured on an RTX 3090. A class that was slower there than its memory
        was limited by the multiprocessors: with more or faster ones it is faster, up to the bandwidth.

        Args:
            gpu: the GPU.
            kind: a class of kernels, such as `conv.dgrad.strided.nhwc`.
            limit: `compute` or `memory`.
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
        """Identifies the version and all values: the same digest gives the same predictions."""
        content = msgspec.json.encode([self.version, sorted(self.values.items())])
        return hashlib.sha256(content).hexdigest()[:12]


@cache
def constants() -> Constants:
    """The constants in use."""
    content = resources.files("perfkit.simulate").joinpath("constants.json").read_bytes()
    return msgspec.json.decode(content, type=Constants)


class Columns:
    """The same attribute of many works side by side, so that all their times are computed at once."""

    def __init__(self, works: Sequence[Work]) -> None:
        kind, self.nbytes, self.flops, *sizes, precision, self.winograd = map(
            np.array, zip(*works, strict=True)
        )
        self.m, self.n, self.k, self.products = sizes
        names, self.kind = np.unique(kind, return_inverse=True)
        self.kinds: list[str] = names.tolist()
        self.unit = np.select([precision == "float32", precision == "tf32"], [0, 1], 2)
        """What computes it, as a position in `_UNITS`."""


def seconds(columns: Columns, gpu: Gpu, values: Constants) -> Floats:
    """Predicted time of each work on its own, in seconds."""
    memory = _memory_seconds(columns, gpu, values)
    compute = _compute_seconds(columns, gpu, values)
    # Between the two limits neither is reached: the sharper the exponent, the more they overlap.
    overlap = values.find(gpu, "overlap")
    busy = (memory**overlap + compute**overlap) ** (1 / overlap)
    return busy + values.find(gpu, "kernel_us") * 1e-6


def _memory_seconds(columns: Columns, gpu: Gpu, values: Constants) -> Floats:
    tuned = values.find(gpu, "memory")
    shares = [values.share(gpu, kind, "memory") * tuned for kind in columns.kinds]
    # No kernel is faster than the data sheet; a norm counted with three passes needs two at least.
    is_norm = ["_norm.forward" in kind or "_norm.backward" in kind for kind in columns.kinds]
    share = np.minimum(shares, np.where(is_norm, 1.5, 1.0))[columns.kind]
    # What fits the L2 cache is partly still there from the kernel before.
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
    # multiplies 2.25 times less, the second 4 times, but it writes transformed tiles and reads them.
    bandwidth = gpu.bandwidth_gbs * 1e9 * min(1.0, values.share(gpu, "pointwise", "memory"))
    unfused = direct / values.find(gpu, "winograd_unfused") + columns.nbytes * 4.5 / bandwidth
    fastest = np.minimum(direct, np.minimum(direct / values.find(gpu, "winograd_fused"), unfused))
    return np.asarray(np.where(columns.winograd, fastest, direct))


def _size_share(columns: Columns, gpu: Gpu, values: Constants) -> Floats:
    """The share of a large product's rate that a product of this size reaches; 1 for what is no product."""
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


Kernel = tuple[Work, float]
"""A kernel on one GPU, with its predicted time in seconds."""
Action = tuple[Operator | Fetch | Copy | Wait, list[Kernel]]
"""What the host does, and the kernels that it launches with it."""


def actions(step: Step, gpu: Gpu) -> list[Action]:
    """What the host does in a step, in order, with the kernels of its operators on a GPU."""
    if gpu.tf32_tflops is None:  # what may be computed in TF32 is computed in float32 there
        step = replace(step, conv_precision="ieee", matmul_precision="ieee")
    events = [event for event in step.events if not isinstance(event, Allocate)]
    works = [of_operator(event, step) if isinstance(event, Operator) else [] for event in events]
    times = iter(seconds(Columns([work for some in works for work in some]), gpu, constants()).tolist())
    return [
        (event, [(work, next(times)) for work in some]) for event, some in zip(events, works, strict=True)
    ]
