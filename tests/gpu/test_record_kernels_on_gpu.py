"""Recording operators on a GPU; skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfkit.simulate import recorded
from perfkit.studies.record_kernels import record_kernels

pytestmark = pytest.mark.usefixtures("no_orphans")


def test_a_minute_of_recording_gives_times_by_the_devices_own_clock(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    result = record_kernels(["cifar_resnet18"], out=path, minutes=1)
    found = recorded.load(path)
    assert result.entries == len(found.entries) > 50
    convolutions = [entry for entry in found.entries if entry.name == "aten.convolution"]
    assert convolutions
    # Events resolve half a microsecond; a recording whose repeats disagree is no recording.
    steady = [entry for entry in found.entries if entry.iqr_s <= 0.2 * entry.seconds + 2e-6]
    assert len(steady) > 0.8 * len(found.entries)


def test_a_second_recording_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    first = record_kernels(["cifar_resnet18"], out=path, minutes=0.3)
    second = record_kernels(["cifar_resnet18"], out=path, minutes=0.5)
    assert second.entries == first.entries + second.new
