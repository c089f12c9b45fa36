"""Samples taken from outside the measured process: NVML's utilization and memory, and resident memory."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import psutil

from perfkit.machine.gpus import attempt, opened


@dataclass(frozen=True)
class Sample:
    """What NVML said at one moment; None for what the device does not tell."""

    at_s: float
    """`time.monotonic()`."""
    utilization: float | None
    """Percent: share of NVML's last 1/6 to 1 s in which a kernel ran."""
    memory_bytes: int | None
    """Memory in use on the whole device, by all processes."""


class GpuMonitor:
    """Samples one GPU in a thread of this process, as a context or between `start()` and `stop()`.

    Args:
        device: the GPU's UUID or PCI id, never an index: NVML does not heed CUDA_VISIBLE_DEVICES. None for no
            GPU, which gives no samples; so does a machine without NVML.
        period_s: between two samples.
        module: in place of pynvml, for tests.
    """

    def __init__(self, device: str | None, period_s: float = 0.1, module: Any = None) -> None:
        self._device = device
        self._period_s = period_s
        self._nvml = module
        self._samples: collections.deque[Sample] = collections.deque()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts sampling, where there is something to sample."""
        if self._device is None or self._thread:
            return
        if self._nvml is None:
            self._nvml = opened()
        if self._nvml is None or (handle := _handle(self._nvml, self._device)) is None:
            return
        self._ended.clear()
        self._thread = threading.Thread(target=self._run, args=(handle,), name="gpu-monitor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends sampling; the samples stay."""
        self._ended.set()
        if self._thread:
            self._thread.join()
        if self._nvml is not None:
            attempt(getattr(self._nvml, "nvmlShutdown", None))
        self._thread = self._nvml = None

    def take(self) -> list[Sample]:
        """The samples since this was last called, in the order of time."""
        taken = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._samples.popleft())
        return taken

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, handle: Any) -> None:
        while not self._ended.is_set():
            self._samples.append(_sample(self._nvml, handle))
            self._ended.wait(self._period_s)


def _handle(module: Any, device: str) -> Any:
    """The GPU of that UUID (with or without its prefix) or PCI id; None where there is no such."""
    ways = (("UUID", device), ("UUID", f"GPU-{device}"), ("PciBusId", device))
    found = (attempt(getattr(module, f"nvmlDeviceGetHandleBy{by}", None), name) for by, name in ways)
    return next((handle for handle in found if handle is not None), None)


def _sample(module: Any, handle: Any) -> Sample:
    rates = attempt(module.nvmlDeviceGetUtilizationRates, handle)
    memory = attempt(module.nvmlDeviceGetMemoryInfo, handle)
    return Sample(time.monotonic(), getattr(rates, "gpu", None), getattr(memory, "used", None))


def rss_of(pid: int) -> int | None:
    """Resident memory of a process in bytes; None where it has ended or belongs to another user."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None


def process_tree(pid: int) -> list[int]:
    """A process and all below it, by id; empty where it has ended."""
    try:
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.Error:
        return []
