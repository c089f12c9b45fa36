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


def mean_over_ranks(losses: list[torch.Tensor]) -> torch.Tensor:
    """The losses of some steps, each averaged over the ranks."""
    total = torch.stack(losses).float()
    distributed.all_reduce(total)
    return total / distributed.get_world_size()


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
