import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from perfkit.machine import (
    CpuTimes,
    conditions,
    quality_warnings,
    read_conditions,
)


def test_conditions_are_plain_data() -> None:
    now = read_conditions()
    assert json.loads(json.dumps(now)) == now
    assert now["when"].endswith("+00:00")


def times(*steal_at: tuple[float, float]) -> Iterator[CpuTimes]:
    return iter([CpuTimes(capacity, 0.0, steal) for capacity, steal in steal_at])


def test_the_steal_share_is_that_since_the_previous_call(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = times((100.0, 0.0), (110.0, 1.0), (110.1, 1.0))
    monkeypatch.setattr(conditions, "_last_times", [])
    monkeypatch.setattr(conditions, "cpu_times", lambda: next(readings))
    assert conditions._steal_share() is None  # nothing to compare with
    assert conditions._steal_share() == pytest.approx(0.1)
    assert conditions._steal_share() is None  # too soon


class Times(NamedTuple):
    user: float
    system: float
    idle: float
    steal: float
    guest: float


def test_cpu_time_of_a_guest_counts_once_and_idle_and_steal_are_nobodys_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conditions.psutil, "cpu_times", lambda: Times(40.0, 10.0, 45.0, 5.0, 8.0))
    assert conditions.cpu_times() == CpuTimes(capacity_s=100.0, outside_s=50.0, steal_s=5.0)


def test_a_tree_of_processes_is_not_outside_also_where_a_child_has_ended() -> None:
    child = "import time\nwhile time.process_time() < 0.4: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}]); print(); input()"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        everything, rest = conditions.cpu_times(), conditions.cpu_times([process.pid, process.pid])
        process.communicate(b"\n")
    # Between the two readings at most a moment of all cores has passed.
    passed = rest.capacity_s - everything.capacity_s
    assert 0.3 < everything.outside_s - rest.outside_s + passed < 5 + passed
    assert conditions.cpu_times([2**22 + 1]).outside_s > 0  # no such process: nothing to leave out


QUIET = {
    "load_average": [1.0, 1, 1],
    "cores_visible": 2,
    "cpu_steal_share": 0.0,
    "pids_known": True,
    "gpus": [],
}
BUSY = {"uuid": "GPU-1", "other_processes": [{"pid": 1}], "throttle_reasons": ["power cap"]}


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (QUIET, []),
        ({}, []),
        (QUIET | {"cpu_steal_share": None, "load_average": None}, []),
        (QUIET | {"cpu_steal_share": 0.25}, ["25%"]),
        (QUIET | {"load_average": [40.0, 1, 1]}, ["load average 40.0 on 2 cores"]),
        (QUIET | {"gpus": [BUSY]}, ["another process"]),
        (QUIET | {"gpus": [BUSY], "pids_known": False}, []),  # one's own children, as a container sees them
        (QUIET | {"gpus": [BUSY | {"other_processes": [{}] * 4}], "pids_known": False}, ["another process"]),
        (QUIET | {"gpus": [BUSY | {"uuid": "GPU-2"}]}, []),
        (
            QUIET | {"gpus": [{"throttle_reasons": ["hardware thermal slowdown"], "temperature_c": 91}]},
            ["hardware thermal slowdown at 91 °C"],
        ),
        (QUIET | {"gpus": [{"throttle_reasons": None, "other_processes": None}]}, []),
    ],
)
def test_warnings_name_what_disturbs_a_measurement(now: dict[str, Any], words: list[str]) -> None:
    used = None if "hardware" in str(words) else "GPU-1"
    warnings = quality_warnings(now, own_processes=3, gpu=used)
    assert len(warnings) == len(words)
    assert all(word in warning and ":" in warning for word, warning in zip(words, warnings, strict=True))
