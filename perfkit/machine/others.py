"""What other programs take of the CPU while something is measured, and which program it is."""

import contextlib
import os
import time
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import psutil

from perfkit.machine import cores, gpus

_Process = tuple[int, float]
"""Number and start: numbers are used again."""


class CpuTimes(NamedTuple):
    """CPU seconds until a moment; differences of two moments count."""

    capacity_s: float
    """The visible cores that this process may run on, busy or idle."""
    outside_s: float
    """Used on them by everything but the measured processes."""
    steal_s: float | None = None
    """Given to other guests by the hypervisor; None where the system does not report it."""
    group_s: float | None = None
    """Used by other processes of the control group that limits this one; None without a limit."""


def cpu_times(pids: Collection[int] = ()) -> CpuTimes:
    """The CPU time until now.

    Args:
        pids: the measured processes, each with its descendants; on POSIX each leads a process group, which
            is much faster to find than a tree.
    """
    measured = 0.0
    for process in _members(pids):
        with contextlib.suppress(psutil.Error):
            measured += sum(process.cpu_times()[:4])  # user, system, and both of children that have ended
    each = psutil.cpu_times(percpu=True)
    mask = cores.affinity()
    capacity = idle = steal = 0.0
    for times in [each[core] for core in mask if core < len(each)] or each:
        # Linux counts a guest's time as user time, too.
        capacity += sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        idle += times.idle + getattr(times, "iowait", 0.0)
        steal += getattr(times, "steal", 0.0)
    group = cores.group_cpu_s()
    return CpuTimes(
        capacity_s=capacity,
        outside_s=capacity - idle - steal - measured,
        steal_s=steal if hasattr(each[0], "steal") else None,
        group_s=None if group is None else group - measured,
    )


def taken_share(before: CpuTimes, after: CpuTimes) -> float:
    """Share of the usable cores that others took between two moments, the hypervisor included (0 to 1).

    Where a quota grants a part of the cores only, programs outside the control group may use the rest without
    taking anything; programs inside use up the same quota.
    """
    capacity = after.capacity_s - before.capacity_s
    if capacity <= 0:
        return 0.0
    usable, visible = cores.usable_cores(), len(cores.affinity())
    core_s = capacity / visible
    stolen = (after.steal_s or 0.0) - (before.steal_s or 0.0)
    busy = (after.outside_s - before.outside_s + stolen) / core_s - (visible - usable)
    if before.group_s is not None and after.group_s is not None:
        busy = max(busy, (after.group_s - before.group_s) / core_s)
    return min(1.0, max(0.0, busy) / usable)


def members(pids: Collection[int]) -> list[int]:
    """The ids of all processes in the groups that these lead (POSIX), or in their trees."""
    return [process.pid for process in _members(pids)]


def _members(pids: Collection[int]) -> Iterator[psutil.Process]:
    if os.name != "posix":
        yield from {process.pid: process for pid in pids for process in gpus.process_tree(pid)}.values()
        return
    for pid in psutil.pids() if pids else ():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getpgid(pid) in pids:
                yield psutil.Process(pid)


def resident_bytes(pid: int) -> int:
    """Memory of a process and all its descendants; pages that they share count for each."""
    total = 0
    for process in gpus.process_tree(pid):
        with contextlib.suppress(psutil.Error):
            total += process.memory_info().rss
    return total


class Program(NamedTuple):
    """A program on this machine."""

    name: str
    """With its process, or how many it has, and whether it has ended."""
    share: float
    """Of the usable cores (0 to 1)."""


class _Usage(NamedTuple):
    name: str
    start_s: float
    """CPU seconds when watching began; 0 for a process that started later."""
    latest_s: float


class OtherPrograms:
    """What other programs use from now on.

    A program that has ended is known as far as `look` saw it: call it every few seconds.
    """

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._usage = {process: _Usage(name, spent, spent) for process, (name, spent) in _spent().items()}
        self._alive = set(self._usage)

    def look(self) -> None:
        """Takes down what every process has used until now."""
        now = _spent()
        self._alive = set(now)
        for process, (name, spent) in now.items():
            known = self._usage.get(process)
            self._usage[process] = _Usage(name, known.start_s if known else 0.0, spent)

    def busiest(self, pids: Iterable[int] = ()) -> Program | None:
        """The program that has used most, all its processes together; None where there is no other.

        Args:
            pids: leaders of process groups that do not count; this process never counts.
        """
        self.look()
        ours = {os.getpid(), *members(set(pids))}
        programs: dict[str, list[tuple[_Process, float]]] = {}
        for process, usage in self._usage.items():
            if process[0] not in ours:
                programs.setdefault(usage.name, []).append((process, usage.latest_s - usage.start_s))
        if not programs:
            return None
        name, processes = max(programs.items(), key=lambda item: sum(spent for _, spent in item[1]))
        used = [process for process, spent in processes if spent > 0] or [processes[0][0]]
        which = f"{len(used)} processes" if len(used) > 1 else f"process {used[0][0]}"
        ended = "" if self._alive.intersection(used) else ", ended meanwhile"
        capacity_s = cores.usable_cores() * max(time.monotonic() - self._since, 1e-9)
        return Program(f"{name} ({which}{ended})", sum(spent for _, spent in processes) / capacity_s)


def _spent() -> dict[_Process, tuple[str, float]]:
    """Name and CPU seconds of every process; a name can change."""
    spent = {}
    for process in psutil.process_iter(["name", "cpu_times", "create_time"]):
        if times := process.info["cpu_times"]:
            # A thread of the kernel is called after its work of the moment: kworker/0:1-events.
            name = (process.info["name"] or "a program").partition("/")[0]
            spent[process.pid, process.info["create_time"]] = name, times.user + times.system
    return spent
