"""What this process may use of the machine: cores and memory, as affinity masks and control groups allow."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT = Path("/")


def _groups(controller: str, v1_file: str, v2_file: str) -> Iterator[Path]:
    """A file in this process's control group and in every group above it.

    Args:
        controller: `cpu`, `cpuacct` or `memory`.
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
                file = ROOT / "sys/fs/cgroup" / mount / part / (v1_file if controllers else v2_file)
                if file.is_file():
                    yield file


def _limits(controller: str, v1_file: str, v2_file: str) -> Iterator[tuple[Path, str]]:
    for file in _groups(controller, v1_file, v2_file):
        with contextlib.suppress(OSError):
            yield file, file.read_text().strip()


def _quotas() -> dict[Path, float]:
    """Cores' worth of time that each control group with a limit grants, by its folder."""
    quotas = {}
    for file, text in _limits("cpu", "cpu.cfs_quota_us", "cpu.max"):
        granted, *period = text.split()
        if granted not in ("max", "-1"):
            if not period:
                with contextlib.suppress(OSError):
                    period = [file.with_name("cpu.cfs_period_us").read_text().strip()]
            quotas[file.parent] = int(granted) / int(period[0] if period else 100_000)
    return quotas


def quota() -> float | None:
    """Cores' worth of time that the control groups grant; None without a limit."""
    return min(_quotas().values(), default=None)


def group_cpu_s() -> float | None:
    """CPU seconds used by all processes that share this one's quota; None without a quota."""
    quotas = _quotas()
    if not quotas:
        return None
    group = min(quotas, key=lambda folder: quotas[folder])
    with contextlib.suppress(OSError, ValueError):
        if (group / "cpu.stat").is_file():
            words = (group / "cpu.stat").read_text().split()
            if "usage_usec" in words:
                return int(words[words.index("usage_usec") + 1]) / 1e6
        return int((group / "cpuacct.usage").read_text()) / 1e9  # cgroup v1, where both share a hierarchy
    return None


def affinity() -> list[int]:
    """The numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Cores that this process may keep busy: affinity mask and complete cores of the quota, at least 1."""
    granted, mask = quota(), len(affinity())
    return max(1, mask if granted is None else min(mask, int(granted + 0.01)))


def core_report() -> str:
    """One line that explains `usable_cores`."""
    visible, mask, granted = os.cpu_count() or 1, len(affinity()), quota()
    reasons = [f"affinity mask {mask}"] if mask < visible else []
    reasons += [f"cgroup quota {granted:.1f}"] if granted is not None and granted < visible else []
    because = f": {', '.join(reasons)}" if reasons else ""
    return f"{usable_cores()} of {visible} visible cores usable{because}"


def memory_bytes() -> int:
    """Memory that this process may use: the machine's, or what its control groups grant."""
    return min([psutil.virtual_memory().total, *_memory_limits()])


def free_memory_bytes() -> int:
    """Memory that can still be used without swapping, within what the control groups grant."""
    used = [int(text) for _, text in _limits("memory", "memory.usage_in_bytes", "memory.current")][:1]
    granted = [limit - used[0] for limit in _memory_limits() if used]
    return max(0, min([psutil.virtual_memory().available, *granted]))


def _memory_limits() -> list[int]:
    limits = _limits("memory", "memory.limit_in_bytes", "memory.max")
    return [int(text) for _, text in limits if text != "max"]
