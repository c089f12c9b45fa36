"""What operators give on the simulated device where torch's fake tensors would not do as CUDA does."""

from __future__ import annotations

from typing import Any

import torch

from perfkit.simulate.describe import is_channels_last, tensors

aten = torch.ops.aten


def as_cudnn(fake: Any) -> Any:
    """Answers as cuDNN does: in channels_last if an argument is; torch's own fake one does not know."""

    def convolution(fake_mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        out = fake(fake_mode, func, *args, **kwargs)
        given = [*tensors((args, kwargs))]
        if not any(leaf.device.type == "sim" for leaf in given) or not any(map(is_channels_last, given)):
            return out
        with fake_mode:
            return torch.utils._pytree.tree_map(_in_channels_last, out)

    return convolution


def _in_channels_last(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.dim() not in (4, 5):
        return leaf
    layout = torch.channels_last if leaf.dim() == 4 else torch.channels_last_3d
    return torch.empty_like(leaf, memory_format=layout)


def whole(operator: Any) -> Any:
    """An operator that is one kernel on CUDA, and that torch takes apart on devices that it does not know."""

    def below_autograd(*args: Any, **kwargs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*args, **kwargs)

    return below_autograd


def attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    *, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Attention in one operator, chosen as for CUDA; on other devices torch takes it apart."""
    options = {"is_causal": is_causal, "scale": scale}
    if query.dim() != 4 or enable_gqa or query.dtype == torch.float64:
        math_path = aten._scaled_dot_product_attention_math.default
        return math_path(query, key, value, attn_mask, dropout_p, **options, enable_gqa=enable_gqa)[0]
    if attn_mask is None and query.dtype != torch.float32 and query.shape[-1] <= 256:
        return aten._scaled_dot_product_flash_attention.default(query, key, value, dropout_p, **options)[0]
    if attn_mask is not None:
        attn_mask = attn_mask.to(query.dtype).expand(*query.shape[:3], key.shape[2])
    grad = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
    efficient = aten._scaled_dot_product_efficient_attention.default
    return efficient(query, key, value, attn_mask, grad, dropout_p, **options)[0]
