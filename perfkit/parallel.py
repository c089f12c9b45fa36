"""What runs beside the loop of `train.py`: a second CUDA stream, and further ranks."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import distributed
from torch.profiler import record_function
from torch.utils.data import DistributedSampler


def prefetched(
    batches: Iterator[Any], device: torch.device, part: Callable[[str], Any] = record_function
) -> Iterator[Any]:
    """Batches on the device: the next one is copied while the model works on the current one."""
    side = torch.Stream(device)

    def copied(batch: Any) -> Any:
        if batch is None:
            return None
        with part("copy"):
            with side:
                return [each.to(device, non_blocking=True) for each in batch]

    upcoming = copied(next(batches, None))
    while upcoming is not None:
        stream = torch.accelerator.current_stream(device)
        stream.wait_stream(side)
        for each in upcoming:  # the allocator must not reuse its memory while this stream reads it
            each.record_stream(stream)
        current, upcoming = upcoming, copied(next(batches, None))
        yield current


def join_ranks(device: torch.device, seed: int) -> torch.device:
    """Join the process group that torchrun describes; the device of this rank.

    Each rank draws random numbers of its own, or augmentation and dropout would be the same on all of them.
    """
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.accelerator.set_device_index(device.index)
    if not distributed.is_initialized():
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(seed + distributed.get_rank())
    return device


class RankSampler(DistributedSampler):  # type: ignore[type-arg]
    """This rank's part of one shuffle, which is another one in each epoch."""

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()
        self.set_epoch(self.epoch + 1)


def mean_over_ranks(losses: torch.Tensor) -> torch.Tensor:
    """Losses averaged over the ranks."""
    distributed.all_reduce(losses)
    return losses / distributed.get_world_size()
