"""What this process may use of the machine: cores and memory, as affinity masks and control groups allow."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT = Path("/")


def _limits(controller: str, v1_file: str, v2_file: str) -> Iterator[str]:
    """The texts of a limit's file in this process's control group and in every group above it.

    Args:
        controller: `cpu` or `memory`.
        v1_file: the file's name where the controller has a hierarchy of its own (cgroup v1).
        v2_file: its name in the unified hierarchy (cgroup v2).
    """
    try:
        lines = (ROOT / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # A container may see the host's path here, though its mount begins at its own group.
        group = Path(path.lstrip("/"))
        for mount in dict.fromkeys((controllers, controller)) if controllers else ("", "unified"):
            for part in (group, *group.parents):
                with contextlib.suppress(OSError):
                    folder = ROOT / "sys/fs/cgroup" / mount / part
                    yield (folder / (v1_file if controllers else v2_file)).read_text().strip()


def quota() -> float | None:
    """Cores' worth of time that the control groups grant; None without a limit."""
    default_period = min((int(text) for text in _limits("cpu", "cpu.cfs_period_us", "none")), default=100_000)
    quotas = []
    for text in _limits("cpu", "cpu.cfs_quota_us", "cpu.max"):
        granted, *period = text.split()
        if granted not in ("max", "-1"):
            quotas.append(int(granted) / int(period[0] if period else default_period))
    return min(quotas, default=None)


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_cores() -> int:
    """Cores that this process may keep busy: affinity mask and whole cores of the quota, at least 1."""
    granted = quota()
    return max(1, _affinity() if granted is None else min(_affinity(), int(granted + 0.01)))


def core_report() -> str:
    """One line that explains `usable_cores`."""
    visible, mask, granted = os.cpu_count() or 1, _affinity(), quota()
    reasons = [f"affinity mask {mask}"] if mask < visible else []
    reasons += [f"cgroup quota {granted:.1f}"] if granted is not None and granted < visible else []
    because = f": {', '.join(reasons)}" if reasons else ""
    return f"{usable_cores()} of {visible} visible cores usable{because}"


def memory_bytes() -> int:
    """Memory that this process may use: the machine's, or what its control groups grant."""
    return min([psutil.virtual_memory().total, *_memory_limits()])


def free_memory_bytes() -> int:
    """Memory that can still be used without swapping, within what the control groups grant."""
    used = [int(text) for text in _limits("memory", "memory.usage_in_bytes", "memory.current")][:1]
    granted = [limit - used[0] for limit in _memory_limits() if used]
    return max(0, min([psutil.virtual_memory().available, *granted]))


def _memory_limits() -> list[int]:
    """Bytes that the control groups grant, where they set a limit."""
    limits = _limits("memory", "memory.limit_in_bytes", "memory.max")
    return [int(text) for text in limits if text != "max"]
