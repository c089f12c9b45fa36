"""Tensors without numbers, and a listener to every operator: all private interfaces of torch are here.

They are plain tensors on the CPU whose memory is never touched, so that it exists in name only. No operator
runs: the shapes of its results are found once for arguments of the same kind.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.utils._pytree as pytree
from torch._prims_common import suggest_memory_format
from torch.utils._python_dispatch import TorchDispatchMode

from perfkit.simulate import as_cuda

aten = torch.ops.aten
tree_map = pytree.tree_map


_VIEWS_BY_ANOTHER_NAME = (
    aten._unsafe_view.default, aten.unsafe_split.Tensor, aten.unsafe_split_with_sizes.default,
)  # fmt: skip
"""They share the memory of their argument, though their schemas do not say so."""


class Unpredictable(Exception):
    """The program asks for something that tensors without numbers cannot answer."""


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested lists, tuples and dictionaries."""
    return (leaf for leaf in pytree.tree_iter(tree) if isinstance(leaf, torch.Tensor))


@contextlib.contextmanager
def listening(listener: Any) -> Iterator[None]:
    """Within, no operator runs, and a `recording.Recorder` hears of each."""
    name = "torch.optim.optimizer._get_foreach_kernels_supported_devices"
    devices = mock.patch(name, return_value=["cpu", "cuda"])
    to_host = mock.patch.multiple(torch.Tensor, **listener.readers())
    casts, choices = (torch.library.Library("aten", "IMPL", f"Auto{kind}CPU") for kind in ("cast", "grad"))
    as_cuda.cast(casts)
    choices.impl("scaled_dot_product_attention", as_cuda.attention)
    try:
        with devices, to_host, _Operators(listener):
            yield
    finally:
        casts._destroy()
        choices._destroy()


class _Operators(TorchDispatchMode):
    def __init__(self, listener: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._listener = listener
        self._known: dict[Any, Any] = {}
        """Results as meta tensors, by operator and kind of arguments."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten._local_scalar_dense.default:
            return self._listener.number(args[0])
        if func.namespace in ("prim", "profiler"):
            return func(*args, **kwargs)
        returns = func._schema.returns
        if func.is_view or torch.Tag.inplace_view in func.tags or func in _VIEWS_BY_ANOTHER_NAME:
            out = func(*args, **kwargs)
        elif all(result.alias_info for result in returns):
            out = _changed(func, args, kwargs) if returns else None
        else:
            key = func, _kind((args, *kwargs.items()))
            if key not in self._known:
                self._known[key] = _on_meta(func, args, kwargs)
            out = tree_map(_without_numbers, self._known[key])
        self._listener.operator(func, args, kwargs, out)
        return out


def _without_numbers(leaf: Any, device: str = "cpu") -> Any:
    """Another tensor of the same layout."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return torch.empty_strided(*_sides(leaf), dtype=leaf.dtype, device=device)


def _sides(tensor: torch.Tensor) -> tuple[Any, Any]:
    """Sizes and strides."""
    if tensor.layout != torch.strided or tensor.is_nested:
        raise Unpredictable("it computes with sparse or nested tensors, which are not modelled")
    return tensor.shape, tensor.stride()


def arguments(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of an operator by name."""
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _changed(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operator returns that only changes its arguments."""
    given = arguments(func, args, kwargs)
    changed = [given[each.name] for each in func._schema.arguments if each.alias_info]
    return changed[0] if len(func._schema.returns) == 1 else changed


def _kind(value: Any) -> Any:
    """All that results depend on."""
    if isinstance(value, torch.Tensor):
        return value.dtype, *_sides(value)
    if isinstance(value, list | tuple):
        return tuple(map(_kind, value))
    return type(value), value


def _on_meta(func: Any, args: Any, kwargs: Any) -> Any:
    """The results of an operator, as meta tensors."""
    name = func.overloadpacket.__name__
    args, kwargs = tree_map(partial(_without_numbers, device="meta"), (args, kwargs))
    if any(argument.name == "device" for argument in func._schema.arguments):
        kwargs["device"] = "meta"
    kwargs.pop("generator", None)
    try:
        found = func(*args, **kwargs)
    except NotImplementedError:
        what = f"its operator {func} is not known to the simulation"
        if not {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}.isdisjoint(func.tags):
            what = f"the result of {func} depends on the values of tensors, which are not simulated"
        raise Unpredictable(what) from None
    if name == "native_batch_norm":  # as on the CPU, its statistics are as wide as its input
        return tuple(tensor.to(found[0].dtype) for tensor in found)
    if name.startswith("convolution"):
        for layout in {*map(suggest_memory_format, tensors(args))} - {torch.contiguous_format}:
            found = tree_map(partial(_in_layout, layout), found)
    return found


def _in_layout(layout: torch.memory_format, leaf: Any) -> Any:
    return leaf.to(memory_format=layout) if isinstance(leaf, torch.Tensor) and leaf.dim() > 1 else leaf
