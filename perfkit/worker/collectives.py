"""What averaging gradients between ranks costs: a step with it, a step without it, and the collectives alone.

Runs in every rank at once. The exposed time is the difference of the two steps, which needs no profiler and
holds for gloo and NCCL alike; the rest of the collectives' own time was hidden behind the computation.
"""

from __future__ import annotations

import copy
import statistics
from typing import Any

from perfkit.results.run import Communication
from perfkit.worker import all_reduce
from perfkit.worker.harness import Harness
from perfkit.worker.observe import inner_model

_ROUNDS = 5


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
    sizes = _buckets(training)
    costs = all_reduce.measure(sizes, statistics.median(without), training.device, harness.device.synchronize)
    once = 1 if training.recipe.no_sync else training.recipe.accumulation
    costs["alone_s"] *= once
    return Communication(bytes_per_step=sum(sizes) * once, step_s=statistics.median(with_it), **costs)


def _step_s(harness: Harness, samples: int) -> float:
    block = harness.block(samples)
    return block.seconds / len(block.step_s)


def _buckets(training: Any) -> list[int]:
    """Bytes of each collective: DDP's default is 25 MiB."""
    sizes = [p.nbytes for p in training.model.parameters() if p.requires_grad]
    return all_reduce.buckets(sizes, 25 << 20)
