"""What torch says of a device and of this process: facts, ranks, memory peak, compiled graphs."""

import contextlib
import resource
import sys
from typing import Any

import torch
from torch import distributed

from perfkit.worker.messages import CompileCounters, DeviceFacts


def facts(device: torch.device) -> DeviceFacts:
    """What the device is."""
    threads, version = torch.get_num_threads(), str(torch.__version__)
    if device.type != "cuda":
        return DeviceFacts(threads, version)
    properties = torch.cuda.get_device_properties(device)
    return DeviceFacts(
        threads,
        version,
        count=torch.cuda.device_count(),
        name=properties.name,
        uuid=f"GPU-{properties.uuid}",
        bf16=torch.cuda.is_bf16_supported(including_emulation=False),
        cuda=torch.version.cuda,
        cudnn=str(torch.backends.cudnn.version()),
    )


def synchronize(device: torch.device) -> None:
    """Waits until the device has finished its work; a CPU always has."""
    if device.type in ("cuda", "mps"):
        torch.accelerator.synchronize(device)


def world() -> int:
    """How many ranks train together."""
    joined = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if joined else 1


def compile_counters() -> CompileCounters:
    """What torch.compile has done in this process."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return CompileCounters()
    counters = dynamo.counters
    return CompileCounters(
        graphs=int(counters["stats"]["unique_graphs"]),
        breaks=int(sum(counters["graph_break"].values())),
        cache_hits=int(counters["inductor"]["fxgraph_cache_hit"]),
    )


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


def _peak_rss() -> int:
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith("VmHWM")).split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in bytes on macOS
