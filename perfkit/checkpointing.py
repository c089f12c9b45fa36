"""Activation checkpointing block by block: the switch `activation_checkpointing`."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint


def checkpoint_blocks(model: nn.Module) -> None:
    """Keep only the input of each block for backward, which computes the activations again."""
    for block in blocks(model):
        statistics = partial(update_statistics_once, block)
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=statistics)


def blocks(model: nn.Module) -> list[nn.Module]:
    """The layers of the model's outermost lists, without those that have no parts; else the whole model."""
    return _listed(model) or [model]


def _listed(module: nn.Module) -> list[nn.Module]:
    layers = [child for child in module.children() if [*child.children()]]
    if isinstance(module, nn.Sequential | nn.ModuleList) and len(layers) > 1:
        return [
            part for layer in layers for part in (_listed(layer) if type(layer) is nn.ModuleList else [layer])
        ]
    return [block for child in layers for block in _listed(child)]


def update_statistics_once(block: nn.Module) -> tuple[AbstractContextManager[None], ...]:
    """Contexts of forward and of its repetition, in which batch norm must not count its batch again."""

    @contextlib.contextmanager
    def frozen() -> Iterator[None]:
        norms: list[Any] = [part for part in block.modules() if hasattr(part, "num_batches_tracked")]
        before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
        for norm in norms:
            norm.momentum, norm.num_batches_tracked = 0.0, None
        try:
            yield
        finally:
            for norm, (momentum, batches) in zip(norms, before, strict=True):
                norm.momentum, norm.num_batches_tracked = momentum, batches

    return nullcontext(), frozen()
