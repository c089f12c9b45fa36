"""NVIDIA's GPUs as NVML sees them: no CUDA context, and None for whatever a device does not tell."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import psutil

Reader = Callable[..., Any]

# nvml.h, nvmlClocksEventReason*; 0x1 is "idle", which slows nothing down.
THROTTLE = {
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}


@contextlib.contextmanager
def nvml() -> Iterator[Any]:
    """NVML's module, initialised; None where the module, the driver or a GPU is missing."""
    module = opened()
    try:
        yield module
    finally:
        attempt(getattr(module, "nvmlShutdown", None))


def opened() -> Any:
    """The same without a context: the caller shuts it down."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the deprecated package `pynvml`; the doctor speaks of it
            import pynvml
        pynvml.nvmlInit()
    except Exception:  # another package of that name may raise anything
        return None
    return pynvml


def attempt(call: Any, *given: Any) -> Any:
    """What a function of NVML answers; None where it is missing or fails."""
    try:
        answer = call(*given)
    except Exception:  # fields that a device lacks raise, and so does a function that this version lacks
        return None
    return answer.decode() if isinstance(answer, bytes) else answer


def readers(module: Any) -> list[Reader]:
    """For each GPU a function that reads its fields: `read("Name")` is `nvmlDeviceGetName(…)`, or None."""
    count = attempt(getattr(module, "nvmlDeviceGetCount", None)) or 0
    handles = [attempt(module.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
    return [_reader(module, handle) for handle in handles if handle is not None]


def _reader(module: Any, handle: Any) -> Reader:
    return lambda what, *given: attempt(getattr(module, f"nvmlDeviceGet{what}", None), handle, *given)


def facts(read: Reader, driver: str | None) -> dict[str, Any]:
    """What stays the same about a GPU."""
    pci = getattr(read("PciInfo"), "busId", None)
    return {
        "name": read("Name"),
        "uuid": read("UUID"),
        "pci": pci.decode() if isinstance(pci, bytes) else pci,
        "memory_bytes": getattr(read("MemoryInfo"), "total", None),
        "driver": driver,
        "power_limit_w": _thousandth(read("PowerManagementLimit")),
        "max_sm_clock_mhz": read("MaxClockInfo", 1),
    }


def now(read: Reader) -> dict[str, Any]:
    """What changes about a GPU."""
    reasons = read("CurrentClocksEventReasons")
    reasons = read("CurrentClocksThrottleReasons") if reasons is None else reasons
    return {
        "uuid": read("UUID"),
        "sm_clock_mhz": read("ClockInfo", 1),  # nvml.h: NVML_CLOCK_SM
        "memory_clock_mhz": read("ClockInfo", 2),  # NVML_CLOCK_MEM
        "temperature_c": read("Temperature", 0),
        "power_w": _thousandth(read("PowerUsage")),
        "throttle_reasons": _words(reasons),
        "other_processes": _others(read("ComputeRunningProcesses")),
    }


def _words(reasons: int | None) -> list[str] | None:
    return None if reasons is None else [word for bit, word in THROTTLE.items() if reasons & bit]


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000


def _others(running: Any) -> list[dict[str, Any]] | None:
    if running is None:
        return None
    me = psutil.Process()
    own = {me.pid, *(child.pid for child in me.children(recursive=True))}
    return [{"pid": p.pid, "memory_bytes": p.usedGpuMemory} for p in running if p.pid not in own]


def pids_known() -> bool:
    """Whether NVML's process ids are surely those seen here: this is the host's own space of ids."""
    try:
        return os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"  # linux/proc_ns.h: PROC_PID_INIT_INO
    except OSError:
        return not sys.platform.startswith("linux")
