"""Tensors without numbers, and a listener to every operator. All uses of torch's private API are here.

These are plain tensors on the CPU whose memory is never touched, so it is never really allocated. Operators
do not run: the shapes of their results are found once for each kind of arguments.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeGuard
from unittest import mock

import torch
from torch._prims_common import suggest_memory_format
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

from perfkit import lookup

aten = torch.ops.aten
_ALSO_VIEWS = (aten._unsafe_view.default, aten.unsafe_split.Tensor, aten.unsafe_split_with_sizes.default)
"""They share their argument's memory, although their schemas do not say so."""


class Unpredictable(Exception):
    """The program needs something that tensors without numbers cannot provide."""


def tensors(tree: object) -> Iterator[torch.Tensor]:
    """The tensors in nested lists, tuples and dictionaries."""
    return (leaf for leaf in tree_iter(tree) if isinstance(leaf, torch.Tensor))


@contextlib.contextmanager
def uninitialised() -> Iterator[None]:
    """Keeps models from drawing random numbers while it is active: for large models that takes seconds."""
    names = ("normal_", "uniform_", "erfinv_", "exponential_")
    same: dict[str, Any] = dict.fromkeys(names, lambda tensor, *_, **__: tensor)
    # It would draw repeatedly until all numbers are within its bounds.
    cut_off = mock.patch("torch.nn.init._no_grad_trunc_normal_", same["normal_"])
    with mock.patch.multiple(torch.Tensor, **same), cut_off:
        yield


@contextlib.contextmanager
def listening(listener: Any) -> Iterator[None]:
    """Runs no operator while it is active, and reports each one to a `recording.Recorder`."""
    name = "torch.optim.optimizer._get_foreach_kernels_supported_devices"
    optimizers = mock.patch(name, return_value=["cpu", "cuda"])
    to_host = mock.patch.multiple(torch.Tensor, **listener.readers())
    with optimizers, to_host, _as_on_cuda(), _Operators(listener):
        yield


class _Operators(TorchDispatchMode):
    def __init__(self, listener: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._listener = listener
        self._known: dict[object, object] = {}  # results as meta tensors, by operator and kind of arguments

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten._local_scalar_dense.default:
            return self._listener.number(args[0])
        is_view = func.is_view or torch.Tag.inplace_view in func.tags or func in _ALSO_VIEWS
        if is_view or func.namespace in ("prim", "profiler"):
            return func(*args, **kwargs)
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        returns = func._schema.returns
        out: Any = None
        made: Any = None
        if not all(result.alias_info for result in returns):
            key = func, _kind([*given.items()])
            if key not in self._known:
                self._known[key] = _on_meta(func, args, kwargs)
            out = made = tree_map(_without_numbers, self._known[key])
        elif returns:  # the operator changes arguments, and returns them
            out = [given[each.name] for each in func._schema.arguments if each.alias_info]
            out = out[0] if len(returns) == 1 else out
        self._listener.operator(f"{func.namespace}.{func.overloadpacket.__name__}", given, out, made)
        return out


def _kind(value: object) -> object:
    """Everything that the shapes of results depend on."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_nested:
            raise Unpredictable("it computes with sparse or nested tensors, which are not modelled")
        return value.dtype, value.shape, value.stride()
    return tuple(map(_kind, value)) if isinstance(value, list | tuple) else (type(value), value)


def _without_numbers(leaf: object, device: str = "cpu") -> object:
    """A new tensor with the same layout."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=device)


def _on_meta(func: Any, args: Any, kwargs: Any) -> Any:
    """The results of an operator, as meta tensors."""
    args, kwargs = tree_map(partial(_without_numbers, device="meta"), (args, kwargs))
    if any(argument.name == "device" for argument in func._schema.arguments):
        kwargs["device"] = "meta"
    kwargs.pop("generator", None)
    try:
        found = func(*args, **kwargs)
    except NotImplementedError:
        what = f"the simulation does not know its operator {func}"
        if not {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}.isdisjoint(func.tags):
            what = f"the result of {func} depends on the values of tensors, which are not simulated"
        raise Unpredictable(what) from None
    if func is aten.native_batch_norm.default:  # as on the CPU, its statistics have its input's type
        return tuple(tensor.to(found[0].dtype) for tensor in found)
    if func.overloadpacket in (aten.convolution, aten.convolution_backward):
        for layout in {*map(suggest_memory_format, tensors(args))} - {torch.contiguous_format}:
            for image in (leaf for leaf in tensors(found) if leaf.dim() > 1):
                image.data = image.to(memory_format=layout)
    return found


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention by the kernel that CUDA chooses from Ampere on (Volta has no flash attention)."""
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
def _as_on_cuda() -> Iterator[None]:
    """Gives tensors on the CPU the casts and the attention of CUDA while it is active."""
    casts, choices = (torch.library.Library("aten", "IMPL", f"Auto{kind}CPU") for kind in ("cast", "grad"))
    choices.impl("scaled_dot_product_attention", _attention)
    casts.impl("cross_entropy_loss", torch.library.fallthrough_kernel, allow_override=True)
    names_of = lookup.toml(__package__, "casts")
    for cast in (_in_float32, _with_float32_result, _in_widest):
        run = torch.autocast("cpu", enabled=False)(cast)  # so that nothing inside is cast again
        for name in names_of[cast.__name__.lstrip("_")].split():
            packet, _, overload = name.partition(".")
            casts.impl(name, partial(run, getattr(getattr(aten, packet), overload or "default")))
    yield  # the libraries are removed when this frame ends


def _is_half(arg: object) -> TypeGuard[torch.Tensor]:
    return isinstance(arg, torch.Tensor) and arg.dtype in (torch.float16, torch.bfloat16)


def _in_float32(operator: Callable[..., object], *args: object, **kwargs: object) -> object:
    return operator(*(arg.float() if _is_half(arg) else arg for arg in args), **kwargs)


def _in_widest(operator: Callable[..., object], *args: object, **kwargs: object) -> object:
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
