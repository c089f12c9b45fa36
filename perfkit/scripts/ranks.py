"""Several ranks of a script: who computes longest, and what averaging the gradients costs."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import torch

from perfkit.scripts.blocks import Blocks, Job, Unavailable, synchronize
from perfkit.worker import all_reduce

if TYPE_CHECKING:
    from perfkit.scripts.script import Script

_ROUNDS = 4


def communication(script: Script, blocks: Blocks, samples: int) -> Job:
    """Plain data of `results.run.Communication`: steps with and without averaging, and the collectives alone.

    Steps without averaging let the ranks' weights drift apart; they get those of rank 0 again afterwards.
    """
    ddp = _ddp(script)
    with_it, without = list[float](), list[float]()
    steps = max(2, samples // max(1, script.usual_samples * torch.distributed.get_world_size()))
    for _ in range(_ROUNDS):
        with_it.append((yield from _step_s(blocks, steps)))
        ddp.require_backward_grad_sync = False
        try:
            without.append((yield from _step_s(blocks, steps)))
        finally:
            ddp.require_backward_grad_sync = True
    with torch.no_grad():
        for value in [*ddp.parameters(), *ddp.buffers()]:
            torch.distributed.broadcast(value, 0)
    sizes = _buckets(ddp)
    costs = all_reduce.measure(sizes, statistics.median(without), script.models.device(), synchronize)
    return {"bytes_per_step": sum(sizes), "step_s": statistics.median(with_it), **costs}


def _ddp(script: Script) -> Any:
    module: Any = sys.modules.get("torch.nn.parallel.distributed")
    for model in script.models.found:
        inner = getattr(model, "_orig_mod", model)
        if module and isinstance(inner, module.DistributedDataParallel):
            return inner
    raise Unavailable("no model of the script is wrapped in DistributedDataParallel")


def _step_s(blocks: Blocks, steps: int) -> Generator[None, Any, float]:
    rows, seconds = yield from blocks.run(steps, "ranks")
    return seconds / len(rows)


def _buckets(ddp: Any) -> list[int]:
    """Bytes of each collective."""
    sizes = (p.numel() * p.element_size() for p in ddp.parameters() if p.requires_grad)
    return all_reduce.buckets(sizes, ddp.bucket_bytes_cap)
