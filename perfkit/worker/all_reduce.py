"""The collectives of a step alone, timed in every rank at once; quick to import, as watched scripts do it."""

import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import distributed

_ROUNDS = 5
_SMALL, _LARGE = 1 << 12, 1 << 24
"""Bytes of the two collectives from which latency and bandwidth are estimated."""


def buckets(sizes: Iterable[int], cap: int) -> list[int]:
    """Bytes of each collective, for gradients of these sizes in buckets of at most `cap` bytes."""
    filled = [0]
    for size in sizes:
        if filled[-1] and filled[-1] + size > cap:
            filled.append(0)
        filled[-1] += size
    return filled


def measure(
    sizes: list[int], compute_s: float, device: torch.device, synchronize: Callable[[], None]
) -> dict[str, Any]:
    """Fields of `results.run.Communication`: these collectives, and `compute_s` of all ranks."""
    small_s, large_s = (_median_s([size], device, synchronize) for size in (_SMALL, _LARGE))
    slope = max((large_s - small_s) / (_LARGE - _SMALL), 1e-15)
    own = torch.tensor([compute_s], device=device)
    all_ranks = [torch.zeros_like(own) for _ in range(distributed.get_world_size())]
    distributed.all_gather(all_ranks, own)
    return {
        "compute_s": compute_s, "alone_s": _median_s(sizes, device, synchronize),
        "rank_compute_s": [float(value) for value in all_ranks],
        "start_s": max(small_s - slope * _SMALL, 1e-9), "bytes_per_s": 1 / slope,
    }  # fmt: skip


def _median_s(sizes: list[int], device: torch.device, synchronize: Callable[[], None]) -> float:
    """Median time of these collectives one after the other, with nothing else running."""
    tensors = [torch.zeros(max(1, size // 4), device=device) for size in sizes]
    seconds = []
    for _ in range(_ROUNDS + 1):
        distributed.barrier()
        synchronize()
        start = time.perf_counter()
        for tensor in tensors:
            distributed.all_reduce(tensor)
        synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])
