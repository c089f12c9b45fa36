"""`torch.device("sim")`: tensors with shapes and no numbers, on which unmodified PyTorch code runs.

Every private interface of torch that the simulation needs is in this file (and, of torch.compile, in
`fusion.py`); `self_test.py` runs before the first use, because each of these interfaces may change
with any release, and nearly all of them change results silently rather than fail. Tensors on `sim` are fake
tensors of one mode. No dispatch mode lies on the stack: with one, Dynamo traces nothing, and torch.compile
would seem to have no effect.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.optim.optimizer as optimizers
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import backend_registration

aten = torch.ops.aten
NAME = "sim"


class Unpredictable(Exception):
    """The program asks for something that a device without numbers cannot answer."""


class Recorder(Protocol):
    """Takes down everything that happens on the device."""

    def operator(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """An operator was called, and gave `out`."""

    def copied(self, tensor: torch.Tensor, to: str, non_blocking: bool) -> None:
        """A tensor is copied between host and device."""

    def waits(self, what: str, streams: tuple[int, int] | None = None) -> None:
        """The host waits for the device, or one stream for another."""

    def stream(self, number: int) -> None:
        """Another stream is current from here on."""


class _Mode(FakeTensorMode):
    """The fake mode of all tensors on `sim`; tells the recorder of every outermost operator."""

    recorder: Recorder | None = None
    depth = 0

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.depth == 0 and func in _ANSWERS:
            answer = _ANSWERS[func](*args, **kwargs)
            if answer is not _ordinary:
                return answer
        self.depth += 1
        try:
            out = super().dispatch(func, types, args, kwargs)
        finally:
            self.depth -= 1
        if self.recorder and self.depth == 0 and func.namespace != "prim":
            self.recorder.operator(func, args, kwargs, out)
        return out


_ordinary = object()
_kept: list[Any] = []


@functools.cache
def mode() -> _Mode:
    """The one fake mode."""
    return _Mode(allow_non_fake_inputs=True)


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Tells `recorder` of everything that happens on the device meanwhile."""
    before, mode().recorder = mode().recorder, recorder
    cuda = torch.cuda
    kept = cuda.Stream, cuda.current_stream, cuda.stream, torch.Tensor.record_stream
    # train.py names CUDA's streams: a build without CUDA has none that could be made.
    cuda.Stream, cuda.current_stream, cuda.stream = Stream, current_stream, use_stream  # type: ignore
    torch.Tensor.record_stream = lambda tensor, stream: None  # type: ignore
    try:
        yield
    finally:
        mode().recorder = before
        cuda.Stream, cuda.current_stream, cuda.stream, torch.Tensor.record_stream = kept  # type: ignore


def is_simulated(tensor: object) -> bool:
    """Whether it is a tensor on this device."""
    return isinstance(tensor, torch.Tensor) and tensor.device.type == NAME


# ---------------------------------------------------------------- streams


class Stream:
    """A stream, as far as the training program uses them; number 0 is the default one."""

    _count = 0
    _current: Any = None

    def __init__(self, device: Any = None, number: int | None = None) -> None:
        Stream._count += number is None
        self.number = Stream._count if number is None else number

    def wait_stream(self, other: Stream) -> None:
        """What is launched on this stream from now on waits for what the other one has to do."""
        if recorder := mode().recorder:
            recorder.waits("wait_stream", (self.number, other.number))

    def synchronize(self) -> None:
        """The host waits."""
        if recorder := mode().recorder:
            recorder.waits("Stream.synchronize")


_DEFAULT = Stream(number=0)
Stream._current = _DEFAULT


def current_stream(device: Any = None) -> Stream:
    """The stream on which operators are launched."""
    current: Stream = Stream._current
    return current


@contextmanager
def use_stream(stream: Stream) -> Iterator[None]:
    """Launches on another stream meanwhile."""
    before = current_stream()
    _switch_to(stream)
    try:
        yield
    finally:
        _switch_to(before)


def _switch_to(stream: Stream) -> None:
    Stream._current = stream
    if recorder := mode().recorder:
        recorder.stream(stream.number)


# ---------------------------------------------------------------- registration


class _Module:
    """What torch asks of a device's module (`torch.sim`)."""

    Stream = Stream
    current_stream = staticmethod(current_stream)
    stream = staticmethod(use_stream)

    def is_initialized(self) -> bool:
        return True

    is_available = is_initialized

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """There are no numbers."""

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        """There are no numbers."""

    def synchronize(self, device: Any = None) -> None:
        if recorder := mode().recorder:
            recorder.waits("synchronize")

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


# CUDA's lists, from "Autocast Op Reference" of torch's documentation.
_LOWER = (
    "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d.input",
    "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm",
    "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "scaled_dot_product_attention",
)  # fmt: skip
_FLOAT32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt",
    "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm",
    "native_layer_norm", "group_norm", "norm.Scalar", "norm.ScalarOpt_dim", "cosine_similarity",
    "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div",
    "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss",
    "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits",
    "dist", "pdist", "cdist", "renorm", "logsumexp",
)  # fmt: skip
_FLOAT32_RESULT = (
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "sum",
    "sum.dim_IntList",
    "prod",
    "prod.dim_int",
)
_WIDEST = (
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
)


@functools.cache
def register() -> torch.device:
    """Makes `torch.device("sim")` known to torch; once a process."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    library = torch.library.Library("aten", "IMPL")
    everything = torch.library.Library("_", "IMPL")
    library.impl("empty.memory_format", _empty, "PrivateUse1")
    library.impl("empty_strided", _empty_strided, "PrivateUse1")
    library.impl("_copy_from", lambda source, target, non_blocking=False: target, "PrivateUse1")
    library.impl("zero_", lambda tensor: tensor, "PrivateUse1")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    casts = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
    for name in _LOWER:
        casts.impl(name, _casting(name, lambda _: torch.get_autocast_dtype(NAME)))
    for name in _FLOAT32:
        casts.impl(name, _casting(name, lambda _: torch.float32))
    for name in _FLOAT32_RESULT:
        casts.impl(name, _summing(name))
    for name in _WIDEST:
        casts.impl(name, _casting(name, _widest))
    _kept.extend((library, everything, casts))
    optimizers._foreach_supported_types.append(FakeTensor)  # else optimizers loop where CUDA's would not
    for convolution in (aten.convolution.default, aten.convolution_backward.default):
        fake_impls.op_implementations_dict[convolution] = _as_cudnn(
            fake_impls.op_implementations_dict[convolution]
        )
    return torch.device(NAME)


def _fake(elements: torch.Tensor) -> FakeTensor:
    return FakeTensor(mode(), elements, torch.device(NAME, 0))


def _empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **_: Any) -> FakeTensor:
    layout = memory_format or torch.contiguous_format
    return _fake(torch.empty(size, dtype=dtype, device="meta", memory_format=layout))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> FakeTensor:
    return _fake(torch.empty_strided(size, stride, dtype=dtype, device="meta"))


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def _widest(tensors: list[torch.Tensor]) -> torch.dtype:
    return functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))


def _casting(name: str, choose: Any) -> Any:
    """An operator under autocast: its floating-point arguments are cast first.

    CUDA casts a weight once in a context, however often it is used there; here each use casts it.
    """
    operator = _overload(name)
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = choose([leaf for leaf in tensors((args, kwargs)) if _may_cast(leaf)])
        with torch._C._ExcludeDispatchKeyGuard(key):
            cast = torch.utils._pytree.tree_map(
                lambda leaf: leaf.to(dtype) if _may_cast(leaf) else leaf, (args, kwargs)
            )
            return operator(*cast[0], **cast[1])

    return kernel


def _summing(name: str) -> Any:
    """An operator under autocast that reads 16 bits and writes float32."""
    operator = _overload(name)
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
    halves = {"softmax.int": aten._softmax.default, "log_softmax.int": aten._log_softmax.default}

    def kernel(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(key):
            if not _may_cast(tensor) or kwargs.get("dtype") or any(isinstance(a, torch.dtype) for a in args):
                return operator(tensor, *args, **kwargs)
            if name in halves and tensor.dtype == torch.float16:
                return halves[name](tensor, args[0], True)  # CUDA has one kernel for both, of float16 only
            return operator(tensor, *args[:1], **kwargs | {"dtype": torch.float32})

    return kernel


def _may_cast(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.dtype != torch.float64


def _as_cudnn(fake: Any) -> Any:
    """Answers as cuDNN does: in channels_last if an argument is; torch's own fake one does not know."""

    def convolution(fake_mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        out = fake(fake_mode, func, *args, **kwargs)
        given = [*tensors((args, kwargs))]
        if not any(map(is_simulated, given)) or not any(map(is_channels_last, given)):
            return out
        with fake_mode:
            return torch.utils._pytree.tree_map(_in_channels_last, out)

    return convolution


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Whether it is in NHWC (or NDHWC), and not in NCHW as well."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = formats.get(tensor.dim())
    return layout is not None and tensor.is_contiguous(memory_format=layout) and not tensor.is_contiguous()


def _in_channels_last(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.dim() not in (4, 5):
        return leaf
    layout = torch.channels_last if leaf.dim() == 4 else torch.channels_last_3d
    return torch.empty_like(leaf, memory_format=layout)


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested lists, tuples and dictionaries."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for leaf in tree:
            yield from tensors(leaf)
    elif isinstance(tree, dict):
        yield from tensors([*tree.values()])


# ---------------------------------------------------------------- operators that torch's fake tensors lack


def _read(tensor: torch.Tensor) -> Any:
    """`.item()`: the host waits; there is no number to answer with."""
    if not is_simulated(tensor):
        return _ordinary
    if recorder := mode().recorder:
        recorder.waits(".item()")
    if _asks_grad_scaler():
        return 0.0  # no gradient was infinite: the optimizer steps, as it nearly always does
    if tensor.is_floating_point():
        return math.nan
    raise Unpredictable("it reads a whole number or a truth value from the device and goes on with it")


def _asks_grad_scaler() -> bool:
    import sys

    frame: Any = sys._getframe(2)
    for _ in range(40):
        if frame is None:
            return False
        if frame.f_code.co_filename.endswith("grad_scaler.py"):
            return True
        frame = frame.f_back
    return False


def _copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Any:
    if is_simulated(target) == is_simulated(source):
        return _ordinary
    if recorder := mode().recorder:
        recorder.copied(target, "device" if is_simulated(target) else "host", non_blocking)
    return target


def _to_copy(tensor: torch.Tensor, **options: Any) -> Any:
    device = options.get("device")
    if not is_simulated(tensor) or device is None or torch.device(device).type == NAME:
        return _ordinary
    # A real tensor: what the program goes on to do on the host works, with numbers that mean nothing.
    target = torch.zeros(tensor.shape, dtype=options.get("dtype") or tensor.dtype, device=device)
    if recorder := mode().recorder:
        recorder.copied(target, "host", bool(options.get("non_blocking")))
    return target


def _fused(func: Any) -> Any:
    def step(*args: Any, **kwargs: Any) -> None:
        if recorder := mode().recorder:
            recorder.operator(func, args, kwargs, None)

    return step


_ANSWERS: dict[Any, Any] = {
    aten._local_scalar_dense.default: _read,
    aten.copy_.default: _copy,
    aten._to_copy.default: _to_copy,
}
for _name in ("_fused_sgd_", "_fused_adam_", "_fused_adamw_", "_fused_adagrad_"):
    for _overloaded in getattr(aten, _name).overloads():
        _operator = getattr(getattr(aten, _name), _overloaded)
        if "tensor_lr" in _overloaded or _overloaded == "default":
            _ANSWERS[_operator] = _fused(_operator)
