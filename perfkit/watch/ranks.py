"""Several ranks of a script: who computes longest, and what averaging the gradients costs."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import torch

from perfkit.watch.blocks import Blocks, Job, Unavailable, synchronize

if TYPE_CHECKING:
    from perfkit.watch.script import Script

_ROUNDS = 4
_SMALL, _LARGE = 1 << 12, 1 << 22
"""Bytes of the two collectives from which latency and bandwidth are estimated."""


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
    device = script.models.device()
    small_s, large_s = (_all_reduce_s([size], device) for size in (_SMALL, _LARGE))
    slope = max((large_s - small_s) / (_LARGE - _SMALL), 1e-15)
    sizes = _buckets(ddp)
    own = torch.tensor([statistics.median(without)], device=device)
    everyone = [torch.zeros_like(own) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(everyone, own)
    return {
        "bytes_per_step": sum(sizes), "step_s": statistics.median(with_it),
        "compute_s": statistics.median(without), "alone_s": _all_reduce_s(sizes, device),
        "rank_compute_s": [float(value) for value in everyone],
        "start_s": max(small_s - slope * _SMALL, 1e-9), "bytes_per_s": 1 / slope,
    }  # fmt: skip


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
    buckets = [0]
    for parameter in ddp.parameters():
        if parameter.requires_grad:
            size = parameter.numel() * parameter.element_size()
            if buckets[-1] and buckets[-1] + size > ddp.bucket_bytes_cap:
                buckets.append(0)
            buckets[-1] += size
    return buckets


def _all_reduce_s(sizes: list[int], device: torch.device) -> float:
    """Median time of these collectives one after the other, with nothing else running."""
    tensors = [torch.zeros(max(1, size // 4), device=device) for size in sizes]
    seconds = []
    for _ in range(_ROUNDS + 1):
        torch.distributed.barrier()
        synchronize()
        start = time.perf_counter()
        for tensor in tensors:
            torch.distributed.all_reduce(tensor)
        synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])
