"""The ends of steps by the clock that counts: the accelerator's own, or else this process's."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch

from perfkit.worker.checks import synchronize


class Timeline:
    """Ends of steps, by events in the accelerator's stream, so that the host may run ahead of it.

    Without events it is this process's clock, which waits for the device at both ends of a slice: the host
    runs ahead of a device that cannot record its own times, so only whole slices have correct times.
    """

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        self._device = device
        self._clock = clock
        self.has_events = _records_times(device)
        synchronize(device)
        self._ends: list[Any] = []
        self.mark()

    def mark(self) -> None:
        if not self.has_events:
            self._ends.append(self._clock())
            return
        event = timing_event(self._device)
        event.record()
        self._ends.append(event)

    def step_s(self) -> list[float]:
        """Seconds between successive marks, the first of them since the start, once the device is done."""
        synchronize(self._device)
        if self.has_events:
            return [start.elapsed_time(end) / 1e3 for start, end in itertools.pairwise(self._ends)]
        self._ends[-1] = self._clock()
        return [end - start for start, end in itertools.pairwise(self._ends)]


def _records_times(device: torch.device) -> bool:
    """Whether torch can record times on a device."""
    if device.type == "cpu":
        return False
    try:
        timing_event(device).record()
    except (NotImplementedError, RuntimeError, ValueError):
        return False
    return True


def timing_event(device: torch.device) -> Any:
    """An event that records when the current stream of a device reaches it."""
    if device.type == "mps":
        return torch.mps.event.Event(enable_timing=True)
    return torch.Event(device=device, enable_timing=True)
