"""Tensors without numbers, and a listener to every operator: all private interfaces of torch are here.

The tensors are torch's own fake tensors on the CPU. Where CUDA would run other kernels than the CPU, the
CPU is made to choose as CUDA does: the casts of autocast, attention, and the optimizers' fused kernels.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

aten = torch.ops.aten


class Listener(Protocol):
    """What is told of everything that happens on the device."""

    def operator(self, func: Any, args: Any, kwargs: Any, out: Any) -> None: ...
    def number(self, tensor: torch.Tensor) -> Any: ...
    def to_host(self, tensor: torch.Tensor) -> None: ...


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested lists, tuples and dictionaries."""
    return (leaf for leaf in tree_iter(tree) if isinstance(leaf, torch.Tensor))


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within, tensors have no numbers and `listener` hears of every operator."""
    foreach = mock.patch.object(
        optimizer, "_get_foreach_kernels_supported_devices", return_value=["cpu", "cuda"]
    )
    casts = torch.library.Library("aten", "IMPL", "AutocastCPU")
    _cast_as_cuda(casts)
    choices = torch.library.Library("aten", "IMPL", "AutogradCPU")
    choices.impl("scaled_dot_product_attention", _attention)
    modes = FakeTensorMode(allow_non_fake_inputs=True), _Operators(listener), _Functions(listener)
    try:
        with foreach, modes[0], modes[1], modes[2]:
            yield
    finally:
        casts._destroy()
        choices._destroy()


def repeated(batch: Any, count: int) -> Any:
    """A batch of one sample as a new one of `count` without numbers."""
    return tree_map(
        lambda leaf: leaf.new_empty(count, *leaf.shape[1:]) if isinstance(leaf, torch.Tensor) else leaf, batch
    )


class _Operators(TorchDispatchMode):
    def __init__(self, listener: Listener) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.listener = listener

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten._local_scalar_dense.default:
            return self.listener.number(args[0])
        is_fused_update = func.overloadpacket.__name__.startswith("_fused_") and not func._schema.returns
        out = None if is_fused_update else func(*args, **kwargs)  # fake tensors do not know these
        if func.namespace not in ("prim", "profiler"):
            self.listener.operator(func, args, kwargs, out)
        return out


class _Functions(TorchFunctionMode):
    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self.listener = listener

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.cpu, torch.Tensor.numpy, torch.Tensor.tolist):
            self.listener.to_host(args[0])
        return func(*args, **(kwargs or {}))


def _attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    *, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Attention by the kernel that CUDA would choose; the CPU has others."""
    options: dict[str, Any] = {"is_causal": is_causal, "scale": scale}
    if query.dim() != 4 or enable_gqa or query.dtype == torch.float64:
        by_parts = aten._scaled_dot_product_attention_math.default
        return by_parts(query, key, value, attn_mask, dropout_p, **options, enable_gqa=enable_gqa)[0]
    if attn_mask is None and query.dtype != torch.float32 and query.shape[-1] <= 256:
        return aten._scaled_dot_product_flash_attention.default(query, key, value, dropout_p, **options)[0]
    if attn_mask is not None:
        attn_mask = attn_mask.to(query.dtype).expand(*query.shape[:3], key.shape[2])
    grad = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
    efficient = aten._scaled_dot_product_efficient_attention.default
    return efficient(query, key, value, attn_mask, grad, dropout_p, **options)[0]


# ---------------------------------------------------------------- CUDA's autocast

# From "Autocast Op Reference" of torch's documentation, where CUDA and the CPU differ.
_FLOAT32 = """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan
pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm
norm.Scalar norm.ScalarOpt_dim cosine_similarity nll_loss nll_loss2d l1_loss dist cdist renorm logsumexp"""
_FLOAT32_RESULT = "softmax.int log_softmax.int cumprod cumsum sum sum.dim_IntList prod prod.dim_int"


def _cast_as_cuda(library: Any) -> None:
    """Gives the CPU's autocast CUDA's lists, as long as the library lives."""
    library.impl("cross_entropy_loss", torch.library.fallthrough_kernel, allow_override=True)
    for name in _FLOAT32.split():
        library.impl(name, _cast(name, lambda args, kwargs: (tree_map(_widened, args), kwargs)))
    for name in _FLOAT32_RESULT.split():
        library.impl(name, _cast(name, _with_float32_result))


def _cast(name: str, change: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(aten, packet), overload or "default")
    private: Any = torch._C
    key = private.DispatchKeySet(private._parse_dispatch_key("AutocastCPU"))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = change(args, kwargs)
        with torch._C._ExcludeDispatchKeyGuard(key):
            if "softmax" in name and args[0].dtype == torch.float16 and kwargs.get("dtype") == torch.float32:
                return getattr(aten, f"_{packet}").default(args[0], args[1], True)  # reads 16 bits, writes 32
            return operator(*args, **kwargs)

    return kernel


def _widened(leaf: Any) -> Any:
    is_narrow = isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.float16, torch.bfloat16)
    return leaf.float() if is_narrow else leaf


def _with_float32_result(args: Any, kwargs: Any) -> Any:
    if args[0].dtype not in (torch.float16, torch.bfloat16):
        return args, kwargs
    plain = [arg for arg in args if not isinstance(arg, torch.dtype) and arg is not None]
    return plain, {"dtype": torch.float32, **{k: v for k, v in kwargs.items() if v is not None}}
