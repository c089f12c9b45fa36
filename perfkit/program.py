"""The parts that the training function is built from. To measure it, the harness passes its own `Program`."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import chain, repeat
from typing import Any

import torch
from torch.profiler import record_function

from perfkit.errors import InvalidValue


def endless(loader: Any) -> Iterator[Any]:
    """Batches, epoch after epoch."""
    assert len(loader) > 0, f"{len(loader.sampler)} samples do not fill a batch of {loader.batch_size}"
    return chain.from_iterable(repeat(loader))


class Program:
    """The program without measuring. `train.train` calls every method; an exported script contains none."""

    def built(self, loader: Any, model: Any, optimizer: Any, scaler: Any, device: torch.device) -> None:
        """Called when everything is built and the first step is about to begin."""

    def batches(self, loader: Any) -> Iterator[Any]:
        """Batches of a loader, epoch after epoch; raises `InvalidValue` if an epoch has none."""
        if len(loader) == 0:
            samples = len(loader.sampler)
            what = f"a batch of {loader.batch_size} samples is larger than the data set, which has {samples}"
            raise InvalidValue(what, "Lower batch_size, or give the data set more samples")
        return endless(loader)

    def part(self, name: str) -> AbstractContextManager[Any]:
        """A context manager around one part of a step: copy, forward, backward or optimizer."""
        return record_function(name)


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
