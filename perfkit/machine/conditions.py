"""What changes on a machine during a measurement, and what of it makes a result unreliable."""

import datetime
import os
from collections.abc import Iterator, Mapping
from typing import Any

from perfkit.machine import gpus
from perfkit.machine.others import CpuTimes, cpu_times

_SLOWED = ("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake")
_STEAL = 0.02
_last_times: list[CpuTimes] = []


def read_conditions() -> dict[str, Any]:
    """Load, steal, and each GPU's clocks, temperature, power and other processes, now; plain data."""
    return {
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "cores_visible": os.cpu_count() or 1,
        "cpu_steal_share": _steal_share(),
        "pids_known": gpus.pids_known(),
        "gpus": gpus.current_states(),
    }


def _steal_share() -> float | None:
    """Share of CPU time given to other guests since the previous call; None at first, or where unknown."""
    now = cpu_times()
    before = _last_times.pop() if _last_times else now
    _last_times.append(now)
    passed = now.capacity_s - before.capacity_s
    if now.steal_s is None or passed <= 0.5:
        return None
    return (now.steal_s - (before.steal_s or 0.0)) / passed


def quality_warnings(
    conditions: Mapping[str, Any], own_processes: int = 0, gpu: str | None = None
) -> Iterator[str]:
    """What makes a result measured under these conditions unreliable, each with what to do.

    Args:
        conditions: what `read_conditions()` gave.
        own_processes: measuring processes that may use the GPU. It matters only in a container, where NVML's
            process ids may be the host's, so that ours cannot be distinguished from others'.
        gpu: UUID of the GPU that was used; all of them if None.
    """
    steal, load, visible = map(conditions.get, ("cpu_steal_share", "load_average", "cores_visible"))
    if steal is not None and steal > _STEAL:
        yield f"the hypervisor gave {steal:.0%} of CPU time to others: repeat it, or use another host"
    # Our own processes count too: twice as many as cores are no sign of others.
    if load and visible and load[0] > 2 * visible + own_processes:
        yield f"load average {load[0]:.1f} on {visible} cores: stop other programs, then repeat it"
    allowed = 0 if conditions.get("pids_known") else own_processes
    for device in conditions.get("gpus", []):
        if gpu not in (None, device.get("uuid")):
            continue
        if slowed := [reason for reason in device.get("throttle_reasons") or [] if reason in _SLOWED]:
            celsius = f" at {device['temperature_c']} °C" if device.get("temperature_c") is not None else ""
            reasons = ", ".join(slowed) + celsius
            yield f"the GPU throttled ({reasons}): let it cool, check cooling and power supply"
        if len(device.get("other_processes") or []) > allowed:
            yield "another process uses the GPU: find it with nvidia-smi, stop it, then repeat this"
