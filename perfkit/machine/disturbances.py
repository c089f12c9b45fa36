"""What changes on a machine while it measures, and what of it makes a result doubtful."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping
from typing import Any

import psutil

from perfkit.machine import gpus

_SLOWED = ("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake")
_STEAL = 0.02
_cpu_times: list[Any] = []


def conditions() -> dict[str, Any]:
    """Load, steal, and each GPU's clocks, temperature, power and company, now; plain data."""
    with gpus.nvml() as module:
        found = [gpus.now(read) for read in gpus.readers(module)]
    return {
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "cores_visible": os.cpu_count() or 1,
        "cpu_steal_share": _steal_share(),
        "pids_known": gpus.pids_known(),
        "gpus": found,
    }


def _steal_share() -> float | None:
    """Share of CPU time given to other guests since this was last asked; None at first, or where unknown."""
    now = psutil.cpu_times()
    before = _cpu_times.pop() if _cpu_times else now
    _cpu_times.append(now)
    passed = sum(now) - sum(before)
    return float((now.steal - before.steal) / passed) if passed > 0.5 and hasattr(now, "steal") else None


def doubts(conditions: Mapping[str, Any], own_processes: int = 0, gpu: str | None = None) -> list[str]:
    """What makes a result that was measured under these conditions doubtful, each with what to do.

    Args:
        conditions: what `conditions()` gave.
        own_processes: measuring processes that may use the GPU; counted only in a container, where NVML's
            process ids may be the host's, so that one's own cannot be told from others'.
        gpu: UUID of the GPU that was used; all of them if None.
    """
    found = []
    steal, load, visible = (
        conditions.get(name) for name in ("cpu_steal_share", "load_average", "cores_visible")
    )
    if steal is not None and steal > _STEAL:
        found.append(
            f"the hypervisor gave {steal:.0%} of the CPU's time to others: repeat it, or use another host"
        )
    # One's own processes count too: as many as twice the cores are no sign of others.
    if load and visible and load[0] > 2 * visible + own_processes:
        found.append(f"load average {load[0]:.1f} on {visible} cores: stop other programs, then repeat it")
    allowed = 0 if conditions.get("pids_known") else own_processes
    for device in conditions.get("gpus", []):
        if gpu in (None, device.get("uuid")):
            found += _gpu_doubts(device, allowed)
    return found


def _gpu_doubts(device: Mapping[str, Any], allowed: int) -> list[str]:
    slowed = [reason for reason in device.get("throttle_reasons") or [] if reason in _SLOWED]
    found = []
    if slowed:
        celsius = f" at {device['temperature_c']} °C" if device.get("temperature_c") is not None else ""
        found.append(
            f"the GPU slowed itself down ({', '.join(slowed)}{celsius}): let it cool, check its supply"
        )
    if len(device.get("other_processes") or []) > allowed:
        found.append("another process computes on the GPU: see nvidia-smi, stop it, then repeat this")
    return found
