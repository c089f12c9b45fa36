"""The ends of steps by the clock that counts: the accelerator's own, or else this process's."""

import contextlib
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
        synchronize(device)
        first = _recorded_event(device)
        self.has_events = first is not None
        self._ends: list[Any] = [first if self.has_events else clock()]

    def mark(self) -> None:
        if self.has_events:
            self._ends.append(timing_event(self._device))
            self._ends[-1].record()
        else:
            self._ends.append(self._clock())

    def step_s(self) -> list[float]:
        """Seconds between successive marks, the first of them since the start, once the device is done."""
        synchronize(self._device)
        if self.has_events:
            return [start.elapsed_time(end) / 1e3 for start, end in itertools.pairwise(self._ends)]
        if self._device.type != "cpu":  # the host was ahead of it, and of the last mark
            self._ends[-1] = self._clock()
        return [end - start for start, end in itertools.pairwise(self._ends)]


def _recorded_event(device: torch.device) -> Any:
    """An event at this place in the device's stream; None where torch can record no times."""
    if device.type != "cpu":
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            event = timing_event(device)
            event.record()
            return event
    return None


def timing_event(device: torch.device) -> Any:
    """An event that records when the current stream of a device reaches it."""
    if device.type == "mps":
        return torch.mps.event.Event(enable_timing=True)
    return torch.Event(device=device, enable_timing=True)
