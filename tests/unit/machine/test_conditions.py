import json
from collections.abc import Iterator
from typing import Any

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
    warnings = list(quality_warnings(now, own_processes=3, gpu=used))
    assert len(warnings) == len(words)
    assert all(word in warning and ":" in warning for word, warning in zip(words, warnings, strict=True))
