"""What one training step asks of a GPU: operators, copies, waits and memory. The same for every GPU."""

import math
import re
from functools import cache
from typing import Any, Literal

from msgspec import Struct

Phase = Literal["copy", "prepare", "forward", "backward", "optimizer"]
"""Where in a step; `prepare` is what a workload does to a batch on the device."""
Layout = Literal["contiguous", "channels_last", "strided"]
MemoryKind = Literal["weights", "gradients", "optimizer", "activations", "batch", "workspace"]


@cache
def _item_bytes(dtype: str) -> int:
    bits = re.search(r"\d+", dtype)
    return int(bits[0]) // 8 if bits else 1


class Tensor(Struct, frozen=True, array_like=True):
    """A tensor without its numbers."""

    shape: tuple[int, ...]
    dtype: str
    """torch's name without `torch.`."""
    layout: Layout = "contiguous"
    block: int = 0
    """The number of its memory: views of one tensor share it."""

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * _item_bytes(self.dtype)


class Operator(Struct, frozen=True, tag="operator"):
    """An operator that launches kernels. Views and allocations launch none and are not recorded."""

    name: str
    """torch's, such as `aten.convolution_backward`; `fused` for a kernel of torch.compile."""
    phase: Phase
    inputs: list[Tensor]
    outputs: list[Tensor]
    attributes: dict[str, Any] = {}
    """Of a convolution, the arguments that are no tensors; of a fused kernel, its `reduction`."""
    stream: int = 0


class Fetch(Struct, frozen=True, tag="fetch"):
    """The loop takes the next batch from its loader, which it may have to wait for."""


class Copy(Struct, frozen=True, tag="copy"):
    """A copy between host and device."""

    nbytes: int
    to: Literal["device", "host"] = "device"
    pinned: bool = False
    non_blocking: bool = False
    stream: int = 0


class Wait(Struct, frozen=True, tag="wait"):
    """The host waits until a stream has finished (`.item()`), or one stream waits for another."""

    what: str
    stream: int = 0
    streams: tuple[int, int] | None = None
    """(waiting, awaited), where a stream waits and not the host."""


class Allocate(Struct, tag="allocate"):
    """Device memory that is taken, or given back (negative). Its kind may be known later."""

    nbytes: int
    kind: MemoryKind
    block: int


Event = Operator | Fetch | Copy | Wait | Allocate


class Step(Struct, frozen=True, kw_only=True):
    """One steady training step, in the order in which the host issues it."""

    events: list[Event]
    resident: list[Allocate] = []
    """Device memory in use before the step."""
    samples: int
    compiled: bool = False
    conv_precision: str = "ieee"
    """`tf32` or another of torch's words, for float32 convolutions; the next one for float32 products."""
    matmul_precision: str = "ieee"

    @property
    def operators(self) -> list[Operator]:
        return [event for event in self.events if isinstance(event, Operator)]

    @property
    def copies(self) -> list[Copy]:
        return [event for event in self.events if isinstance(event, Copy)]
