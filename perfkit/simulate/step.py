"""What one training step asks of a device: its operators, copies, waits and memory, whatever the GPU.

A step is recorded once (`simulate.planning`), independent of the GPU. `simulate.costs` turns its operators
into kernels with predicted times for one GPU. Importing this module does not import torch.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

Phase = Literal["copy", "prepare", "forward", "backward", "optimizer"]
"""Where in a step; `prepare` is what a workload does to a batch on the device."""
MemoryKind = Literal["parameters", "gradients", "optimizer", "activations", "inputs", "temporary"]

_SIZES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2, "int32": 4,
    "uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor without its numbers."""

    shape: tuple[int, ...]
    dtype: str
    """torch's name of it, without `torch.`."""
    layout: Literal["contiguous", "channels_last", "strided"] = "contiguous"

    @property
    def nbytes(self) -> int:
        """Of its elements."""
        return math.prod(self.shape) * _SIZES[self.dtype]


class Operator(msgspec.Struct, frozen=True, tag="operator"):
    """One operator that launches kernels; views and allocations launch none and are not recorded."""

    name: str
    """torch's, such as `aten.convolution_backward`; of a kernel that torch.compile fuses, `fused`."""
    phase: Phase
    inputs: list[Tensor]
    outputs: list[Tensor]
    attributes: dict[str, Any] = {}
    """What decides its cost beyond shapes: of convolutions `stride`, `padding`, `dilation`, `groups`,
    `transposed`, `output_mask`; of fused kernels `nodes` (the operators in it) and `reduction`; whether it
    works in place (`inplace`)."""
    module: str = ""
    """The dotted name of the module in whose forward it was called, also for its backward."""
    site: str = ""
    """`file:line` of the innermost frame that is not torch's."""
    stream: int = 0
    """0 is the default stream."""


class Fetch(msgspec.Struct, frozen=True, tag="fetch"):
    """The loop takes the next batch from its loader, which it may have to wait for."""

    site: str = ""


class Copy(msgspec.Struct, frozen=True, tag="copy"):
    """A copy between host and device."""

    nbytes: int
    to: Literal["device", "host"] = "device"
    pinned: bool = False
    non_blocking: bool = False
    stream: int = 0
    """0 is the default stream."""
    site: str = ""


class Wait(msgspec.Struct, frozen=True, tag="wait"):
    """The host waits until the device has finished: `.item()`; or one stream waits for another."""

    what: str
    streams: tuple[int, int] | None = None
    """(waiting, awaited), where a stream waits and not the host."""
    every: int = 1
    """It happens in every n-th step only: reading the loss with `log_every`."""
    site: str = ""


class Allocate(msgspec.Struct, frozen=True, tag="allocate"):
    """Device memory that is taken, or given back (negative)."""

    nbytes: int
    kind: MemoryKind
    block: int
    """The same number when it is given back."""


Event = Operator | Fetch | Copy | Wait | Allocate


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One steady training step, in the order in which the host issues it."""

    events: list[Event]
    resident: list[Allocate] = []
    """Device memory in use before the step: weights, optimizer state, a resident data set. The step may give
    some of it back."""
    samples: int
    torch: str
    """The version that planned it."""
    compiled: bool = False
    graph: bool = False
    """Whether its operators are launched as one CUDA graph."""
    fp32_precision: str = "ieee"
    """Of convolutions, and of matrix products if `matmul_precision` is empty: `ieee` or `tf32`."""
    matmul_precision: str = ""
    cudnn_benchmark: bool = False

    @property
    def resident_bytes(self) -> int:
        """Device memory in use before the step."""
        return sum(block.nbytes for block in self.resident)

    @property
    def copied_bytes(self) -> int:
        """What is copied from host to device in the step."""
        return sum(event.nbytes for event in self.events if isinstance(event, Copy) and event.to == "device")

    @property
    def operators(self) -> list[Operator]:
        """Its operators alone."""
        return [event for event in self.events if isinstance(event, Operator)]


class Kernel(msgspec.Struct, frozen=True):
    """One kernel of one GPU, with a predicted time."""

    name: str
    kind: str
    """`conv`, `gemm`, `attention`, `norm`, `pool`, `pointwise`, `reduction`, `layout`, `optimizer` …"""
    seconds: float
    operator: int
    """Its operator: index into `Step.events`."""
    flops: float = 0.0
    nbytes: float = 0.0
    tensor_cores: bool = False
