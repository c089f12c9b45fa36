"""What one training step asks of a GPU: operators and their work, copies, waits, memory; whatever the GPU."""

import math
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

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


# ---------------------------------------------------------------- operators as the work of kernels

HALF = ("float16", "bfloat16")
UNITS = ("float32", "tf32", "tensor")
TENSORS_PER_LAUNCH = 64
"""Of a multi-tensor (foreach) kernel, about: 110 for one list of tensors, 48 for three."""


class Work(NamedTuple):
    """The work of one kernel."""

    kind: str
    """Its class, the first part of the names of its constants: `conv.forward.nhwc`, `pointwise` …"""
    nbytes: float
    """Read and written, each operand once."""
    flops: float = 0.0
    m: int = 0
    """Of the matrix product `[m, k] x [k, n]` that it is, or can be seen as; 0 for others."""
    n: int = 0
    k: int = 0
    products: int = 1
    """Such products in one kernel: batched products, groups of a convolution."""
    precision: str = "float32"
    """`float32`, `tf32`, `float16` or `bfloat16`."""
    winograd: bool = False
    """Whether Winograd's algorithms could compute it."""

    @property
    def unit(self) -> str:
        """Which of `UNITS` computes it; those of half precision are `tensor`."""
        if self.kind.startswith("depthwise"):  # no Tensor Cores
            return "float32"
        return "tensor" if self.precision in HALF else self.precision


_NAMES = {
    "pool.forward": "max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d",
    "pool.backward": "max_pool2d_with_indices_backward avg_pool2d_backward _adaptive_avg_pool2d_backward",
    "softmax": "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data",
    "cat": "cat stack",
    "reduction": "sum mean linalg_vector_norm amax amin max min var var_mean argmax prod norm",
    "gather": "index gather index_select embedding",
    "scatter": "index_put index_put_ scatter scatter_add index_add embedding_dense_backward",
    "product": "mm addmm bmm baddbmm",
    "copy": "clone copy_ _to_copy contiguous repeat slice_backward select_backward constant_pad_nd roll",
    "fill": "zero_ fill_ ones_like zeros_like full zeros ones new_zeros bernoulli_ uniform_ normal_",
}
_KINDS = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_BY_LAYOUT = ("pool.forward", "pool.backward", "reduction")


def of_operator(op: Operator, step: Step) -> list[Work]:
    """The kernels of one operator."""
    name = op.name.removeprefix("aten.")
    kind = _KINDS.get(name) or next((k for k in ("batch_norm", "layer_norm", "group_norm") if k in name), "")
    if name == "convolution":
        works = _convolution(op, step)
    elif name == "convolution_backward":
        works = _convolution_backward(op, step)
    elif name.startswith(("_foreach", "_fused_")):
        works = _foreach(op)
    elif kind == "product":
        works = [_product(op, step)]
    elif "scaled_dot_product" in name or "attention" in name:
        works = [_attention(op, step)]
    elif kind.endswith("_norm"):
        works = [_norm(kind, op)]
    else:
        works = [_moving(name, kind, op)]
    return works


def _nbytes(tensors: Sequence[Tensor]) -> float:
    return float(sum(tensor.nbytes for tensor in tensors))


def _layout(tensor: Tensor) -> str:
    return "nhwc" if tensor.layout == "channels_last" else "nchw"


def _precision(tensor: Tensor, of_float32: str) -> str:
    if tensor.dtype in HALF:
        return tensor.dtype
    return "tf32" if of_float32 == "tf32" else "float32"


# ---------------------------------------------------------------- convolutions


def _convolution(op: Operator, step: Step) -> list[Work]:
    (x, w), y = op.inputs[:2], op.outputs[0]
    if op.attributes["transposed"]:
        return _conv_part("dgrad", y, w, x, op, step)
    return _conv_part("forward", x, w, y, op, step)


def _convolution_backward(op: Operator, step: Step) -> list[Work]:
    y, x, w = op.inputs[:3]
    of_input, of_weight, of_bias = op.attributes["output_mask"]
    reduction = [Work(f"reduction.{_layout(y)}", _nbytes([y]))] if of_bias else []
    first = "dgrad"
    if op.attributes["transposed"]:
        first, x, y = "forward", y, x
    works = _conv_part(first, x, w, y, op, step) if of_input else []
    return works + (_conv_part("wgrad", x, w, y, op, step) if of_weight else []) + reduction


def _conv_kind(x: Tensor, w: Tensor, groups: int) -> str:
    if groups > 1 and groups == x.shape[1]:
        return "depthwise"
    if groups > 1:
        # Libraries have fast kernels for many narrow groups of equal, round width only.
        depth, width = w.shape[1], w.shape[0] // groups
        fast = depth == width and width in (4, 8, 16, 32) and groups >= 8
        return "grouped" if fast else "grouped_wide"
    if x.shape[1] <= 4:
        return "stem"
    return "conv" if math.prod(w.shape[2:]) > 1 else "conv1x1"


def _conv_part(part: str, x: Tensor, w: Tensor, y: Tensor, op: Operator, step: Step) -> list[Work]:
    """One of the three products of a convolution, from `x` to `y`; and what it costs to convert layouts."""
    groups, taps = op.attributes["groups"], math.prod(w.shape[2:])
    precision = _precision(x, step.conv_precision)
    kind, layout = _conv_kind(x, w, groups), _layout(x)
    places = y.shape[0] * math.prod(y.shape[2:])
    depth, width = x.shape[1] // groups, y.shape[1] // groups
    flops = 2.0 * places * y.shape[1] * depth * taps
    strided = max(op.attributes["stride"]) > 1
    is_plain = not strided and max(op.attributes["dilation"]) == 1
    winograd = kind == "conv" and tuple(w.shape[2:]) == (3, 3) and is_plain
    works = []
    if layout == "nchw" and precision != "float32" and kind != "depthwise":
        tf32 = ".tf32" if precision == "tf32" else ""
        works.append(Work(f"convert.{kind}{tf32}", 2 * _nbytes([x, y])))
    name = f"{kind}.{part}" + (".strided" if strided and part == "dgrad" else "")
    if kind == "depthwise":  # no matrix product: each channel on its own, without Tensor Cores
        m = n = k = 0
    else:
        m, n, k = {
            "forward": (places, width, depth * taps),
            "dgrad": (x.shape[0] * math.prod(x.shape[2:]), depth, width * taps),
            "wgrad": (width, depth * taps, places),
        }[part]
        if precision == "float32":
            layout += ".fp32"  # other kernels, without Tensor Cores
    works.append(Work(f"{name}.{layout}", _nbytes([x, w, y]), flops, m, n, k, groups, precision, winograd))
    return works


# ---------------------------------------------------------------- other operators


def _product(op: Operator, step: Step) -> Work:
    a, b = op.inputs[-2:]
    count = a.shape[0] if len(a.shape) == 3 else 1
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    precision = _precision(a, step.matmul_precision)
    kind = "bmm" if len(a.shape) == 3 else "gemm"
    return Work(kind, _nbytes([a, b, *op.outputs[:1]]), 2.0 * count * m * n * k, m, n, k, count, precision)


def _attention(op: Operator, step: Step) -> Work:
    backward = "backward" in op.name
    q, k = op.inputs[1:3] if backward else op.inputs[:2]
    count, length, width = math.prod(q.shape[:-2]), q.shape[-2], q.shape[-1]
    flops = 2.0 * (5 if backward else 2) * count * length * k.shape[-2] * width
    precision = _precision(q, step.matmul_precision)
    kind = f"attention.{'backward' if backward else 'forward'}"
    nbytes = _nbytes(op.inputs + op.outputs)
    return Work(kind, nbytes, flops, length, k.shape[-2], width, count, precision)


def _norm(kind: str, op: Operator) -> Work:
    """Forward, where the input is read twice, or backward."""
    is_backward = op.name.endswith("_backward")
    x = op.inputs[min(is_backward, len(op.inputs) - 1)]
    layout = f".{_layout(x)}" if len(x.shape) == 4 else ""
    if kind == "batch_norm" and not is_backward and op.outputs[1].numel == 0:
        return Work(f"batch_norm.inference{layout}", 2.0 * x.nbytes)
    part, passes = ("backward", 5) if is_backward else ("forward", 3)
    return Work(f"{kind}.{part}{layout}", float(passes * x.nbytes))


def _foreach(op: Operator) -> list[Work]:
    shapes = [tensor.shape for tensor in op.inputs]
    lists = next(
        (n for n in (4, 3, 2) if len(shapes) % n == 0 and shapes == shapes[: len(shapes) // n] * n), 1
    )
    own = op.inputs[: len(op.inputs) // lists]
    launches = max(1, math.ceil(len(own) / TENSORS_PER_LAUNCH))
    nbytes = _nbytes(op.inputs + (op.outputs or own))
    return [Work("foreach", nbytes / launches)] * launches


def _moving(name: str, kind: str, op: Operator) -> Work:
    """A kernel that the memory limits."""
    moved = op.inputs + op.outputs
    if name == "fused":
        kind = "fused.reduction" if op.attributes["reduction"] else "fused"
    elif name.startswith(("upsample", "grid_sampler")):
        kind = "scatter" if "backward" in name else "gather"
    elif kind == "copy":  # read once and written once
        kind = "layout" if _is_mixed(op) else "pointwise"
        moved = [*op.outputs[:1], op.inputs[-1]] if op.outputs else op.inputs
    elif kind == "fill":
        kind, moved = "pointwise", op.outputs or op.inputs
    elif not kind:
        kind = "pointwise.strided" if _is_mixed(op) else "pointwise"
        moved = op.inputs + (op.outputs or op.inputs[:1])
    elif kind in _BY_LAYOUT and op.inputs:
        kind += f".{_layout(op.inputs[0])}"
    return Work(kind, _nbytes(moved))


def _is_mixed(op: Operator) -> bool:
    """Whether it goes from one layout to another."""
    if not op.outputs:  # it works in place only
        return False
    big = [t for t in op.inputs + op.outputs if t.numel >= 0.5 * op.outputs[0].numel]
    return len({t.layout for t in big}) > 1
