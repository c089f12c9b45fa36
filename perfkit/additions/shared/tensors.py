"""Walks through values: the tensors in batches, outputs and states, and the autograd graph of a loss."""

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge


def graph(roots: Any, most: float = math.inf) -> Iterator[Any]:
    """The nodes that a backward pass from these tensors or edges of the graph visits, at most `most`."""
    visited = set[Any]()
    is_one = isinstance(roots, torch.Tensor | GradientEdge)  # an edge is a tuple itself
    starts = [roots] if is_one else roots
    waiting = [root.node if isinstance(root, GradientEdge) else root.grad_fn for root in starts]
    while waiting and len(visited) < most:
        node = waiting.pop()
        if node is not None and node not in visited:
            visited.add(node)
            waiting += [following for following, _ in node.next_functions]
            yield node


def attributes(value: Any) -> dict[str, Any]:
    """The attributes of a plain object, including its slots."""
    state: Any = object.__getstate__(value)
    states = state if isinstance(state, tuple) else (state,)
    return {name: member for part in states if part for name, member in part.items()}


def tensors(value: Any, depth: int = 4) -> Iterator[torch.Tensor]:
    """The tensors in nested containers and plain objects, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth:
        if not isinstance(value, list | tuple | Mapping):
            value = attributes(value)
        for member in list(value.values() if isinstance(value, Mapping) else value):
            yield from tensors(member, depth - 1)


def is_plain(tensor: Any) -> bool:
    """Whether its numbers can be looked at: it is a plain tensor, and not within `torch.func`."""
    if type(tensor) not in (torch.Tensor, nn.Parameter, nn.Buffer) or tensor.is_nested:
        return False
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return tensor.layout == torch.strided and tensor.device.type != "meta" and not is_wrapped


def weights_of(groups: Iterable[Mapping[str, Any]]) -> list[Any]:
    """The weights in groups of optimizers."""
    return [weight for group in groups for weight in group["params"]]


def first_tensor(value: Any) -> torch.Tensor | None:
    """The first tensor with at least one dimension."""
    if isinstance(value, list | tuple) and value and isinstance(value[0], torch.Tensor) and value[0].dim():
        return value[0]  # without a walk, as most models are called
    return next((tensor for tensor in tensors(value) if tensor.dim()), None)


def samples(tensor: torch.Tensor | None, batch: int = 0) -> int:
    """The samples in a tensor: its first dimension, or `batch` if its second has that size."""
    if tensor is None:
        return 0
    return batch if tensor.shape[1:2] == (batch,) else tensor.shape[0]


def samples_of(batch: Any, indices: Any) -> int:
    """The samples in a batch: one for each index, or its size without any, as of an iterable data set."""
    count = len(indices) if isinstance(indices, list | tuple) else 0
    return count if count and indices[0] is not None else samples(first_tensor(batch), count)


def checksum(values: Iterable[torch.Tensor], most: int) -> int:
    """A checksum of tensors: of at most `most` elements of each tensor, evenly spread."""
    total = 0
    for value in values:
        flat = value.detach().reshape(-1)
        elements = flat[:: flat.numel() // most + 1].contiguous().cpu()
        total = zlib.crc32(elements.view(torch.uint8).numpy().tobytes(), total)
    return total
