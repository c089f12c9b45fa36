"""What torch says of a device: facts, and the memory peak; quick to import, as watched scripts do it."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch


def facts(device: torch.device) -> dict[str, Any]:
    """Plain data of `worker.messages.DeviceFacts`."""
    values: dict[str, Any] = {"threads": torch.get_num_threads(), "torch": str(torch.__version__)}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        values |= {
            "count": torch.cuda.device_count(), "name": properties.name, "uuid": f"GPU-{properties.uuid}",
            "bf16": torch.cuda.is_bf16_supported(including_emulation=False), "cuda": torch.version.cuda,
            "cudnn": str(torch.backends.cudnn.version()),
        }  # fmt: skip
    return values


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
