"""The demands of a training step on any GPU: operators and their work, copies, waits, memory."""

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from perfkit import lookup

Phase = Literal["copy", "prepare", "forward", "backward", "optimizer"]
"""The part of a step; `prepare` is a workload's own work on a batch on the device."""
Layout = Literal["contiguous", "channels_last", "strided"]
MemoryKind = Literal["weights", "gradients", "optimizer", "activations", "batch", "workspace"]


@cache
def _item_bytes(dtype: str) -> int:
    bits = re.search(r"\d+", dtype)
    return int(bits[0]) // 8 if bits else 1


class Tensor(Struct, frozen=True):
    """A tensor without its numbers."""

    shape: tuple[int, ...]
    dtype: str  # its name without `torch.`
    layout: Layout = "contiguous"
    block: int = 0  # the number of its memory block, which views share

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * _item_bytes(self.dtype)


class OperatorCall(Struct, frozen=True):
    """An operator that launches kernels. Views and allocations launch none, so they are not recorded."""

    name: str  # torch's, such as `aten.convolution_backward`; `fused` for a kernel of torch.compile
    phase: Phase
    inputs: list[Tensor]
    outputs: list[Tensor]
    attributes: dict[str, Any] = {}
    """For a convolution, the arguments that are not tensors; for a fused kernel, its `reduction`."""
    stream: int = 0


class Fetch(Struct, frozen=True):
    """The loop takes the next batch from its loader, which it may have to wait for."""


class Copy(Struct, frozen=True):
    """A copy between host and device."""

    nbytes: int
    to: Literal["device", "host"] = "device"
    pinned: bool = False
    non_blocking: bool = False
    stream: int = 0


class Wait(Struct, frozen=True):
    """The host waits until the default stream has finished (`.item()`), or one stream waits for another."""

    streams: tuple[int, int] | None = None  # (waiting, awaited), if a stream waits


class Allocate(Struct):
    """Device memory that is allocated, or freed (negative). Its kind may only be known later."""

    nbytes: int
    kind: MemoryKind
    block: int


Event = OperatorCall | Fetch | Copy | Wait | Allocate


class StepEvents(Struct, frozen=True, kw_only=True):
    """One steady training step, in the order in which the host issues it."""

    events: list[Event]
    resident: list[Allocate] = []  # device memory in use before the step
    compiled: bool = False
    conv_precision: str = "ieee"
    """torch's word for the precision of float32 convolutions, such as `tf32`; then that of products."""
    matmul_precision: str = "ieee"


_HALF = ("float16", "bfloat16")
_TENSORS_PER_LAUNCH = 64
"""About how many tensors a foreach kernel takes: 110 for one list of tensors, 48 for three."""


class Work(NamedTuple):
    """The work of one kernel."""

    kind: str  # its class, with which the names of its constants begin: `conv.forward.nhwc`, `pointwise` …
    nbytes: float  # read and written, each operand once
    flops: float = 0.0
    m: int = 0  # of the equivalent matrix product `[m, k] x [k, n]`; 0 if there is none
    n: int = 0
    k: int = 0
    products: int = 1  # the number of products: batches, or groups of a convolution
    precision: str = "float32"  # `float32`, or on Tensor Cores: `tf32`, `float16` or `bfloat16`
    winograd: bool = False  # whether Winograd's algorithms could compute it


_KINDS = {name: kind for kind, names in lookup.toml(__package__, "names").items() for name in names.split()}
_NORMS = ("batch_norm", "layer_norm", "group_norm")
_BY_LAYOUT = ("pool.forward", "pool.backward", "reduction")


def of_operator(op: OperatorCall, step: StepEvents) -> list[Work]:
    """The kernels of one operator."""
    name = op.name.removeprefix("aten.")
    kind = _KINDS.get(name, "")
    if name.startswith("convolution"):
        return _convolution(op, step.conv_precision)
    if name.startswith(("_foreach", "_fused_")):
        return _foreach(op)
    if kind == "product":
        return [_product(op, step.matmul_precision)]
    if "attention" in name:
        return [_attention(op, step.matmul_precision)]
    for norm in _NORMS:
        if norm in name:
            return [_norm(norm, op)]
    return [_moving(name, kind, op)]


def _nbytes(tensors: Sequence[Tensor]) -> float:
    return float(sum(tensor.nbytes for tensor in tensors))


def _layout(tensor: Tensor) -> str:
    return "nhwc" if tensor.layout == "channels_last" else "nchw"


def _precision(tensor: Tensor, of_float32: str) -> str:
    if tensor.dtype in _HALF:
        return tensor.dtype
    return "tf32" if of_float32 == "tf32" else "float32"


def _convolution(op: OperatorCall, of_float32: str) -> list[Work]:
    """The products of a convolution or of its backward pass, and the gradient of its bias."""
    about, backward = op.attributes, op.name.endswith("_backward")
    y, x, w = op.inputs[:3] if backward else (op.outputs[0], *op.inputs[:2])
    wanted = about["output_mask"] if backward else (True, False, False)
    reduction = [Work(f"reduction.{_layout(y)}", _nbytes([y]))] if wanted[2] else []
    first = "forward" if backward == about["transposed"] else "dgrad"
    if about["transposed"]:
        x, y = y, x
    parts = itertools.compress((first, "wgrad"), wanted)
    works = [_conv_part(part, x, w, y, about, _precision(x, of_float32)) for part in parts]
    return [*itertools.chain(*works), *reduction]


def _conv_kind(x: Tensor, w: Tensor, groups: int) -> str:
    if groups > 1 and groups == x.shape[1]:
        return "depthwise"
    if groups > 1:
        # Libraries have fast kernels only for many narrow groups of equal, round width.
        depth, width = w.shape[1], w.shape[0] // groups
        fast = depth == width and width in (4, 8, 16, 32) and groups >= 8
        return "grouped" if fast else "grouped_wide"
    if x.shape[1] <= 4:
        return "stem"
    return "conv" if math.prod(w.shape[2:]) > 1 else "conv1x1"


def _conv_part(
    part: str, x: Tensor, w: Tensor, y: Tensor, about: dict[str, Any], precision: str
) -> Iterator[Work]:
    """One of the three products of a convolution from `x` to `y`, and the cost of converting layouts."""
    groups = about["groups"]
    taps = math.prod(w.shape[2:])
    kind = _conv_kind(x, w, groups)
    layout = _layout(x)
    places = y.shape[0] * math.prod(y.shape[2:])
    depth, width = x.shape[1] // groups, y.shape[1] // groups
    flops = 2.0 * places * y.shape[1] * depth * taps
    strided = max(about["stride"]) > 1
    is_plain = not strided and max(about["dilation"]) == 1
    nbytes = _nbytes([x, w, y])
    name = f"{kind}.{part}"
    if strided and part == "dgrad":
        name += ".strided"
    if kind == "depthwise":  # not a matrix product: one channel at a time, without Tensor Cores
        yield Work(f"{name}.{layout}", nbytes, flops)
        return
    winograd = kind == "conv" and tuple(w.shape[2:]) == (3, 3) and is_plain and precision == "float32"
    if precision == "float32":
        layout += ".fp32"  # different kernels, without Tensor Cores
    elif layout == "nchw":
        tf32 = ".tf32" if precision == "tf32" else ""
        yield Work(f"convert.{kind}{tf32}", 2 * _nbytes([x, y]))
    m, n, k = {
        "forward": (places, width, depth * taps),
        "dgrad": (x.shape[0] * math.prod(x.shape[2:]), depth, width * taps),
        "wgrad": (width, depth * taps, places),
    }[part]
    yield Work(f"{name}.{layout}", nbytes, flops, m, n, k, groups, precision, winograd)


def _product(op: OperatorCall, of_float32: str) -> Work:
    a, b = op.inputs[-2:]
    kind, count = ("bmm", a.shape[0]) if len(a.shape) == 3 else ("gemm", 1)
    m, k = a.shape[-2:]
    n = b.shape[-1]
    precision = _precision(a, of_float32)
    return Work(kind, _nbytes([a, b, *op.outputs[:1]]), 2.0 * count * m * n * k, m, n, k, count, precision)


def _attention(op: OperatorCall, of_float32: str) -> Work:
    part, first, products = ("backward", 1, 5) if "backward" in op.name else ("forward", 0, 2)
    q, k = op.inputs[first : first + 2]
    *heads, length, width = q.shape
    sizes = length, k.shape[-2], width, math.prod(heads)
    nbytes = _nbytes(op.inputs + op.outputs)
    flops = 2.0 * products * math.prod(sizes)
    return Work(f"attention.{part}", nbytes, flops, *sizes, _precision(q, of_float32))


def _norm(kind: str, op: OperatorCall) -> Work:
    """A norm: forward, which reads the input twice, or backward."""
    is_backward = op.name.endswith("_backward")
    x = op.inputs[min(is_backward, len(op.inputs) - 1)]
    layout = f".{_layout(x)}" if len(x.shape) == 4 else ""
    if kind == "batch_norm" and not is_backward and op.outputs[1].numel == 0:
        return Work(f"batch_norm.inference{layout}", 2.0 * x.nbytes)
    part, passes = ("backward", 5) if is_backward else ("forward", 3)
    return Work(f"{kind}.{part}{layout}", float(passes * x.nbytes))


def _foreach(op: OperatorCall) -> list[Work]:
    own = op.inputs[: len(op.inputs) // op.attributes["lists"]]
    launches = max(1, math.ceil(len(own) / _TENSORS_PER_LAUNCH))
    nbytes = _nbytes(op.inputs + (op.outputs or own))
    return [Work("foreach", nbytes / launches)] * launches


def _moving(name: str, kind: str, op: OperatorCall) -> Work:
    """A kernel that is limited by memory."""
    moved = op.inputs + op.outputs
    if name == "fused":
        kind = "fused.reduction" if op.attributes["reduction"] else "fused"
    elif name.startswith(("upsample", "grid_sampler")):
        kind = "scatter" if "backward" in name else "gather"
    elif kind == "copy":  # it is read once and written once
        kind = "layout" if _is_mixed(op) else "pointwise"
        moved = [op.outputs[0], op.inputs[-1]] if op.outputs else op.inputs
    elif kind == "fill":
        kind, moved = "pointwise", op.outputs or op.inputs
    elif not kind:
        kind = "pointwise.strided" if _is_mixed(op) else "pointwise"
        moved = op.inputs + (op.outputs or op.inputs[:1])
    elif kind in _BY_LAYOUT and op.inputs:
        kind += f".{_layout(op.inputs[0])}"
    return Work(kind, _nbytes(moved))


def _is_mixed(op: OperatorCall) -> bool:
    """Whether an operator converts between layouts."""
    if not op.outputs:  # it works only in place
        return False
    big = [t for t in op.inputs + op.outputs if t.numel >= 0.5 * op.outputs[0].numel]
    return len({t.layout for t in big}) > 1
