"""NVIDIA GPUs through NVML, which creates no CUDA context; None for whatever a device does not report."""

import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import psutil

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
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the deprecated package `pynvml`, which the check-up reports
            import pynvml as module
        module.nvmlInit()
    except Exception:  # another package of that name may raise anything
        module = None
    try:
        yield module
    finally:
        attempt(getattr(module, "nvmlShutdown", None))


def attempt(call: Any, *arguments: Any) -> Any:
    """The result of an NVML function; None where it is missing or fails."""
    try:
        answer = call(*arguments)
    except Exception:  # fields that a device lacks raise, and so do functions that this version lacks
        return None
    return answer.decode() if isinstance(answer, bytes) else answer


def _cards(module: Any) -> list[Callable[..., Any]]:
    """For each GPU a function that reads its fields: `read("Name")` is `nvmlDeviceGetName(…)`, or None."""
    count = attempt(getattr(module, "nvmlDeviceGetCount", None)) or 0
    handles = [attempt(module.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
    return [partial(_read, module, handle) for handle in handles if handle is not None]


def _read(module: Any, handle: Any, what: str, *arguments: Any) -> Any:
    return attempt(getattr(module, f"nvmlDeviceGet{what}", None), handle, *arguments)


def facts() -> tuple[str | None, list[dict[str, Any]]]:
    """The driver's version, and what stays the same about each GPU."""
    with nvml() as module:
        driver = attempt(getattr(module, "nvmlSystemGetDriverVersion", None))
        return driver, [_facts(read, driver) for read in _cards(module)]


def _facts(read: Callable[..., Any], driver: str | None) -> dict[str, Any]:
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


def current_states() -> list[dict[str, Any]]:
    """What changes about each GPU."""
    with nvml() as module:
        return [_state(read) for read in _cards(module)]


def _state(read: Callable[..., Any]) -> dict[str, Any]:
    reasons = read("CurrentClocksEventReasons")
    reasons = read("CurrentClocksThrottleReasons") if reasons is None else reasons
    ours = {process.pid for process in process_tree()}
    running = read("ComputeRunningProcesses")
    others = [{"pid": p.pid, "memory_bytes": p.usedGpuMemory} for p in running or [] if p.pid not in ours]
    return {
        "uuid": read("UUID"),
        "sm_clock_mhz": read("ClockInfo", 1),  # nvml.h: NVML_CLOCK_SM
        "memory_clock_mhz": read("ClockInfo", 2),  # NVML_CLOCK_MEM
        "temperature_c": read("Temperature", 0),
        "power_w": _thousandth(read("PowerUsage")),
        "throttle_reasons": None if reasons is None else [w for bit, w in THROTTLE.items() if reasons & bit],
        "other_processes": None if running is None else others,
    }


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000


def pids_known() -> bool:
    """Whether NVML's process ids are those seen here, because this is the host's own namespace of ids."""
    try:
        return os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"  # linux/proc_ns.h: PROC_PID_INIT_INO
    except OSError:
        return not sys.platform.startswith("linux")


def process_tree(pid: int | None = None) -> list[psutil.Process]:
    """A process (None: this one) and all its descendants; empty where it has ended."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def _handle(module: Any, device: str | None) -> Any:
    """NVML's handle of a GPU by UUID (with or without its prefix) or PCI id; None where there is none."""
    keys = (("UUID", device), ("UUID", f"GPU-{device}"), ("PciBusId", device))
    handles = (attempt(getattr(module, f"nvmlDeviceGetHandleBy{by}", None), key) for by, key in keys)
    return next((one for one in handles if one is not None), None) if device and module else None


def free_gpu_bytes(device: str | None) -> int | None:
    """Memory of a GPU that no process uses; None without a GPU or without NVML.

    Args:
        device: UUID or PCI id.
    """
    with nvml() as module:
        handle = _handle(module, device)
        memory = attempt(module.nvmlDeviceGetMemoryInfo, handle) if handle is not None else None
        return getattr(memory, "free", None)


def taken_gpu_share(device: str | None, since: float, own: Collection[int]) -> float:
    """The largest share of a GPU's multiprocessors that a process of others used since a moment (0 to 1).

    Args:
        device: UUID or PCI id; without a device nothing is taken.
        since: `time.time()`.
        own: ids of processes that do not count. In a container NVML may report the host's ids, among which
            ours cannot be found: then the answer is 0, and `quality_warnings` has the last word.
    """
    if not (device and pids_known()):
        return 0.0
    with nvml() as module:
        read = getattr(module, "nvmlDeviceGetProcessUtilization", None)
        samples = attempt(read, _handle(module, device), int(since * 1e6)) or []
        return max((sample.smUtil / 100 for sample in samples if sample.pid not in own), default=0.0)


@contextlib.contextmanager
def sample_utilization(device: str | None, period_s: float = 0.1) -> Iterator[list[float]]:
    """Samples a GPU's utilization in a thread of this process, outside the measured one.

    Args:
        device: the GPU's UUID (with or without its prefix) or PCI id, never an index: NVML ignores
            CUDA_VISIBLE_DEVICES. Without a device, or without NVML, there are no samples.
        period_s: between two samples.

    Yields:
        A list that grows: percent of NVML's last 1/6 to 1 s in which a kernel ran.
    """
    samples: list[float] = []
    ended = threading.Event()
    with nvml() as module:
        handle = _handle(module, device)

        def run() -> None:
            while not ended.is_set():
                rates = attempt(module.nvmlDeviceGetUtilizationRates, handle)
                if rates is not None:
                    samples.append(rates.gpu)
                ended.wait(period_s)

        thread = threading.Thread(target=run, name="gpu-utilization", daemon=True)
        if handle is not None:
            thread.start()
        try:
            yield samples
        finally:
            ended.set()
            if handle is not None:
                thread.join()
