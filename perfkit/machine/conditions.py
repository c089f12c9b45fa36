"""What changes on a machine during a measurement, and what of it makes a result unreliable."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import psutil

from perfkit.machine import gpus

_SLOWED = ("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake")
_STEAL = 0.02
_last_times: list[CpuTimes] = []


def read_conditions() -> dict[str, Any]:
    """Load, steal, and each GPU's clocks, temperature, power and other processes, now; plain data."""
    with gpus.nvml() as module:
        states = [gpus.current_state(read) for read in gpus.readers(module)]
    return {
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "cores_visible": os.cpu_count() or 1,
        "cpu_steal_share": _steal_share(),
        "pids_known": gpus.pids_known(),
        "gpus": states,
    }


def _steal_share() -> float | None:
    """Share of CPU time given to other guests since the previous call; None at first, or where unknown."""
    now = cpu_times()
    before = _last_times.pop() if _last_times else now
    _last_times.append(now)
    if now.steal_s is None or now.capacity_s - before.capacity_s <= 0.5:
        return None
    return (now.steal_s - (before.steal_s or 0.0)) / (now.capacity_s - before.capacity_s)


class CpuTimes(NamedTuple):
    """CPU seconds since boot; the share of two moments is the difference over that of `capacity_s`."""

    capacity_s: float
    """All cores, busy or idle."""
    outside_s: float
    """Used by everything outside the given process trees."""
    steal_s: float | None
    """Given to other guests by the hypervisor; None where the system does not report it."""


def cpu_times(pids: Iterable[int] = ()) -> CpuTimes:
    """The machine's CPU time until now.

    Args:
        pids: processes to leave out of `outside_s`, each with all its descendants.
    """
    times = psutil.cpu_times()
    # Linux counts a guest's time as user time, too.
    capacity = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    steal, waiting = getattr(times, "steal", None), getattr(times, "iowait", 0.0)
    processes = {process.pid: process for pid in pids for process in gpus.process_tree(pid)}
    own = 0.0
    for process in processes.values():
        with contextlib.suppress(psutil.Error):
            own += sum(process.cpu_times()[:4])  # user, system, and both of children that have ended
    return CpuTimes(capacity, capacity - times.idle - waiting - (steal or 0.0) - own, steal)


def quality_warnings(
    conditions: Mapping[str, Any], own_processes: int = 0, gpu: str | None = None
) -> list[str]:
    """What makes a result measured under these conditions unreliable, each with what to do.

    Args:
        conditions: what `read_conditions()` gave.
        own_processes: measuring processes that may use the GPU. It matters only in a container, where NVML's
            process ids may be the host's, so that ours cannot be distinguished from others'.
        gpu: UUID of the GPU that was used; all of them if None.
    """
    return list(_warnings(conditions, own_processes, gpu))


def _warnings(conditions: Mapping[str, Any], own_processes: int, gpu: str | None) -> Iterator[str]:
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
