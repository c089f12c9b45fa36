"""Sizes of what passes through a script: batches and inputs in whatever containers it uses."""

import collections.abc
from collections.abc import Iterator
from typing import Any

import torch


def tensors(value: Any, depth: int = 4) -> Iterator[torch.Tensor]:
    """All tensors in nested containers and plain objects, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth:
        parts: Any = ()
        if isinstance(value, collections.abc.Mapping):
            parts = value.values()
        elif isinstance(value, list | tuple):
            parts = value
        elif not isinstance(value, str | bytes | int | float):
            parts = getattr(value, "__dict__", {}).values()
        for part in list(parts):
            yield from tensors(part, depth - 1)


def first_tensor(value: Any) -> torch.Tensor | None:
    """The first tensor with at least one dimension."""
    return next((tensor for tensor in tensors(value) if tensor.dim()), None)


def size(tensor: torch.Tensor | None) -> tuple[int, int]:
    """Samples and tokens of a tensor: its first dimension; all elements of a 2-D integer tensor."""
    if tensor is None:
        return 0, 0
    is_text = tensor.dim() == 2 and not tensor.is_floating_point() and not tensor.is_complex()
    return tensor.shape[0], tensor.numel() if is_text else 0
