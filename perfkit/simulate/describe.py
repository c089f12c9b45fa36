"""Tensors and operators of torch as the plain data of a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_iter

from perfkit.simulate.step import Operator, Tensor

Layout = Literal["contiguous", "channels_last", "strided"]

aten = torch.ops.aten
_LAUNCH_NOTHING = {
    getattr(aten, name)
    for name in (
        "empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "empty_permuted", "detach",
        "_unsafe_view", "as_strided_", "lift_fresh", "set_", "resize_", "_reshape_alias", "view",
        "_local_scalar_dense", "is_same_size", "sym_size", "record_stream",
    )
}  # fmt: skip


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested lists, tuples and dictionaries."""
    return (leaf for leaf in tree_iter(tree) if isinstance(leaf, torch.Tensor))


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Whether it is in NHWC (or NDHWC), and not in NCHW as well."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = formats.get(tensor.dim())
    return layout is not None and tensor.is_contiguous(memory_format=layout) and not tensor.is_contiguous()


def name_of(func: Any) -> str:
    """Of an operator: `aten.add_`."""
    packet = getattr(func, "overloadpacket", None)
    return f"{func.namespace}.{packet.__name__}" if packet else getattr(func, "__name__", str(func))


def described(tensor: torch.Tensor) -> Tensor:
    """A tensor without its numbers."""
    layout: Layout
    contiguous = tensor.is_contiguous()
    layout = "contiguous" if contiguous else "channels_last" if is_channels_last(tensor) else "strided"
    return Tensor(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), layout)


def attributes(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments that are not tensors, by the names in the operator's schema."""
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | dict(
        kwargs
    )
    plain = {name: value for name, value in given.items() if _is_plain(value)}
    return plain | ({"inplace": True} if func._schema.is_mutable else {})


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_is_plain, value))
    return isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))


def operator_of(
    func: Any, args: Any, kwargs: Any, out: Any, is_there: Callable[[torch.Tensor], bool]
) -> Operator | None:
    """A call of an operator, without its place; None if it launches no kernel on the device.

    Args:
        func: the operator.
        args: what it was called with.
        kwargs: the same, by name.
        out: what it returned.
        is_there: whether a tensor is on the device.
    """
    if func.overloadpacket in _LAUNCH_NOTHING or func.is_view:
        return None
    inputs, outputs = (list(filter(is_there, tensors(tree))) for tree in ((args, kwargs), out))
    if not (inputs or outputs):
        return None
    return Operator(
        name_of(func), "forward", [*map(described, inputs)], [*map(described, outputs)],
        attributes(func, args, kwargs),
    )  # fmt: skip
