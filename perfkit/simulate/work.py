"""From operators to the work of their kernels: FLOPs, bytes and shape, whatever the GPU."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from perfkit.simulate.step import Operator, Step, Tensor

HALF = ("float16", "bfloat16")
_Rule = Callable[["Operator", "Step"], list["Work"]]


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


def _nbytes(tensors: list[Tensor]) -> float:
    return float(sum(tensor.nbytes for tensor in tensors))


def _layout(tensor: Tensor) -> str:
    return "nhwc" if tensor.layout == "channels_last" else "nchw"


def _conv_kind(x: Tensor, w: Tensor, groups: int, taps: int) -> str:
    if groups > 1 and groups == x.shape[1]:
        return "depthwise"
    if groups > 1:
        # Libraries have fast kernels for many narrow groups of equal, round width only.
        depth, width = w.shape[1], w.shape[0] // groups
        fast = depth == width and width in (4, 8, 16, 32) and groups >= 8
        return "grouped" if fast else "grouped_wide"
    if x.shape[1] <= 4:
        return "stem"
    return "conv" if taps > 1 else "conv1x1"


def _conv_part(part: str, x: Tensor, w: Tensor, y: Tensor, at: dict[str, Any], precision: str) -> list[Work]:
    groups, taps = int(at.get("groups", 1)), math.prod(w.shape[2:])
    kind, layout = _conv_kind(x, w, groups, taps), _layout(x)
    places = y.shape[0] * math.prod(y.shape[2:])
    depth, width = x.shape[1] // groups, y.shape[1] // groups
    flops = 2.0 * places * y.shape[1] * depth * taps
    m, n, k = {
        "forward": (places, width, depth * taps),
        "dgrad": (x.shape[0] * math.prod(x.shape[2:]), depth, width * taps),
        "wgrad": (width, depth * taps, places),
    }[part]
    strided = any(s > 1 for s in at.get("stride", ()))
    winograd = (
        kind == "conv" and tuple(w.shape[2:]) == (3, 3) and not strided and max(at.get("dilation", (1,))) == 1
    )
    works = []
    if layout == "nchw" and precision != "float32" and kind != "depthwise":
        touched = {"forward": (x, y), "dgrad": (y, x), "wgrad": (x, y)}[part]
        works.append(
            Work(f"convert.{kind}{'.tf32' if precision == 'tf32' else ''}", 2 * _nbytes(list(touched)))
        )
    name = f"{kind}.{part}" + (".strided" if strided and part == "dgrad" else "")
    if kind == "depthwise":  # no matrix product: each channel on its own, without Tensor Cores
        m = n = k = 0
    if precision == "float32" and kind != "depthwise":
        layout += ".fp32"  # other kernels, without Tensor Cores
    works.append(Work(f"{name}.{layout}", _nbytes([x, w, y]), flops, m, n, k, groups, precision, winograd))
    return works


def _convolution(op: Operator, step: Step) -> list[Work]:
    x, w = op.inputs[:2]
    precision = _precision(x, step.conv_precision)
    if op.attributes.get("transposed"):
        return _conv_part("dgrad", op.outputs[0], w, x, op.attributes, precision)
    return _conv_part("forward", x, w, op.outputs[0], op.attributes, precision)


def _convolution_backward(op: Operator, step: Step) -> list[Work]:
    y, x, w = op.inputs[:3]
    mask = op.attributes.get("output_mask", [True, True, False])
    of_bias = [Work(f"reduction.{_layout(y)}", _nbytes([y]))] if len(mask) > 2 and mask[2] else []
    first = "dgrad"
    if op.attributes.get("transposed"):
        first, x, y = "forward", y, x
    works = []
    for part, wanted in zip((first, "wgrad"), mask, strict=False):
        if wanted:
            works += _conv_part(part, x, w, y, op.attributes, _precision(x, step.conv_precision))
    return works + of_bias


def _precision(tensor: Tensor, of_float32: str) -> str:
    if tensor.dtype in HALF:
        return tensor.dtype
    return "tf32" if of_float32 == "tf32" else "float32"


def _product(op: Operator, step: Step) -> list[Work]:
    a, b = op.inputs[-2:] if len(op.inputs) > 2 else op.inputs[:2]
    count = a.shape[0] if len(a.shape) == 3 else 1
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    precision = _precision(a, step.matmul_precision)
    kind = "bmm" if len(a.shape) == 3 else "gemm"
    return [Work(kind, _nbytes([a, b, *op.outputs[:1]]), 2.0 * count * m * n * k, m, n, k, count, precision)]


def _attention(op: Operator, step: Step) -> list[Work]:
    backward = "backward" in op.name
    q, k = op.inputs[1:3] if backward else op.inputs[:2]
    count, length, width = math.prod(q.shape[:-2]), q.shape[-2], q.shape[-1]
    products = 5 if backward else 2
    flops = 2.0 * products * count * length * k.shape[-2] * width
    precision = _precision(q, step.matmul_precision)
    kind = "attention.backward" if backward else "attention.forward"
    nbytes = _nbytes(op.inputs + op.outputs)
    return [Work(kind, nbytes, flops, length, k.shape[-2], width, count, precision)]


def _norm(op: Operator, step: Step) -> list[Work]:
    """Batch, layer and group norm, forward (the input read twice) and backward."""
    name = op.name.removeprefix("aten.")
    is_backward = name.endswith("_backward")
    kind = next(kind for kind in ("batch_norm", "layer_norm", "group_norm") if kind in name)
    x = op.inputs[min(is_backward, len(op.inputs) - 1)]
    layout = f".{_layout(x)}" if len(x.shape) == 4 else ""
    if kind == "batch_norm" and not is_backward and op.outputs[1].numel == 0:
        return [Work(f"batch_norm.inference{layout}", 2.0 * x.nbytes)]
    part, passes = ("backward", 5) if is_backward else ("forward", 3)
    return [Work(f"{kind}.{part}{layout}", float(passes * x.nbytes))]


def _moved(kind: str, by_layout: bool = False) -> _Rule:
    def works(op: Operator, step: Step) -> list[Work]:
        layout = f".{_layout(op.inputs[0])}" if by_layout and op.inputs else ""
        return [Work(kind + layout, _nbytes(op.inputs + op.outputs))]

    return works


def _is_mixed(op: Operator) -> bool:
    if not op.outputs:  # it works in place only
        return False
    big = [t for t in op.inputs + op.outputs if math.prod(t.shape) >= 0.5 * math.prod(op.outputs[0].shape)]
    return len({t.layout for t in big}) > 1


def _copied(op: Operator, step: Step) -> list[Work]:
    """`clone`, `copy_`, `_to_copy`: read once and written once, across layouts or not."""
    moved = [*op.outputs[:1], op.inputs[-1]] if op.outputs else op.inputs
    return [Work("layout" if _is_mixed(op) else "pointwise", _nbytes(moved))]


def _filled(op: Operator, step: Step) -> list[Work]:
    return [Work("pointwise", _nbytes(op.outputs or op.inputs))]


def _pointwise(op: Operator, step: Step) -> list[Work]:
    outputs = op.outputs or op.inputs[:1]
    return [Work("pointwise.strided" if _is_mixed(op) else "pointwise", _nbytes(op.inputs + outputs))]


TENSORS_PER_LAUNCH = 64
"""Of a multi-tensor (foreach) kernel, about: 110 for one list of tensors, 48 for three."""


def _foreach(op: Operator, step: Step) -> list[Work]:
    shapes = [tensor.shape for tensor in op.inputs]
    lists = next(
        (n for n in (4, 3, 2) if len(shapes) % n == 0 and shapes == shapes[: len(shapes) // n] * n), 1
    )
    own = op.inputs[: len(op.inputs) // lists]
    launches = max(1, math.ceil(len(own) / TENSORS_PER_LAUNCH))
    nbytes = _nbytes(op.inputs + (op.outputs or own))
    return [Work("foreach", nbytes / launches)] * launches


def _fused(op: Operator, step: Step) -> list[Work]:
    reduction = op.attributes.get("reduction")
    return [Work("fused.reduction" if reduction else "fused", _nbytes(op.inputs + op.outputs))]


_BY_NAMES: dict[str, _Rule] = {
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "fused": _fused,
    "mm addmm bmm baddbmm": _product,
    "native_batch_norm cudnn_batch_norm _native_batch_norm_legit native_layer_norm native_group_norm": _norm,
    "native_batch_norm_backward cudnn_batch_norm_backward native_layer_norm_backward": _norm,
    "native_group_norm_backward": _norm,
    "max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d": _moved("pool.forward", True),
    "max_pool2d_with_indices_backward avg_pool2d_backward _adaptive_avg_pool2d_backward": _moved(
        "pool.backward", True
    ),
    "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data": _moved("softmax"),
    "cat stack": _moved("cat"),
    "sum mean linalg_vector_norm amax amin max min var var_mean argmax prod norm": _moved("reduction", True),
    "index gather index_select embedding": _moved("gather"),
    "index_put index_put_ scatter scatter_add index_add embedding_dense_backward": _moved("scatter"),
    "clone copy_ _to_copy contiguous repeat slice_backward select_backward constant_pad_nd roll": _copied,
    "zero_ fill_ ones_like zeros_like full zeros ones new_zeros bernoulli_ uniform_ normal_": _filled,
}
_RULES = {name: rule for names, rule in _BY_NAMES.items() for name in names.split()}


def of_operator(op: Operator, step: Step) -> list[Work]:
    """The kernels of one operator."""
    name = op.name.removeprefix("aten.")
    if name in _RULES:
        return _RULES[name](op, step)
    if name.startswith("_foreach") or name.startswith("_fused_"):
        return _foreach(op, step)
    if "scaled_dot_product" in name or "attention" in name:
        return _attention(op, step)
    if name.startswith("upsample") or name.startswith("grid_sampler"):
        return _moved("scatter" if "backward" in name else "gather")(op, step)
    return _pointwise(op, step)
