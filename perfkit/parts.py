"""Parts of the training program that most recipes leave out; exported scripts hold those that they use.

They serve several ranks, an order without end, a data set on the device, embeddings in host memory, and
activation checkpointing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import distributed, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import RandomSampler


class RankOrder:
    """Every n-th index of one shared shuffle (n = ranks): together the ranks see what one process would."""

    def __init__(self, order: RandomSampler) -> None:
        self.order = order
        self.ranks = distributed.get_world_size()

    def __len__(self) -> int:
        return len(self.order) // self.ranks

    def __iter__(self) -> Iterator[int]:
        shuffled = list(self.order)
        return iter(shuffled[distributed.get_rank() : len(self) * self.ranks : self.ranks])


class InfiniteSampler:
    """The same indices in the same order, without end: at the end of an epoch workers fetch the next one.

    It has no length. As with `drop_last`, the last batch of an epoch is left out where it would be smaller.
    """

    def __init__(self, order: Any, batch_size: int) -> None:
        self.order = order
        self.used = len(order) // batch_size * batch_size
        if self.used == 0:
            raise ValueError(f"{len(order)} samples do not fill a batch of {batch_size}")

    def __iter__(self) -> Iterator[int]:
        while True:  # each order is drawn to its end, so that the next one is the same as without this class
            for position, index in enumerate(self.order):
                if position < self.used:
                    yield index


def mean_over_ranks(losses: list[torch.Tensor]) -> torch.Tensor:
    """The losses of some steps, each averaged over the ranks."""
    total = torch.stack(losses).float()
    distributed.all_reduce(total)
    return total / distributed.get_world_size()


class ResidentLoader:
    """The whole data set on the device: a batch is indexed there, without a copy."""

    def __init__(self, dataset: Any, batch_size: int, order: Any, device: torch.device) -> None:
        inputs, targets = dataset.__getitems__(list(range(len(dataset))))
        self.inputs = inputs.to(device)
        self.targets = targets.to(device)
        self.batch_size = batch_size
        self.order = order

    def __len__(self) -> int:
        return len(self.order) // self.batch_size

    def __iter__(self) -> Iterator[Any]:
        shuffled = torch.tensor(list(self.order), device=self.targets.device)
        for step in range(len(self)):
            chosen = shuffled[step * self.batch_size : (step + 1) * self.batch_size]
            yield self.inputs[chosen], self.targets[chosen]


def place_around_embeddings(model: nn.Module, device: torch.device) -> None:
    """Moves all but the embeddings to the device; of these, only the rows that are looked up are copied."""
    moved: dict[nn.Parameter, nn.Parameter] = {}  # a weight shared by two modules stays shared
    for module in model.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            module.register_forward_hook(lambda _, inputs, rows: rows.to(device))
            continue
        for name, weight in [*module.named_parameters(recurse=False)]:
            moved.setdefault(weight, nn.Parameter(weight.to(device), weight.requires_grad))
            setattr(module, name, moved[weight])
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))


def blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks to checkpoint: children with modules of their own (lists opened), or the whole model."""
    children = [[*child] if isinstance(child, nn.ModuleList) else [child] for child in model.children()]
    return [block for opened in children for block in opened if [*block.children()]] or [model]


def forget_activations(block: Any) -> None:
    """Keeps only the block's input for backward, which recomputes the activations."""
    compute = block.forward
    block.forward = lambda *inputs: checkpoint(
        compute, *inputs, use_reentrant=False, context_fn=partial(once_only_statistics, block)
    )


def once_only_statistics(block: nn.Module) -> Any:
    """Contexts of forward and of its recomputation, in which batch norm must not update its statistics."""

    @contextlib.contextmanager
    def frozen() -> Iterator[None]:
        norms: list[Any] = [part for part in block.modules() if hasattr(part, "num_batches_tracked")]
        kept = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
        for norm in norms:
            norm.momentum, norm.num_batches_tracked = 0.0, None
        try:
            yield
        finally:
            for norm, (momentum, counted) in zip(norms, kept, strict=True):
                norm.momentum, norm.num_batches_tracked = momentum, counted

    return nullcontext(), frozen()
