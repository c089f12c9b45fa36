"""The A/A noise of a device is kept by device; what was never measured is not known."""

from __future__ import annotations

from pathlib import Path

from perfkit.results import noise


def test_noise_is_kept_for_each_device_and_unknown_before(data_dir: Path) -> None:
    assert noise.load("cpu") is None
    noise.save("cpu", 0.0)
    noise.save("cuda", 0.03)
    assert noise.load("cpu") == 0.0
    assert noise.load("cuda") == 0.03
    (data_dir / "runs" / "noise.json").write_text("{damaged")
    assert noise.load("cpu") is None
