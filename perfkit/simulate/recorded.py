"""Times of operators that were recorded on a real GPU: looked up, or interpolated between sizes.

`perfkit record-kernels` writes the files. They may come from anywhere, so they are checked when read.
Importing this module does not import torch.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from perfkit import machine
from perfkit.errors import StoreError
from perfkit.simulate.step import Kernel, Operator, Step, Tensor

_LARGEST = 64 << 20
"""Bytes of a file; one of all built-in workloads has a few millions."""
_APART = 8.0
"""Between two recorded sizes that are farther apart than this, times are not interpolated."""
_CONVOLUTIONS = ("aten.convolution", "aten.convolution_backward")
_MATRICES = ("aten.mm", "aten.addmm")
_BATCHED = ("aten.bmm", "aten.baddbmm")
_ALIASES = {
    "aten.cudnn_batch_norm": "aten.native_batch_norm",
    "aten.cudnn_batch_norm_backward": "aten.native_batch_norm_backward",
    "aten._native_batch_norm_legit": "aten.native_batch_norm",
}
"""A GPU's own names of what a plan calls otherwise; both take the same large tensors."""


class Entry(Struct, frozen=True, forbid_unknown_fields=True):
    """One operator at one size, as it was recorded."""

    name: str
    inputs: list[Tensor]
    outputs: list[Tensor]
    attributes: dict[str, Any]
    seconds: Annotated[float, Meta(gt=0, lt=100)]
    """The median of its repeats, on the device."""
    repeats: Annotated[int, Meta(ge=1)]
    iqr_s: Annotated[float, Meta(ge=0)]
    """Of its repeats."""
    precision: Literal["ieee", "tf32"] = "ieee"
    """Of products of float32."""
    searched: bool = False
    """Whether cuDNN searched for the fastest algorithm (`cudnn_benchmark`)."""


class KernelRecording(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times of operators on one GPU, and the circumstances."""

    schema: Literal["perfkit.kernels/1"] = "perfkit.kernels/1"
    gpu: str
    """The name in `--device sim:NAME`; of a GPU without a data sheet here, its own name."""
    name: str
    """As torch reports it."""
    driver: str
    torch: str
    cuda: str
    cudnn: str
    created: str
    clock_mhz: float | None
    """Of the multiprocessors while it was recorded; None if unknown."""
    overhead_s: float
    """Of timing nothing; it has been subtracted."""
    complete: bool
    """Whether every recipe was recorded, not only those that its time allowed."""
    skipped: dict[str, str] = {}
    """Recipes that could not be trained there, and why."""
    entries: list[Entry] = []

    @property
    def digest(self) -> str:
        """Of its entries."""
        return hashlib.sha256(msgspec.json.encode(self.entries)).hexdigest()[:12]


def load(path: Path) -> KernelRecording:
    """Reads and checks a file.

    Raises:
        StoreError: it is missing, or not such a file.
    """
    remedy = "Make one with `perfkit record-kernels`"
    try:
        if path.stat().st_size > _LARGEST:
            raise StoreError(f"{path} has more than {_LARGEST:,} bytes: no recording of kernels", remedy)
        recording = msgspec.json.decode(path.read_bytes(), type=KernelRecording)
        Times(recording)  # every type must have a size
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}", "Check the path") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, OverflowError) as error:
        raise StoreError(f"{path} is not a recording of kernels ({error})", remedy) from error
    return recording


def folder() -> Path:
    """Where recordings of kernels lie, one file for each GPU."""
    return machine.data_folder() / "recordings" / "kernels"


def find(gpu: str) -> Times | None:
    """What was recorded for a simulated GPU; None if there is no recording.

    Raises:
        StoreError: there is one, but it cannot be read.
    """
    path = folder() / f"{gpu}.json"
    return _load(path, path.stat().st_mtime_ns) if path.is_file() else None


@functools.lru_cache(maxsize=8)
def _load(path: Path, changed: int) -> Times:
    return Times(load(path))


def with_recorded(kernels: Iterable[Kernel], step: Step, gpu: str) -> list[Kernel]:
    """The same kernels; those of operators with a recorded time take that time, and say so.

    The kernels of an operator share its recorded time as they share their modelled one.

    Args:
        kernels: as modelled, those of one operator one after the other.
        step: whose they are.
        gpu: the name in `--device sim:NAME`.

    Raises:
        StoreError: the recording for this GPU cannot be read.
    """
    times, result = find(gpu), list[Kernel]()
    if times is None:
        return list(kernels)
    for index, group in groupby(kernels, key=lambda kernel: kernel.operator):
        own, event = list(group), step.events[index]
        seconds = times.seconds(event, step) if isinstance(event, Operator) else None
        whole = sum(kernel.seconds for kernel in own)
        for kernel in own:
            if seconds is None or not whole:
                result.append(kernel)
            else:
                share = kernel.seconds / whole
                result.append(replace(kernel, seconds=seconds * share, source="recorded"))
    return result


def recorded_share(kernels: Sequence[Kernel]) -> float:
    """The share of the kernels' time that was recorded; 0 to 1."""
    whole = sum(kernel.seconds for kernel in kernels)
    return sum(kernel.seconds for kernel in kernels if kernel.source == "recorded") / whole if whole else 0.0


# ---------------------------------------------------------------- looking up

_Key = tuple[Any, ...]


class Times:
    """Recorded seconds by operator: exact where it was recorded, between two recorded sizes otherwise."""

    def __init__(self, recording: KernelRecording) -> None:
        self.recording = recording
        self._exact: dict[_Key, float] = {}
        families: dict[_Key, dict[float, float]] = {}
        for entry in recording.entries:
            shape = _Shape(entry.name, entry.inputs, entry.outputs, entry.attributes)
            policy = _policy(entry.inputs, entry.name, entry.precision, entry.searched)
            self._exact[shape.key + policy] = entry.seconds
            for family, size in shape.families():
                families.setdefault(family + policy, {})[size] = entry.seconds
        self._has_tf32 = any(entry.precision == "tf32" for entry in recording.entries)
        self._sorted = {family: sorted(sizes.items()) for family, sizes in families.items()}

    def seconds(self, operator: Operator, step: Step) -> float | None:
        """The time of an operator in a step; None if nothing near it was recorded."""
        precision = precision_of(operator.name, step.fp32_precision, step.matmul_precision)
        if not self._has_tf32:  # a GPU without it computes float32 alike, whatever is allowed
            precision = "ieee"
        shape = _Shape(operator.name, operator.inputs, operator.outputs, operator.attributes)
        policy = _policy(operator.inputs, operator.name, precision, step.cudnn_benchmark)
        if (exact := self._exact.get(shape.key + policy)) is not None:
            return exact
        for family, size in shape.families():
            between = _between(self._sorted.get(family + policy, []), size)
            if between is not None:
                return between
        return None


def precision_of(name: str, convolutions: str, products: str) -> str:
    """How float32 may be computed in an operator of this name, by a step's two settings."""
    return (products or convolutions) if name in (*_MATRICES, *_BATCHED) else convolutions


def key_of(operator: Operator, precision: str, searched: bool) -> _Key:
    """What distinguishes an operator's time from another one's."""
    shape = _Shape(operator.name, operator.inputs, operator.outputs, operator.attributes)
    return shape.key + _policy(operator.inputs, operator.name, precision, searched)


def _policy(inputs: Sequence[Tensor], name: str, precision: str, searched: bool) -> _Key:
    """What else decides a time: the precision of float32 products, cuDNN's search for convolutions."""
    product = name in (*_CONVOLUTIONS, *_MATRICES, *_BATCHED)
    is_float32 = any(tensor.dtype == "float32" for tensor in inputs)
    return precision if product and is_float32 else "", searched and name in _CONVOLUTIONS


def _decides(name: str, value: object) -> bool:
    """Whether an attribute can change an operator's time: rates and sizes of the outputs cannot."""
    numbers = value if isinstance(value, list | tuple) else [value]
    return name not in ("alpha", "beta", "value", "size", "seed") and not any(
        isinstance(number, float) for number in numbers
    )


class _Shape:
    """An operator with its sizes apart from the rest."""

    def __init__(
        self, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], attributes: dict[str, Any]
    ) -> None:
        self.name = _ALIASES.get(name, name)
        norm = "batch_norm" in self.name
        # Of a batch norm, only the activations matter; the GPU's own operator orders the rest otherwise.
        self.inputs = [tensor for tensor in inputs if len(tensor.shape) > 1] if norm else list(inputs)
        self.nbytes = sum(tensor.nbytes for tensor in (*self.inputs, *outputs))
        decisive = {} if norm else {key: value for key, value in attributes.items() if _decides(key, value)}
        self._attributes = json.dumps(decisive, sort_keys=True, default=str)
        self._types = tuple((tensor.dtype, tensor.layout) for tensor in self.inputs)

    @property
    def key(self) -> _Key:
        """Everything."""
        return self.name, self._types, self._attributes, tuple(tensor.shape for tensor in self.inputs)

    def families(self) -> list[tuple[_Key, float]]:
        """Operators that differ from this one in a single size, and that size of this one."""
        shapes = [tensor.shape for tensor in self.inputs]
        if not shapes or not shapes[0]:  # a scalar has no size to vary
            return []
        start = (self.name, self._types, self._attributes)
        if self.name in _CONVOLUTIONS:  # by batch: the first tensor of a backward is the gradient
            batched = 1 + (self.name == "aten.convolution_backward")
            rest = tuple(shape[1:] if at < batched else shape for at, shape in enumerate(shapes))
            return [((*start, rest), float(shapes[0][0]))]
        if self.name in _BATCHED or "attention" in self.name:
            return [((*start, tuple(shape[1:] for shape in shapes)), float(shapes[0][0]))]
        if self.name in _MATRICES and len(shapes) > 1 and len(shapes[-2]) == 2 == len(shapes[-1]):
            (m, k), n = shapes[-2], shapes[-1][1]
            sizes = {"m": m, "k": k, "n": n}
            return [
                ((*start, name, tuple(value for other, value in sizes.items() if other != name)), float(size))
                for name, size in sizes.items()
            ]
        if self.name in ("fused", *_MATRICES):
            return []
        return [((*start, len(shapes)), float(self.nbytes))]


def _between(known: Sequence[tuple[float, float]], size: float) -> float | None:
    """The time at a size on the straight line, in logarithms, between its neighbours; None outside."""
    at = bisect.bisect_left(known, (size, 0.0))
    if at < len(known) and known[at][0] == size:
        return known[at][1]
    if at in (0, len(known)) or size <= 0:
        return None
    (low, before), (high, after) = known[at - 1], known[at]
    if low <= 0 or high / low > _APART:
        return None
    part = math.log(size / low) / math.log(high / low)
    return math.exp((1 - part) * math.log(before) + part * math.log(after))
