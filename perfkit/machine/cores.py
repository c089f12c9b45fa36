"""Cores and memory: what this process may use, what others take of it, and what makes a result doubtful."""

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
_OWN_PROCESSES = 3  # perfkit's own, at most, that train on one GPU at once
_SLOWED = ("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake")


def _in_groups(name: str) -> dict[Path, list[str]]:
    """The words of a file in this process's control group (cgroup v2) and in each of its parent groups."""
    with contextlib.suppress(OSError):
        for line in (ROOT / "proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                # In a container this may be the host's path, although its mount starts at its own group.
                group = Path(line[3:].lstrip("/"))
                folders = [ROOT / "sys/fs/cgroup" / part for part in (group, *group.parents)]
                return {at: (at / name).read_text().split() for at in folders if (at / name).is_file()}
    return {}


def quota() -> tuple[float, Path | None]:
    """Cores' worth of time that the control groups grant (inf: no limit), and the group that sets it."""
    limits = _in_groups("cpu.max").items()
    granted = {int(us) / int(period_us): group for group, (us, period_us) in limits if us != "max"}
    return min(granted.items(), default=(math.inf, None))


def affinity() -> list[int]:
    """The numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """The number of cores that this process may use, by its affinity and its quota; at least 1."""
    return max(1, int(min(len(affinity()), quota()[0] + 0.01)))


def memory_bytes() -> int:
    """The memory that this process may use: the machine's, or less if its control groups grant less."""
    limits = [int(words[0]) for words in _in_groups("memory.max").values() if words[0] != "max"]
    return min([psutil.virtual_memory().total, *limits])


def free_memory_bytes() -> int:
    """The memory that can still be used without swapping, within what the control groups grant."""
    limits = _in_groups("memory.max").items()
    granted = [int(words[0]) - _used_bytes(group) for group, words in limits if words[0] != "max"]
    return max(0, min([psutil.virtual_memory().available, *granted]))


def _used_bytes(group: Path) -> int:
    """The memory that a control group uses, without the cached files that the system would drop if needed."""
    used = int((group / "memory.current").read_text())
    words = (group / "memory.stat").read_text().split()
    return used - int(words[words.index("inactive_file") + 1])


class CpuTimes(NamedTuple):
    """CPU seconds up to some moment. Only the difference between two moments is meaningful."""

    capacity_s: float  # of the cores that this process may run on, busy or idle
    outside_s: float
    """The part of it used by all but the measured processes, including the hypervisor's other guests."""
    group_s: float | None = None
    """Used by other processes of the control group that limits this one; None if nothing limits it."""


def cpu_times(measured: float = 0.0) -> CpuTimes:
    """The CPU times up to now; `measured` is what the measured processes have used of them, in seconds."""
    per_core = psutil.cpu_times(percpu=True)
    capacity = idle = 0.0
    for times in [per_core[core] for core in affinity() if core < len(per_core)] or per_core:
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
    """The share of the usable cores that others took between two moments (0 to 1).

    If a quota grants only a part of the cores, programs outside the control group may use the rest without
    taking anything away; programs inside use up the same quota.
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
    """The CPU time of other programs from now on. A program that ends counts as `sample` last saw it."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._stolen_s = _stolen_s()
        self._start = _spent()
        self._latest = self._start

    def sample(self) -> None:
        self._latest = self._latest | _spent()

    def busiest(self, pids: Iterable[int] = ()) -> tuple[str, float]:
        """The program whose processes have together used the most, and its share of the usable cores.

        This process and those in `pids` do not count. The hypervisor's other guests count as one program.
        """
        self.sample()
        ours = {os.getpid(), *pids}
        programs: dict[str, float] = defaultdict(float)
        programs["other guests of the same host"] = max(0.0, _stolen_s() - self._stolen_s)
        for (pid, begun), (name, spent) in self._latest.items():
            if pid not in ours:
                programs[name] += spent - self._start.get((pid, begun), ("", 0.0))[1]
        capacity_s = usable_cores() * max(time.monotonic() - self._since, 1e-9)
        name, used_s = max(programs.items(), key=lambda program: program[1], default=("", 0.0))
        return name, used_s / capacity_s


def _stolen_s() -> float:
    """CPU seconds that the hypervisor has given to other guests; 0 if it does not report them."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def _spent() -> dict[tuple[int, float], tuple[str, float]]:
    """The name and CPU seconds of every process, by id and start time: ids are reused, and names change."""
    cpu_s = {}
    for process in psutil.process_iter(["name", "cpu_times", "create_time"]):
        if times := process.info["cpu_times"]:
            # The name of a kernel thread includes its current work: kworker/0:1-events.
            name = (process.info["name"] or "a program").partition("/")[0]
            cpu_s[process.pid, process.info["create_time"]] = name, times.user + times.system
    return cpu_s


def read_conditions() -> dict[str, Any]:
    """The current load, and each GPU's clocks, temperature, power and other processes, as plain data."""
    return {
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "load_average": list(os.getloadavg()),
        "pids_known": gpus.pids_known(),
        "gpus": gpus.current_states(),
    }


def quality_warnings(conditions: Mapping[str, Any], gpu: str | None) -> Iterator[str]:
    """What makes results of a GPU (given by its UUID) unreliable, and what to do about it.

    `taken_share` judges the CPU. In a container NVML may report the host's ids, which hide which are ours.
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
