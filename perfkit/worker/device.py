"""What torch says of a device and of this process: facts, memory peak, compiled graphs.

It is quick to import and needs nothing but torch, as watched scripts do it.
"""

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
            "count": torch.cuda.device_count(),
            "name": properties.name,
            "uuid": f"GPU-{properties.uuid}",
            "bf16": torch.cuda.is_bf16_supported(including_emulation=False),
            "cuda": torch.version.cuda,
            "cudnn": str(torch.backends.cudnn.version()),
        }
    return values


def compile_counters() -> dict[str, int]:
    """What torch.compile has done in this process: plain data of `worker.messages.CompileCounters`."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return {"graphs": 0, "breaks": 0, "cache_hits": 0, "cache_misses": 0}
    counters = dynamo.counters
    return {
        "graphs": int(counters["stats"]["unique_graphs"]),
        "breaks": int(sum(counters["graph_break"].values())),
        "cache_hits": int(counters["inductor"]["fxgraph_cache_hit"]),
        "cache_misses": int(counters["inductor"]["fxgraph_cache_miss"]),
    }


def reset_peak(device: torch.device) -> None:
    """Starts a new peak."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    # Not on Linux, or not allowed: the peak is then that of the process since its start.
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def peak_bytes(device: torch.device) -> tuple[int | None, int | None]:
    """Peak bytes since the last reset: allocated and reserved on CUDA; this process on a CPU.

    MPS keeps no peak: it is not known.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    return (None if device.type == "mps" else _peak_rss()), None


def _peak_rss() -> int | None:
    with contextlib.suppress(OSError, StopIteration), open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith("VmHWM")).split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
