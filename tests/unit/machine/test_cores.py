"""Cores and memory that may be used; who else uses them; what makes a result doubtful."""

import math
import os
from typing import NamedTuple

import pytest

from perfkit.machine import cores
from perfkit.machine.cores import CpuTimes
from tests.unit.machine.conftest import files

GROUP = {"proc/self/cgroup": "5:cpuset:/\n0::/slice/box\n"}
BOX, SLICE = "sys/fs/cgroup/slice/box/", "sys/fs/cgroup/slice/"


@pytest.mark.parametrize(
    ("groups", "quota"),
    [
        ({}, math.inf),
        ({BOX + "cpu.max": "max 100000\n"}, math.inf),
        ({SLICE + "cpu.max": "150000 50000\n"}, 3.0),  # a limit further up counts
        ({SLICE + "cpu.max": "100000 100000", BOX + "cpu.max": "400000 100000"}, 1.0),
        ({"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5),  # the host's path, mounted at its own group
    ],
)
def test_the_quota_is_the_tightest_of_the_groups_of_this_process(root, groups, quota):
    files(root, GROUP | groups)
    assert cores.quota()[0] == quota


def test_memory_is_what_the_control_group_grants(root):
    physical = cores.memory_bytes()
    limits = {SLICE + "memory.max": "1048576\n", SLICE + "memory.current": "500001\n"}
    limits |= {
        SLICE + "memory.stat": "anon 1\ninactive_file 500000\nactive_file 7\n",
        BOX + "memory.max": "max",
    }
    files(root, GROUP | limits)
    assert cores.memory_bytes() == 1048576 < physical
    assert cores.free_memory_bytes() == 1048575, "files that are cached are no memory that is used"


class Times(NamedTuple):
    user: float
    system: float
    idle: float
    steal: float
    guest: float


def test_only_the_cores_of_the_mask_count_a_guest_once_and_steal_as_taken(root, monkeypatch):
    each = [Times(40.0, 10.0, 45.0, 5.0, 8.0), Times(90.0, 0.0, 10.0, 0.0, 0.0)]
    monkeypatch.setattr(cores.psutil, "cpu_times", lambda percpu: each)
    monkeypatch.setattr(cores, "affinity", lambda: [0])
    assert cores.cpu_times() == CpuTimes(capacity_s=100.0, outside_s=55.0)


def test_what_the_measured_processes_used_is_not_outside(monkeypatch):
    monkeypatch.setattr(cores.psutil, "cpu_times", lambda percpu: [Times(40.0, 10.0, 45.0, 5.0, 0.0)])
    monkeypatch.setattr(cores, "affinity", lambda: [0])
    assert cores.cpu_times(30.0).outside_s == cores.cpu_times().outside_s - 30.0


@pytest.mark.parametrize(
    ("visible", "usable", "outside_s", "group_s", "share"),
    [
        (2, 2, 10.0, None, 0.5),  # one of two cores for ten seconds
        (2, 2, 40.0, None, 1.0),
        (2, 2, -1.0, None, 0.0),  # clocks of processes and of the machine tick apart
        (8, 2, 60.0, 0.0, 0.0),  # six of eight cores are not granted: others may use them
        (64, 8, 40.0, 40.0, 0.5),  # half of the quota went to programs in the same container
    ],
)
def test_the_share_that_others_took(visible, usable, outside_s, group_s, share, monkeypatch):
    monkeypatch.setattr(cores, "affinity", lambda: list(range(visible)))
    monkeypatch.setattr(cores, "usable_cores", lambda: usable)
    before = CpuTimes(0.0, 5.0, None if group_s is None else 7.0)
    after = CpuTimes(10.0 * visible, 5.0 + outside_s, group_s and 7.0 + group_s)
    assert cores.taken_share(before, after) == pytest.approx(share)
    assert cores.taken_share(before, before) == 0.0


@pytest.mark.parametrize(("quota", "seconds"), [("800000 100000", 2.5), ("max 100000", None)])
def test_programs_of_the_same_container_are_noticed_by_its_control_group(root, quota, seconds):
    limited = {SLICE + "cpu.max": quota, SLICE + "cpu.stat": "usage_usec 2500000\nuser_usec 1\n"}
    inner = {BOX + "cpu.max": "max 100000", BOX + "cpu.stat": "usage_usec 1000000\n"}
    files(root, GROUP | limited | inner)
    assert cores.cpu_times().group_s == seconds


@pytest.mark.parametrize(
    ("stolen", "busiest"), [(0.1, ("chrome", 0.2)), (1.0, ("other guests of the same host", 0.25))]
)
def test_the_busiest_other_program_is_named_with_all_its_processes(monkeypatch, stolen, busiest):
    """By hand: 0.3 + 0.5 s of chrome are 0.8 s in 2 s on 2 cores, 20%; python's 50 s were spent before.

    Number 4 was `sh`, and has 30 s from before it became `cc`; another process had number 5. At the end only
    number 1 is left.
    """
    spent = [
        {(1, 0.0): ("chrome", 9.0), (2, 0.0): ("python", 50.0), (4, 0.0): ("sh", 30.0), (5, 0.0): ("a", 9.0)},
        {(1, 0.0): ("chrome", 9.3), (2, 0.0): ("python", 50.4), (4, 0.0): ("cc", 30.1), (5, 7.0): ("b", 0.1),
         (3, 7.0): ("chrome", 0.5), (os.getpid(), 0.0): ("jupyter", 7.0), (6, 0.0): ("measured", 8.0)},
        {(1, 0.0): ("chrome", 9.3)},
    ]  # fmt: skip
    monkeypatch.setattr(cores, "_spent", lambda: spent.pop(0))
    monkeypatch.setattr(cores, "_stolen_s", iter([5.0, 5.0 + stolen]).__next__)
    monkeypatch.setattr(cores, "usable_cores", lambda: 2)
    monkeypatch.setattr(cores.time, "monotonic", iter([100.0, 102.0]).__next__)
    others = cores.OtherPrograms()
    others.sample()
    name, share = busiest
    assert others.busiest([6]) == (name, pytest.approx(share))


def test_stolen_time_that_goes_back_is_no_share_below_zero(monkeypatch):
    """As when a virtual machine moves to another host: a run with such a share could not be read again."""
    monkeypatch.setattr(cores, "_spent", dict)
    monkeypatch.setattr(cores, "_stolen_s", iter([5.0, 1.0]).__next__)
    _, share = cores.OtherPrograms().busiest()
    assert share == 0.0


IDLE = {"uuid": "GPU-1", "other_processes": None, "throttle_reasons": None, "temperature_c": None}
BUSY = IDLE | {"other_processes": [{"pid": 1}], "throttle_reasons": ["power cap"]}
HOT = IDLE | {"throttle_reasons": ["hardware thermal slowdown"], "temperature_c": 91}


@pytest.mark.parametrize(
    ("gpu", "pids_known", "warning"),
    [
        (BUSY, True, "another process"),
        (BUSY, False, ""),  # one's own children, as a container sees them
        (BUSY | {"other_processes": [{}] * 4}, False, "another process"),
        (BUSY | {"uuid": "GPU-2"}, True, ""),
        (HOT, True, "the GPU throttled (hardware thermal slowdown at 91 °C)"),
        (IDLE, True, ""),
    ],
)
def test_warnings_name_what_disturbs_a_measurement(gpu, pids_known, warning):
    now = {"pids_known": pids_known, "gpus": [gpu]}
    warnings = list(cores.quality_warnings(now, "GPU-1"))
    assert len(warnings) == bool(warning)
    assert "".join(warnings).startswith(warning)
