"""What averaging gradients between ranks costs: a step with it, a step without it, and the collectives alone.

Runs in every rank at once. The exposed time is the difference of the two steps, which needs no profiler and
holds for gloo and NCCL alike; the rest of the collectives' own time was hidden behind the computation.
"""

from __future__ import annotations

import copy
import statistics
import time
from typing import Any

import torch
from torch import distributed

from perfkit.results.run import Communication
from perfkit.worker.harness import Harness
from perfkit.worker.observe import inner_model

_ROUNDS = 5
_SMALL, _LARGE = 1 << 12, 1 << 24
"""Bytes of the two collectives from which latency and bandwidth are estimated."""


def measure(harness: Harness, samples: int) -> Communication:
    """The cost of communication; weights and optimizer are restored afterwards."""
    training = harness.training
    before = copy.deepcopy((inner_model(training.model).state_dict(), training.optimizer.state_dict()))
    with_it, without = list[float](), list[float]()
    for _ in range(_ROUNDS):
        with_it.append(_step_s(harness, samples))
        with training.model.no_sync():
            without.append(_step_s(harness, samples))
    inner_model(training.model).load_state_dict(before[0])
    training.optimizer.load_state_dict(before[1])
    training.optimizer.zero_grad(set_to_none=True)
    buckets = _buckets(training)
    small_s, large_s = (_all_reduce_s(harness, [size]) for size in (_SMALL, _LARGE))
    slope = max((large_s - small_s) / (_LARGE - _SMALL), 1e-15)
    once = 1 if training.recipe.no_sync else training.recipe.accumulation
    own = torch.tensor([statistics.median(without)], device=training.device)
    all_ranks = [torch.zeros_like(own) for _ in range(distributed.get_world_size())]
    distributed.all_gather(all_ranks, own)
    return Communication(
        bytes_per_step=sum(buckets) * once, step_s=statistics.median(with_it),
        compute_s=statistics.median(without), alone_s=_all_reduce_s(harness, buckets) * once,
        rank_compute_s=[float(value) for value in all_ranks],
        start_s=max(small_s - slope * _SMALL, 1e-9), bytes_per_s=1 / slope,
    )  # fmt: skip


def _step_s(harness: Harness, samples: int) -> float:
    block = harness.block(samples)
    return block.seconds / len(block.step_s)


def _buckets(training: Any) -> list[int]:
    """Bytes of each collective, in the precision that is sent."""
    halves = training.recipe.gradient_compression != "off"
    sizes = [
        p.numel() * (2 if halves else p.element_size())
        for p in training.model.parameters()
        if p.requires_grad
    ]
    cap, buckets = training.recipe.bucket_cap_mb << 20, [0]
    for size in sizes:
        if buckets[-1] and buckets[-1] + size > cap:
            buckets.append(0)
        buckets[-1] += size
    return buckets


def _all_reduce_s(harness: Harness, sizes: list[int]) -> float:
    """Median time of these collectives one after the other, with nothing else running."""
    tensors = [torch.zeros(max(1, size // 4), device=harness.training.device) for size in sizes]
    seconds = []
    for _ in range(_ROUNDS + 1):
        distributed.barrier()
        harness.device.synchronize()
        start = time.perf_counter()
        for tensor in tensors:
            distributed.all_reduce(tensor)
        harness.device.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])
