"""What CUDA runs where the CPU has other kernels: attention, and the casts of autocast."""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

aten = torch.ops.aten


def attention(
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


@contextlib.contextmanager
def kernels() -> Iterator[None]:
    """Within, tensors on the CPU have CUDA's casts and CUDA's attention."""
    casts, choices = (torch.library.Library("aten", "IMPL", f"Auto{kind}CPU") for kind in ("cast", "grad"))
    choices.impl("scaled_dot_product_attention", attention)
    casts.impl("cross_entropy_loss", torch.library.fallthrough_kernel, allow_override=True)
    for cast, names in _CASTS.items():
        run = torch.autocast("cpu", enabled=False)(cast)  # nothing within it is cast again
        for name in names.split():
            packet, _, overload = name.partition(".")
            casts.impl(name, partial(run, getattr(getattr(aten, packet), overload or "default")))
    yield  # the libraries end with this frame


def _is_half(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor) and arg.dtype in (torch.float16, torch.bfloat16)


def _in_float32(operator: Any, *args: Any, **kwargs: Any) -> Any:
    return operator(*(arg.float() if _is_half(arg) else arg for arg in args), **kwargs)


def _in_widest(operator: Any, *args: Any, **kwargs: Any) -> Any:
    if any(isinstance(arg, torch.Tensor) and arg.dtype == torch.float32 for arg in args):
        return _in_float32(operator, *args, **kwargs)
    return operator(*args, **kwargs)


def _with_float32_result(operator: Any, *args: Any, **kwargs: Any) -> Any:
    if not _is_half(args[0]):
        return operator(*args, **kwargs)
    plain = [arg for arg in args if not isinstance(arg, torch.dtype) and arg is not None]
    kwargs = {"dtype": torch.float32, **{k: v for k, v in kwargs.items() if v is not None}}
    name = operator.overloadpacket.__name__
    if "softmax" in name and args[0].dtype == torch.float16 and kwargs["dtype"] == torch.float32:
        return getattr(aten, f"_{name}").default(*plain[:2], True)  # reads 16 bits, writes 32
    return operator(*plain, **kwargs)


# From "Autocast Op Reference" of torch's documentation, where CUDA and the CPU differ.
_CASTS = {
    _in_float32: """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan
        pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm
        norm.Scalar norm.ScalarOpt_dim cosine_similarity nll_loss nll_loss2d l1_loss dist cdist renorm
        logsumexp""",
    _with_float32_result: "softmax.int log_softmax.int cumprod cumsum sum sum.dim_IntList prod prod.dim_int",
    _in_widest: "addcdiv addcmul atan2 bilinear cross dot index_put scatter_add tensordot vdot",
}
