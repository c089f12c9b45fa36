"""The memory peak of a process or of its device; quick to import, as a watched script does it too."""

from __future__ import annotations

import contextlib
import sys

import torch


def reset_peak(device: torch.device) -> None:
    """Starts a new peak."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    # Not on Linux, or not allowed: the peak is then that of the whole process.
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def peak_bytes(device: torch.device) -> tuple[int | None, int | None]:
    """Peak bytes since the last reset: allocated and reserved on CUDA; this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    if device.type == "mps":
        return torch.mps.current_allocated_memory(), None
    return _peak_rss(), None


def _peak_rss() -> int | None:
    with contextlib.suppress(OSError, StopIteration), open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith("VmHWM")).split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
