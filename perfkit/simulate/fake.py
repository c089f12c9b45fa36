"""Tensors without numbers, and a listener to every operator: all private interfaces of torch are here.

The tensors are torch's own fake tensors on the CPU. Where CUDA would run other kernels than the CPU, the
CPU is made to choose as CUDA does: the casts of autocast, attention, and the optimizers' fused kernels.
"""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
tree_map = pytree.tree_map


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested lists, tuples and dictionaries."""
    return (leaf for leaf in pytree.tree_iter(tree) if isinstance(leaf, torch.Tensor))


@contextlib.contextmanager
def listening(listener: Any) -> Iterator[None]:
    """Within, tensors have no numbers, and a `recording.Recorder` hears of every operator."""
    name = "torch.optim.optimizer._get_foreach_kernels_supported_devices"
    devices = mock.patch(name, return_value=["cpu", "cuda"])
    casts = torch.library.Library("aten", "IMPL", "AutocastCPU")
    _cast_as_cuda(casts)
    choices = torch.library.Library("aten", "IMPL", "AutogradCPU")
    choices.impl("scaled_dot_product_attention", _attention)
    _Operators.listener = _Functions.listener = listener
    try:
        with devices, FakeTensorMode(allow_non_fake_inputs=True), _Operators(), _Functions():  # type: ignore[no-untyped-call]
            yield
    finally:
        casts._destroy()
        choices._destroy()


class _Operators(TorchDispatchMode):
    listener: Any

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten._local_scalar_dense.default:
            return self.listener.number(args[0])
        if func.overloadpacket.__name__.startswith("_fused_") and not func._schema.returns:
            out = None  # fake tensors do not know these updates
        elif func in (aten.native_batch_norm.default, aten.native_batch_norm_backward.default) and args[-3]:
            out = _batch_norm(*args)
        else:
            out = func(*args, **kwargs)
        if func.namespace not in ("prim", "profiler"):
            self.listener.operator(func, args, kwargs, out)
        return out


def _batch_norm(first: Any, second: Any, *others: Any) -> tuple[Any, ...]:
    """Its results or, if there is a mask, its gradients.

    Fake tensors would go through a dozen operators for each, longer than for all the rest of a step.
    """
    if len(others) == 6:
        return torch.empty_like(first), first.new_empty(first.shape[1]), first.new_empty(first.shape[1])
    weight, wanted = others[0], others[-1]
    of_weight = [(second if weight is None else weight).new_empty(second.shape[1]) for _ in range(2)]
    found = torch.empty_like(first), *of_weight
    return tuple(each if want else None for each, want in zip(found, wanted, strict=True))


class _Functions(TorchFunctionMode):
    listener: Any

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


# From "Autocast Op Reference" of torch's documentation, where CUDA and the CPU differ.
_FLOAT32 = """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan
pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm
norm.Scalar norm.ScalarOpt_dim cosine_similarity nll_loss nll_loss2d l1_loss dist cdist renorm logsumexp"""
_FLOAT32_RESULT = "softmax.int log_softmax.int cumprod cumsum sum sum.dim_IntList prod prod.dim_int"


def _cast_as_cuda(library: Any) -> None:
    """Gives the CPU's autocast CUDA's lists, as long as the library lives."""
    private: Any = torch._C
    key = private.DispatchKeySet(private._parse_dispatch_key("AutocastCPU"))

    def is_half(leaf: Any) -> bool:
        return isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.float16, torch.bfloat16)

    def in_float32(operator: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = tree_map(lambda leaf: leaf.float() if is_half(leaf) else leaf, (args, kwargs))
        return operator(*args, **kwargs)

    def with_float32_result(operator: Any, args: Any, kwargs: Any) -> Any:
        if not is_half(args[0]):
            return operator(*args, **kwargs)
        plain = [arg for arg in args if not isinstance(arg, torch.dtype) and arg is not None]
        kwargs = {"dtype": torch.float32, **{k: v for k, v in kwargs.items() if v is not None}}
        name = operator.overloadpacket.__name__
        if "softmax" in name and args[0].dtype == torch.float16 and kwargs["dtype"] == torch.float32:
            return getattr(aten, f"_{name}").default(*plain[:2], True)  # reads 16 bits, writes 32
        return operator(*plain, **kwargs)

    library.impl("cross_entropy_loss", torch.library.fallthrough_kernel, allow_override=True)
    for names, cast in ((_FLOAT32, in_float32), (_FLOAT32_RESULT, with_float32_result)):
        for name in names.split():
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(aten, packet), overload or "default")

            def kernel(*args: Any, operator: Any = operator, cast: Any = cast, **kwargs: Any) -> Any:
                with private._ExcludeDispatchKeyGuard(key):
                    return cast(operator, args, kwargs)

            library.impl(name, kernel)
