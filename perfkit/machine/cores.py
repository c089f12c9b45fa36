"""Cores and memory: what this process may use, what others take of it, what makes a result doubtful."""

import contextlib
import datetime
import math
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from perfkit.machine import gpus

ROOT = Path("/")
_OWN_PROCESSES = 3  # how many of ours may train on a GPU at once
_SLOWED = ("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake")


def _in_groups(name: str) -> dict[Path, list[str]]:
    """The words of a file in this process's control group (cgroup v2) and in every group above it."""
    with contextlib.suppress(OSError):
        for line in (ROOT / "proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                # A container may see the host's path here, though its mount begins at its own group.
                group = Path(line[3:].lstrip("/"))
                folders = [ROOT / "sys/fs/cgroup" / part for part in (group, *group.parents)]
                return {at: (at / name).read_text().split() for at in folders if (at / name).is_file()}
    return {}


def quota() -> tuple[float, Path | None]:
    """Cores' worth of time that the control groups grant, inf without a limit, and the group that limits."""
    limits = _in_groups("cpu.max").items()
    granted = {int(time) / int(period): group for group, (time, period) in limits if time != "max"}
    return min(granted.items(), default=(math.inf, None))


def affinity() -> list[int]:
    """The numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Cores that this process may keep busy: affinity mask and complete cores of the quota, at least 1."""
    return max(1, int(min(len(affinity()), quota()[0] + 0.01)))


def memory_bytes() -> int:
    """Memory that this process may use: the machine's, or what its control groups grant."""
    limits = [int(words[0]) for words in _in_groups("memory.max").values() if words[0] != "max"]
    return min([psutil.virtual_memory().total, *limits])


def free_memory_bytes() -> int:
    """Memory that can still be used without swapping, within what the control groups grant."""
    limits = _in_groups("memory.max").items()
    granted = [int(words[0]) - _used_bytes(group) for group, words in limits if words[0] != "max"]
    return max(0, min([psutil.virtual_memory().available, *granted]))


def _used_bytes(group: Path) -> int:
    """What a control group uses, but for the cached files that the system drops when memory is needed."""
    used = int((group / "memory.current").read_text())
    words = (group / "memory.stat").read_text().split()
    return used - int(words[words.index("inactive_file") + 1])


class CpuTimes(NamedTuple):
    """CPU seconds until a moment; differences of two moments count."""

    capacity_s: float  # the visible cores that this process may run on, busy or idle
    outside_s: float
    """Taken of them by everything but the measured processes, the hypervisor's other guests included."""
    group_s: float | None = None
    """Used by other processes of the control group that limits this one; None without a limit."""


def cpu_times(measured: float = 0.0) -> CpuTimes:
    """The CPU time until now; `measured` is what the measured processes have used of it, in seconds."""
    each = psutil.cpu_times(percpu=True)
    capacity = 0.0
    idle = 0.0
    for times in [each[core] for core in affinity() if core < len(each)] or each:
        # Linux counts a guest's time as user time, too.
        capacity += sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        idle += times.idle + getattr(times, "iowait", 0.0)
    group_s = None
    _, group = quota()
    if group:
        words = (group / "cpu.stat").read_text().split()
        group_s = int(words[words.index("usage_usec") + 1]) / 1e6 - measured
    return CpuTimes(capacity, capacity - idle - measured, group_s)


def taken_share(before: CpuTimes, after: CpuTimes) -> float:
    """Share of the usable cores that others took between two moments (0 to 1).

    Where a quota grants a part of the cores only, programs outside the control group may use the rest without
    taking anything; programs inside use up the same quota.
    """
    capacity = after.capacity_s - before.capacity_s
    if capacity <= 0:
        return 0.0
    usable = usable_cores()
    visible = len(affinity())
    core_s = capacity / visible
    busy = (after.outside_s - before.outside_s) / core_s - (visible - usable)
    if before.group_s is not None and after.group_s is not None:
        busy = max(busy, (after.group_s - before.group_s) / core_s)
    return min(1.0, max(0.0, busy) / usable)


class OtherPrograms:
    """What other programs use from now on; those that end are known as far as `sample` saw them."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._stolen_s = _stolen_s()
        self._start = _spent()
        self._latest = self._start

    def sample(self) -> None:
        self._latest = self._latest | _spent()

    def busiest(self, pids: Iterable[int] = ()) -> tuple[str, float]:
        """The program that has used most, all its processes together, and its share of the usable cores.

        This process and those with these `pids` do not count; the hypervisor's other guests are a program.
        """
        self.sample()
        ours = {os.getpid(), *pids}
        programs: dict[str, float] = defaultdict(float)
        programs["other guests of the same host"] = _stolen_s() - self._stolen_s
        for (pid, begun), (name, spent) in self._latest.items():
            if pid not in ours:
                programs[name] += spent - self._start.get((pid, begun), ("", 0.0))[1]
        capacity_s = usable_cores() * max(time.monotonic() - self._since, 1e-9)
        name, used_s = max(programs.items(), key=lambda program: program[1], default=("", 0.0))
        return name, used_s / capacity_s


def _stolen_s() -> float:
    """CPU seconds that the hypervisor gave to others until now, where it tells."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def _spent() -> dict[tuple[int, float], tuple[str, float]]:
    """Name and CPU seconds of every process, by number and start: numbers are used again, names change."""
    spent = {}
    for process in psutil.process_iter(["name", "cpu_times", "create_time"]):
        if times := process.info["cpu_times"]:
            # A thread of the kernel is called after its work of the moment: kworker/0:1-events.
            name = (process.info["name"] or "a program").partition("/")[0]
            spent[process.pid, process.info["create_time"]] = name, times.user + times.system
    return spent


def read_conditions() -> dict[str, Any]:
    """The load, and each GPU's clocks, temperature, power and other processes, now; plain data."""
    return {
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "load_average": list(os.getloadavg()),
        "pids_known": gpus.pids_known(),
        "gpus": gpus.current_states(),
    }


def quality_warnings(conditions: Mapping[str, Any], gpu: str | None) -> Iterator[str]:
    """What makes a result of a GPU (its UUID) unreliable, with what to do; `taken_share` judges the CPU.

    In a container NVML's process ids may be the host's: then ours cannot be distinguished from others'.
    """
    allowed = 0 if conditions.get("pids_known") else _OWN_PROCESSES
    for device in conditions.get("gpus", []):
        if device["uuid"] != gpu:
            continue
        slowed = [reason for reason in device["throttle_reasons"] or [] if reason in _SLOWED]
        if slowed:
            celsius = f" at {device['temperature_c']} °C" if device["temperature_c"] is not None else ""
            reasons = f"{', '.join(slowed)}{celsius}"
            yield f"the GPU throttled ({reasons}): let it cool, check cooling and power supply"
        if len(device["other_processes"] or []) > allowed:
            yield "another process uses the GPU: find it with nvidia-smi, stop it, then repeat this"
