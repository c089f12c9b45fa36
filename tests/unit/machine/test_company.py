"""Who else uses the machine: CPU time outside process groups, the share taken, the busiest program."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import NamedTuple

import pytest

from perfkit import machine
from perfkit.machine import CpuTimes, company


class Times(NamedTuple):
    user: float
    system: float
    idle: float
    steal: float
    guest: float


def test_cpu_time_of_a_guest_counts_once_and_idle_and_steal_are_nobodys_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(company.psutil, "cpu_times", lambda: Times(40.0, 10.0, 45.0, 5.0, 8.0))
    assert machine.cpu_times() == CpuTimes(capacity_s=100.0, outside_s=50.0, steal_s=5.0)


def test_a_tree_of_processes_is_not_outside_also_where_a_child_has_ended() -> None:
    child = "import time\nwhile time.process_time() < 0.4: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}]); print(); input()"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout
        process.stdout.readline()
        everything, rest = machine.cpu_times(), machine.cpu_times([process.pid, process.pid])
        process.communicate(b"\n")
    # Between the two readings at most a moment of all cores has passed.
    passed = rest.capacity_s - everything.capacity_s
    assert 0.3 < everything.outside_s - rest.outside_s + passed < 5 + passed
    assert machine.cpu_times([2**22 + 1]).outside_s > 0  # no such process: nothing to leave out


@pytest.mark.parametrize(
    ("visible", "usable", "outside_s", "steal_s", "share"),
    [
        (2, 2, 0.0, 0.0, 0.0),
        (2, 2, 10.0, 0.0, 0.5),  # one of two cores for ten seconds
        (2, 2, 1.0, 1.0, 0.1),  # what the hypervisor gave away counts too
        (2, 2, 40.0, 0.0, 1.0),
        (2, 2, -1.0, 0.0, 0.0),  # clocks of processes and of the machine tick apart
    ],
)
def test_the_share_that_others_took(
    visible: int, usable: int, outside_s: float, steal_s: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(company.os, "cpu_count", lambda: visible)
    monkeypatch.setattr(company.cores, "usable_cores", lambda: usable)
    before, after = CpuTimes(0.0, 5.0, 1.0), CpuTimes(10.0 * visible, 5.0 + outside_s, 1.0 + steal_s)
    assert machine.taken_share(before, after) == pytest.approx(share)
    assert machine.taken_share(before, before) == 0.0


def test_cores_that_are_not_granted_may_be_used_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 8 cores, 2 are granted: six busy ones take nothing, seven take half."""
    monkeypatch.setattr(company.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(company.cores, "usable_cores", lambda: 2)
    shares = [
        machine.taken_share(CpuTimes(0.0, 0.0, None), CpuTimes(80.0, 10.0 * busy, None)) for busy in (6, 7, 8)
    ]
    assert shares == pytest.approx([0.0, 0.5, 1.0])


def test_the_busiest_other_program_is_named_with_all_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: 0.3 + 0.5 s of chrome are 0.8 s in 2 s on 2 cores, 20%; python's 50 s were spent before.

    Number 4 was `sh`, and has 30 s from before it became `cc`; another process had number 5.
    """
    spent = [
        {(1, 0.0): ("chrome", 9.0), (2, 0.0): ("python", 50.0), (4, 0.0): ("sh", 30.0), (5, 0.0): ("a", 9.0)},
        {(1, 0.0): ("chrome", 9.3), (2, 0.0): ("python", 50.4), (4, 0.0): ("cc", 30.1), (5, 7.0): ("b", 0.1),
         (3, 7.0): ("chrome", 0.5), (os.getpid(), 0.0): ("jupyter", 7.0)},
    ]  # fmt: skip
    monkeypatch.setattr(company, "_spent", lambda: spent.pop(0))
    monkeypatch.setattr(company.cores, "usable_cores", lambda: 2)
    monkeypatch.setattr(company.time, "monotonic", iter([100.0, 102.0]).__next__)
    assert machine.OtherPrograms().busiest() == ("chrome (2 processes)", pytest.approx(0.2))


def test_ones_own_processes_are_not_among_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as one:
        assert one.pid in {pid for pid, _ in company._spent()}
        only = {(one.pid, 0.0): ("python", 1.0)}
        monkeypatch.setattr(company, "_spent", lambda: only)
        assert machine.OtherPrograms().busiest([one.pid]) is None
        one.communicate(b"\n")


def test_memory_that_is_free_is_part_of_what_there_is() -> None:
    assert 0 < machine.free_memory_bytes() < 1 << 50


def test_memory_of_a_tree_of_processes() -> None:
    assert machine.resident_bytes(os.getpid()) > 1 << 20
    assert machine.resident_bytes(2**22 + 1) == 0, "no such process"
