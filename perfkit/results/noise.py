"""The A/A noise of this machine: how far apart a recipe comes out from itself."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from perfkit import machine as environment


def _file() -> Path:
    return environment.runs_folder() / "noise.json"


def _all() -> dict[str, float]:
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(_file().read_bytes(), type=dict[str, float])
    return {}


def load(device: str) -> float:
    """What `perfkit noise` last measured for a device, as a fraction; 0.0 where it never ran."""
    return max(0.0, _all().get(device, 0.0))


def known(device: str) -> bool:
    """Whether `perfkit noise` has run for a device, whatever it found."""
    return device in _all()


def save(device: str, fraction: float) -> None:
    """Keeps the noise of a device; every later verdict takes it into account."""
    part = _file().with_suffix(".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(msgspec.json.encode({**_all(), device: fraction}))
    os.replace(part, _file())
