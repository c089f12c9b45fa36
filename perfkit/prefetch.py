"""Copies on a second CUDA stream: the switch `device_prefetch`."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.profiler import record_function


def prefetched(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """Batches on the device: the next one is copied while the model works on the current one."""
    side = torch.cuda.Stream(device)

    def copied(batch: Any) -> Any:
        if batch is None:
            return None
        with record_function("copy"):
            with torch.cuda.stream(side):
                return [part.to(device, non_blocking=True) for part in batch]

    upcoming = copied(next(batches, None))
    while upcoming is not None:
        torch.cuda.current_stream().wait_stream(side)
        for part in upcoming:  # the allocator must not reuse its memory while this stream reads it
            part.record_stream(torch.cuda.current_stream())
        current, upcoming = upcoming, copied(next(batches, None))
        yield current
