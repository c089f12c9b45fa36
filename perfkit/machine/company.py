"""Who else uses the machine while something is measured: other programs on the cores, on the GPU."""

from __future__ import annotations

import collections
import contextlib
import os
import time
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import psutil

from perfkit.machine import cores, gpus


class CpuTimes(NamedTuple):
    """CPU seconds since boot; the share of two moments is the difference over that of `capacity_s`."""

    capacity_s: float
    """All cores, busy or idle."""
    outside_s: float
    """Used by everything outside the given process groups."""
    steal_s: float | None
    """Given to other guests by the hypervisor; None where the system does not report it."""


def members(pids: Collection[int]) -> list[int]:
    """The ids of all processes in the groups that these lead (POSIX), or in their trees."""
    return [process.pid for process in _members(pids)]


def resident_bytes(pid: int) -> int:
    """Memory of a process and all its descendants; pages that they share count for each."""
    total = 0
    for process in gpus.process_tree(pid):
        with contextlib.suppress(psutil.Error):
            total += process.memory_info().rss
    return total


def cpu_times(pids: Collection[int] = ()) -> CpuTimes:
    """The machine's CPU time until now.

    Args:
        pids: processes to leave out of `outside_s`, each with all its descendants; on POSIX each leads a
            process group, which is much faster to find than a tree.
    """
    own = 0.0
    for process in _members(pids):
        with contextlib.suppress(psutil.Error):
            own += sum(process.cpu_times()[:4])  # user, system, and both of children that have ended
    times = psutil.cpu_times()
    # Linux counts a guest's time as user time, too.
    capacity = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    steal, waiting = getattr(times, "steal", None), getattr(times, "iowait", 0.0)
    return CpuTimes(capacity, capacity - times.idle - waiting - (steal or 0.0) - own, steal)


def _members(pids: Collection[int]) -> Iterator[psutil.Process]:
    if os.name != "posix":
        yield from {process.pid: process for pid in pids for process in gpus.process_tree(pid)}.values()
        return
    for pid in psutil.pids() if pids else ():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getpgid(pid) in pids:
                yield psutil.Process(pid)


def taken_share(before: CpuTimes, after: CpuTimes) -> float:
    """Share of the usable cores that others took between two moments, the hypervisor included (0 to 1).

    Where a quota or mask grants a part of the cores only, others may use the rest without taking anything.
    """
    capacity = after.capacity_s - before.capacity_s
    if capacity <= 0:
        return 0.0
    stolen = (after.steal_s or 0.0) - (before.steal_s or 0.0)
    visible, usable = os.cpu_count() or 1, cores.usable_cores()
    busy = (after.outside_s - before.outside_s + stolen) / capacity * visible
    return min(1.0, max(0.0, busy - max(0, visible - usable)) / usable)


class Program(NamedTuple):
    """A program on this machine."""

    name: str
    """With its process, or how many it has."""
    share: float
    """Of the usable cores (0 to 1)."""


class OtherPrograms:
    """What other programs use from now on."""

    def __init__(self) -> None:
        self._since, self._before = time.monotonic(), _spent()

    def busiest(self, pids: Iterable[int] = ()) -> Program | None:
        """The one that has used most, all its processes together; None where there is no other.

        Args:
            pids: leaders of process groups that do not count; this process never counts.
        """
        ours = {os.getpid(), *members(set(pids))}
        seconds = collections.defaultdict[str, float](float)
        processes = collections.defaultdict[str, list[int]](list)
        for process, (name, spent) in _spent().items():
            if process[0] not in ours:
                _, before = self._before.get(process, (name, 0.0))  # or it has started since
                seconds[name] += spent - before
                processes[name].append(process[0])
        if not seconds:
            return None
        name, most = max(seconds.items(), key=lambda item: item[1])
        first, *more = processes[name]
        which = f"{len(more) + 1} processes" if more else f"process {first}"
        capacity_s = cores.usable_cores() * max(time.monotonic() - self._since, 1e-9)
        return Program(f"{name} ({which})", most / capacity_s)


def _spent() -> dict[tuple[int, float], tuple[str, float]]:
    """Name and CPU seconds of every process, by its number and start: a name can change."""
    spent = {}
    for process in psutil.process_iter(["name", "cpu_times", "create_time"]):
        if times := process.info["cpu_times"]:
            # A thread of the kernel is called after its work of the moment: kworker/0:1-events.
            name = (process.info["name"] or "a program").partition("/")[0]
            spent[process.pid, process.info["create_time"]] = name, times.user + times.system
    return spent
