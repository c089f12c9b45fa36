"""NVIDIA GPUs, read through NVML, which creates no CUDA context. What a GPU does not report is None."""

import contextlib
import functools
import os
import platform
import sys
import threading
import warnings
from collections.abc import Collection, Iterator
from typing import Any

import psutil

# nvml.h, nvmlClocksEventReason*; 0x1 is "idle", which slows nothing down.
_REASONS = {
    0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown", 0x80: "power brake",
    0x100: "display clocks",
}  # fmt: skip
NODES = ("nvidiactl", "nvhost-gpu", "kfd", "dxg")  # in /dev: NVIDIA, Jetson, AMD, and WSL
_EXCLUSIVE = (1, 3)  # nvml.h: NVML_COMPUTEMODE_EXCLUSIVE_THREAD and _PROCESS
_SM_CLOCK = 1  # nvml.h: NVML_CLOCK_SM
_MEMORY_CLOCK = 2  # NVML_CLOCK_MEM
_CORE_TEMPERATURE = 0  # NVML_TEMPERATURE_GPU


@functools.cache
def _nvml() -> Any:
    """The pynvml module, initialised while this process lives; None without it, without a driver or a GPU."""
    # A different package of that name may raise anything, and the deprecated one warns.
    with contextlib.suppress(Exception), warnings.catch_warnings(action="ignore"):
        import pynvml

        pynvml.nvmlInit()
        return pynvml
    return None


def _query(name: str, *arguments: Any) -> Any:
    """The result of `pynvml.nvmlNAME`; None if NVML or the field is missing."""
    try:
        answer = getattr(_nvml(), f"nvml{name}")(*arguments)
    except Exception:  # a field that the device lacks raises; so does a function that the driver lacks
        return None
    return answer.decode() if isinstance(answer, bytes) else answer


def _cards() -> list[Any]:
    handles = [_query("DeviceGetHandleByIndex", index) for index in range(_query("DeviceGetCount") or 0)]
    return [handle for handle in handles if handle is not None]


def _card(uuid: str | None) -> Any:
    """The GPU or MIG instance with this UUID. torch names a MIG instance as if it were a GPU."""
    if not uuid:
        return None
    card = _query("DeviceGetHandleByUUID", uuid)
    return _query("DeviceGetHandleByUUID", uuid.replace("GPU-", "MIG-", 1)) if card is None else card


def uuids(index: str) -> list[str]:
    """The UUIDs of the GPUs that `cuda:INDEX` may refer to. To have it alone, lock all of them.

    CUDA numbers visible GPUs by speed unless CUDA_DEVICE_ORDER says otherwise, NVML by their slots: if there
    are several models, it may be any. A MIG instance counts as its whole GPU.
    """
    names = {str(_query("DeviceGetUUID", card)): _query("DeviceGetName", card) for card in _cards()}
    chosen = index
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        visible_names = [name.strip() for name in visible.split(",")]
        chosen = visible_names[int(index)] if int(index) < len(visible_names) else index
    if not chosen.isdigit():
        whole = _query("DeviceGetDeviceHandleFromMigDeviceHandle", _query("DeviceGetHandleByUUID", chosen))
        name = chosen if whole is None else str(_query("DeviceGetUUID", whole))
        return [uuid for uuid in names if uuid.startswith(name)]
    if len(set(names.values())) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return list(names)
    return [uuid for number, uuid in enumerate(names) if number == int(chosen)]


def holds_one_process(uuid: str | None) -> bool:
    """Whether a GPU is in exclusive mode, as on some clusters: a second training on it fails."""
    card = _card(uuid)
    return card is not None and _query("DeviceGetComputeMode", card) in _EXCLUSIVE


def facts() -> tuple[str | None, list[dict[str, Any]]]:
    """The driver's version, and the constant facts about each GPU."""
    cards = [
        {
            "name": _query("DeviceGetName", card),
            "uuid": _query("DeviceGetUUID", card),
            "memory_bytes": getattr(_query("DeviceGetMemoryInfo", card), "total", None),
            "power_limit_w": _watts(_query("DeviceGetPowerManagementLimit", card)),
        }
        for card in _cards()
    ]
    return _query("SystemGetDriverVersion"), cards


def current_states() -> list[dict[str, Any]]:
    """The current state of each GPU."""
    return [_state(card) for card in _cards()]


def _state(card: Any) -> dict[str, Any]:
    reasons = _query("DeviceGetCurrentClocksThrottleReasons", card)  # every driver knows this older name
    running = _query("DeviceGetComputeRunningProcesses", card)
    own = psutil.Process()
    ours = {own.pid, *(child.pid for child in own.children(recursive=True))}
    others = [{"pid": p.pid, "memory_bytes": p.usedGpuMemory} for p in running or [] if p.pid not in ours]
    return {
        "uuid": _query("DeviceGetUUID", card),
        "sm_clock_mhz": _query("DeviceGetClockInfo", card, _SM_CLOCK),
        "memory_clock_mhz": _query("DeviceGetClockInfo", card, _MEMORY_CLOCK),
        "temperature_c": _query("DeviceGetTemperature", card, _CORE_TEMPERATURE),
        "power_w": _watts(_query("DeviceGetPowerUsage", card)),
        "throttle_reasons": None if reasons is None else [w for bit, w in _REASONS.items() if reasons & bit],
        "other_processes": None if running is None else others,
    }


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def pids_known() -> bool:
    """Whether NVML's process ids are valid here, because this process is in the host's PID namespace.

    In WSL, Windows has the driver, and its programs have no ids here.
    """
    if in_wsl():
        return False
    try:
        return os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"  # linux/proc_ns.h: PROC_PID_INIT_INO
    except OSError:
        return sys.platform != "linux"


def in_wsl() -> bool:
    """Whether this is Linux in Windows (WSL)."""
    return "microsoft" in platform.release().lower()


def free_gpu_bytes(uuid: str | None) -> int | None:
    """The free memory of a GPU (given by its UUID); None without a GPU or without NVML."""
    return getattr(_query("DeviceGetMemoryInfo", _card(uuid)), "free", None)


def taken_gpu_share(uuid: str | None, since: float, own: Collection[int]) -> float:
    """The largest share of a GPU's multiprocessors that another process has used since a moment (0 to 1).

    `own` processes do not count. In a container NVML may report the host's ids, and ours cannot be found
    among them. Then the answer is 0, and only `quality_warnings` tells about others.
    """
    if not (uuid and pids_known()):
        return 0.0
    samples = _query("DeviceGetProcessUtilization", _card(uuid), int(since * 1e6)) or []
    return max((sample.smUtil / 100 for sample in samples if sample.pid not in own), default=0.0)


@contextlib.contextmanager
def sample_utilization(uuid: str | None, period_s: float = 0.1) -> Iterator[list[float]]:
    """Samples a GPU's utilization in a thread of this process, outside the measured one.

    A sample is the percentage of NVML's last 1/6 to 1 s in which a kernel ran. The GPU is given by its UUID,
    not by an index: NVML ignores CUDA_VISIBLE_DEVICES. Without one or without NVML, there are no samples.
    """
    samples: list[float] = []
    is_over = threading.Event()
    card = _card(uuid)

    def sample() -> None:
        while card is not None and not is_over.wait(period_s):
            if (rates := _query("DeviceGetUtilizationRates", card)) is not None:
                samples.append(rates.gpu)

    thread = threading.Thread(target=sample, name="gpu-utilization", daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        is_over.set()
        thread.join()
