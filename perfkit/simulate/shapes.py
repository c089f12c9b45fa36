"""What operators give on the simulated device: as on CUDA, and without asking torch twice."""

from __future__ import annotations

import functools
from typing import Any

import torch

from perfkit.simulate.describe import is_channels_last, tensors

aten = torch.ops.aten


@functools.cache
def how(func: Any) -> str:
    """Whether the result of an operator follows from its schema (`in place`, `nothing`), or is new memory."""
    returns, schema = func._schema.returns, func._schema
    if func is aten.detach.default:
        return "detach"
    if func.namespace != "aten" or torch.Tag.inplace_view in func.tags or func.is_view:
        return "ask"
    if not schema.is_mutable:
        return "ask" if any(one.alias_info for one in returns) else "fresh"
    if not returns:
        return "nothing" if func.overloadpacket.__name__.startswith("_foreach") else "ask"
    first = schema.arguments[0].alias_info
    return "in place" if len(returns) == 1 and first and first.is_write else "ask"


class _NoKey(Exception):
    pass


def key(tree: Any) -> Any:
    """What decides the result of a call: shapes, strides, dtypes, numbers; None if there is more to it."""
    try:
        return _hashable(tree)
    except _NoKey:
        return None


def _hashable(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        shape = tuple(leaf.shape)
        if not leaf.device.type == "sim" or any(type(side) is not int for side in shape):
            raise _NoKey
        return (shape, leaf.stride(), leaf.dtype)
    if isinstance(leaf, list | tuple):
        return tuple(map(_hashable, leaf))
    if isinstance(leaf, dict):
        return tuple((name, _hashable(value)) for name, value in leaf.items())
    if isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise _NoKey
    return (type(leaf), leaf)


def template(out: Any) -> Any:
    """How to make a result again; None if it is anything but tensors in memory of their own."""
    if isinstance(out, torch.Tensor):
        own = (
            out.device.type == "sim"
            and out.storage_offset() == 0
            and all(type(side) is int for side in out.shape)
        )
        return (tuple(out.shape), out.stride(), out.dtype) if own else None
    if isinstance(out, list | tuple):
        parts = [template(part) for part in out]
        return None if None in parts else parts
    return None


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
