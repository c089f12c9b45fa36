"""Autocast on the simulated device: CUDA's lists of operators, and what happens to their arguments.

torch registers these lists in C++ for its own devices only. Without them autocast would change nothing here.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from perfkit.simulate.describe import tensors

aten = torch.ops.aten
# From "Autocast Op Reference" of torch's documentation.
_LOWER = (
    "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d.input",
    "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm",
    "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "scaled_dot_product_attention",
)  # fmt: skip
_FLOAT32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal",
    "rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus",
    "layer_norm", "native_layer_norm", "group_norm", "norm.Scalar", "norm.ScalarOpt_dim",
    "cosine_similarity", "cross_entropy_loss", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss",
    "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss",
    "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss",
    "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm",
    "logsumexp",
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


def register() -> list[Any]:
    """Makes autocast know the device's operators; the libraries must be kept."""
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    casts = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
    for name in _LOWER:
        casts.impl(name, _casting(name, lambda _: torch.get_autocast_dtype("sim")))
    for name in _FLOAT32:
        casts.impl(name, _casting(name, lambda _: torch.float32))
    for name in _FLOAT32_RESULT:
        casts.impl(name, _summing(name))
    for name in _WIDEST:
        casts.impl(name, _casting(name, _widest))
    return [everything, casts]


def _key() -> Any:
    key: Any = torch._C._parse_dispatch_key("AutocastPrivateUse1")
    return torch._C.DispatchKeySet(key)


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
    key = _key()

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
    key = _key()
    halves = {"softmax.int": aten._softmax.default, "log_softmax.int": aten._log_softmax.default}

    def kernel(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(key):
            if not _may_cast(tensor) or kwargs.get("dtype") or any(isinstance(a, torch.dtype) for a in args):
                return operator(tensor, *args, **kwargs)
            if name in halves and tensor.dtype == torch.float16:
                return halves[name](tensor, args[0], True)  # CUDA has one kernel for both, of float16 only
            kept = args[:1] if "softmax" in name else args  # their second is a dtype, of sums it is `keepdim`
            return operator(tensor, *kept, **kwargs | {"dtype": torch.float32})

    return kernel


def _may_cast(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.dtype != torch.float64
