"""The command for Nsight Systems, where it is not installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfkit.errors import PerfkitError
from perfkit.process import nsys
from perfkit.recipe import Recipe


def test_without_nsys_the_command_is_shown_and_the_reason_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    told = nsys.program("photos", {"image_size": 32}, Recipe().to_dict(), "cuda", 0)
    asked = nsys.command(told, tmp_path / "out")
    assert asked[:2] == ["nsys", "profile"]
    assert "--capture-range=cudaProfilerApi" in asked
    assert json.loads(asked[-1])["options"] == {"image_size": 32}
    with pytest.raises(PerfkitError, match="not installed"):
        nsys.record(asked, tmp_path / "out")
