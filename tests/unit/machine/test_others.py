"""Who else uses the machine: CPU time of others, the share they take, the busiest program."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from perfkit import machine
from perfkit.machine import CpuTimes, cores, others
from tests.unit.machine.conftest import files

BUSY = "import time\nwhile time.process_time() < {}: pass"


class Times(NamedTuple):
    user: float
    system: float
    idle: float
    steal: float
    guest: float


def test_only_the_cores_of_the_mask_count_a_guest_once_and_idle_and_steal_as_nobodys_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    each = [Times(40.0, 10.0, 45.0, 5.0, 8.0), Times(90.0, 0.0, 10.0, 0.0, 0.0)]
    monkeypatch.setattr(others.psutil, "cpu_times", lambda percpu: each)
    monkeypatch.setattr(cores, "affinity", lambda: [0])
    monkeypatch.setattr(cores, "group_cpu_s", lambda: None)
    assert machine.cpu_times() == CpuTimes(capacity_s=100.0, outside_s=50.0, steal_s=5.0)


def test_a_tree_of_processes_is_not_outside_also_where_a_child_has_ended() -> None:
    child = BUSY.format(0.4)
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}]); print(); input()"
    command = [sys.executable, "-c", parent]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) as process:
        assert process.stdout
        process.stdout.readline()
        everything, rest = machine.cpu_times(), machine.cpu_times([process.pid, process.pid])
        process.communicate(b"\n")
    # Between the two readings at most a moment of all cores has passed.
    passed = rest.capacity_s - everything.capacity_s
    assert 0.3 < everything.outside_s - rest.outside_s + passed < 5 + passed
    assert machine.cpu_times([2**22 + 1]).outside_s > 0  # no such process: nothing to leave out


@pytest.mark.parametrize(
    ("visible", "usable", "outside_s", "steal_s", "group_s", "share"),
    [
        (2, 2, 0.0, 0.0, None, 0.0),
        (2, 2, 10.0, 0.0, None, 0.5),  # one of two cores for ten seconds
        (2, 2, 1.0, 1.0, None, 0.1),  # what the hypervisor gave away counts too
        (2, 2, 40.0, 0.0, None, 1.0),
        (2, 2, -1.0, 0.0, None, 0.0),  # clocks of processes and of the machine tick apart
        (8, 2, 60.0, 0.0, 0.0, 0.0),  # six of eight cores are not granted: others may use them
        (8, 2, 70.0, 0.0, 0.0, 0.5),
        (64, 8, 40.0, 0.0, 40.0, 0.5),  # half of the quota went to programs in the same container
    ],
)
def test_the_share_that_others_took(
    visible: int, usable: int, outside_s: float, steal_s: float, group_s: float | None, share: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(cores, "affinity", lambda: list(range(visible)))
    monkeypatch.setattr(cores, "usable_cores", lambda: usable)
    before = CpuTimes(0.0, 5.0, 1.0, None if group_s is None else 7.0)
    after = CpuTimes(10.0 * visible, 5.0 + outside_s, 1.0 + steal_s, group_s and 7.0 + group_s)
    assert machine.taken_share(before, after) == pytest.approx(share)
    assert machine.taken_share(before, before) == 0.0


@pytest.mark.parametrize(
    ("groups", "seconds"),
    [
        (
            {
                "proc/self/cgroup": "0::/pod/box\n",
                "sys/fs/cgroup/pod/cpu.max": "800000 100000",
                "sys/fs/cgroup/pod/cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
                "sys/fs/cgroup/pod/box/cpu.max": "max 100000",
                "sys/fs/cgroup/pod/box/cpu.stat": "usage_usec 1000000\n",
            },
            2.5,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/docker/a\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/a/cpu.cfs_quota_us": "200000",
                "sys/fs/cgroup/cpu,cpuacct/docker/a/cpu.stat": "nr_periods 1\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/a/cpuacct.usage": "1500000000\n",
            },
            1.5,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.stat": "usage_usec 1\n"}, None),  # no quota
    ],
)
def test_programs_of_the_same_container_are_noticed_by_its_control_group(
    root: Path, groups: dict[str, str], seconds: float | None
) -> None:
    files(root, groups)
    assert cores.group_cpu_s() == seconds
    assert machine.cpu_times().group_s == seconds


def test_the_busiest_other_program_is_named_with_all_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: 0.3 + 0.5 s of chrome are 0.8 s in 2 s on 2 cores, 20%; python's 50 s were spent before.

    Number 4 was `sh`, and has 30 s from before it became `cc`; another process had number 5.
    """
    spent = [
        {(1, 0.0): ("chrome", 9.0), (2, 0.0): ("python", 50.0), (4, 0.0): ("sh", 30.0), (5, 0.0): ("a", 9.0)},
        {(1, 0.0): ("chrome", 9.3), (2, 0.0): ("python", 50.4), (4, 0.0): ("cc", 30.1), (5, 7.0): ("b", 0.1),
         (3, 7.0): ("chrome", 0.5), (os.getpid(), 0.0): ("jupyter", 7.0)},
    ]  # fmt: skip
    monkeypatch.setattr(others, "_spent", lambda: spent.pop(0))
    monkeypatch.setattr(cores, "usable_cores", lambda: 2)
    monkeypatch.setattr(others.time, "monotonic", iter([100.0, 102.0]).__next__)
    assert machine.OtherPrograms().busiest() == ("chrome (2 processes)", pytest.approx(0.2))


def test_a_program_that_has_ended_meanwhile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY.format(60)]) as process:
        spent = others._spent
        only = lambda: {key: value for key, value in spent().items() if key[0] == process.pid}
        monkeypatch.setattr(others, "_spent", only)
        watched = machine.OtherPrograms()
        while sum(others.psutil.Process(process.pid).cpu_times()[:2]) < 0.5:
            time.sleep(0.05)
        watched.look()
        process.kill()
    program = watched.busiest()
    assert program is not None
    assert program.name.endswith(f"(process {process.pid}, ended meanwhile)")
    assert program.share > 0.05


def test_the_measured_processes_are_not_among_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        monkeypatch.setattr(others, "_spent", lambda: {(process.pid, 0.0): ("python", 1.0)})
        assert machine.OtherPrograms().busiest([process.pid]) is None
        process.communicate(b"\n")


def test_memory_of_a_tree_of_processes() -> None:
    assert 0 < machine.free_memory_bytes() < 1 << 50
    assert machine.resident_bytes(os.getpid()) > 1 << 20
    assert machine.resident_bytes(2**22 + 1) == 0, "no such process"
