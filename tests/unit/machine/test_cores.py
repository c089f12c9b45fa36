import os
from pathlib import Path

import pytest

from perfkit.machine import (
    cores,
)
from tests.unit.machine.conftest import files

V2 = {"proc/self/cgroup": "0::/slice/box\n"}
V1 = {"proc/self/cgroup": "5:cpuset:/\n3:cpu,cpuacct:/docker/abc\n0::/\n"}


@pytest.mark.parametrize(
    ("groups", "quota"),
    [
        ({}, None),
        (V2, None),
        (V2 | {"sys/fs/cgroup/slice/box/cpu.max": "max 100000\n"}, None),
        (V2 | {"sys/fs/cgroup/slice/box/cpu.max": "250000 100000\n"}, 2.5),
        (V2 | {"sys/fs/cgroup/slice/cpu.max": "150000 50000\n"}, 3.0),  # a limit further up counts
        (
            V2
            | {
                "sys/fs/cgroup/slice/cpu.max": "100000 100000",
                "sys/fs/cgroup/slice/box/cpu.max": "400000 100000",
            },
            1.0,
        ),
        (
            V2 | {"sys/fs/cgroup/cpu.max": "50000 100000\n"},
            0.5,
        ),  # the host's path, mounted at one's own group
        (V1, None),
        (V1 | {"sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "-1\n"}, None),
        (V1 | {"sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "200000\n"}, 2.0),
        (
            V1
            | {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "50000\n",
            },
            4.0,
        ),
    ],
)
def test_the_quota_is_the_tightest_of_the_groups_of_this_process(
    root: Path, groups: dict[str, str], quota: float | None
) -> None:
    files(root, groups)
    assert cores.quota() == quota


@pytest.mark.parametrize(
    ("affinity", "quota", "usable", "words"),
    [
        (8, None, 8, "8 of 8 visible cores usable"),
        (8, 2.0, 2, "2 of 8 visible cores usable: cgroup quota 2.0"),
        (8, 2.9, 2, "2 of 8 visible cores usable: cgroup quota 2.9"),
        (8, 0.5, 1, "1 of 8 visible cores usable: cgroup quota 0.5"),
        (3, 16.0, 3, "3 of 8 visible cores usable: affinity mask 3"),
        (4, 3.0, 3, "3 of 8 visible cores usable: affinity mask 4, cgroup quota 3.0"),
    ],
)
def test_usable_cores_obey_mask_and_quota_and_say_so(
    monkeypatch: pytest.MonkeyPatch, affinity: int, quota: float | None, usable: int, words: str
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(affinity)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(cores, "quota", lambda: quota)
    assert cores.usable_cores() == usable
    assert cores.core_report() == words


def test_memory_is_what_the_control_group_grants(root: Path) -> None:
    whole = cores.memory_bytes()
    files(
        root,
        V2 | {"sys/fs/cgroup/slice/memory.max": "1048576\n", "sys/fs/cgroup/slice/box/memory.max": "max"},
    )
    assert cores.memory_bytes() == 1048576 < whole
