"""The ends of steps by the clock that counts: the accelerator's own, or else this process's."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch

from perfkit.worker.checks import synchronize

Clock = Callable[[], float]  # returns seconds


class HostTimeline:
    """Ends of steps by this process's clock, which waits for the device at both ends of a slice.

    The host runs ahead of a device that cannot record its own times, so only whole slices have correct times.
    """

    def __init__(self, device: torch.device, clock: Clock = time.perf_counter) -> None:
        self._device = device
        self._clock = clock
        synchronize(device)
        self._ends = [clock()]

    def mark(self) -> None:
        self._ends.append(self._clock())

    def step_s(self) -> list[float]:
        """Seconds between successive marks, the first of them since the start."""
        synchronize(self._device)
        self._ends[-1] = self._clock()
        return [end - start for start, end in itertools.pairwise(self._ends)]


class DeviceTimeline:
    """Ends of steps by events in the accelerator's stream, so that the host may run ahead of it."""

    def __init__(self, device: torch.device, make_event: Callable[[torch.device], Any]) -> None:
        self._device = device
        self._make_event = make_event
        synchronize(device)
        self._events: list[Any] = []
        self.mark()

    def mark(self) -> None:
        event = self._make_event(self._device)
        event.record()
        self._events.append(event)

    def step_s(self) -> list[float]:
        """Seconds between successive marks on the device, after waiting until it has reached the last one."""
        synchronize(self._device)
        return [start.elapsed_time(end) / 1e3 for start, end in itertools.pairwise(self._events)]


def timeline(device: torch.device, clock: Clock = time.perf_counter) -> HostTimeline | DeviceTimeline:
    """The timeline of a device: its own if torch can record it."""
    if device.type == "cpu":
        return HostTimeline(device, clock)
    try:
        return DeviceTimeline(device, timing_event)
    except (NotImplementedError, RuntimeError, ValueError):  # this accelerator records no times
        return HostTimeline(device, clock)


def timing_event(device: torch.device) -> Any:
    """An event that records when the current stream of a device reaches it."""
    if device.type == "mps":
        return torch.mps.event.Event(enable_timing=True)
    return torch.Event(device=device, enable_timing=True)
