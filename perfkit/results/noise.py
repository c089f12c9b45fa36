"""The A/A noise of this machine: how far a recipe differs from itself in another process."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from perfkit import machine


def _file() -> Path:
    return machine.runs_folder() / "noise.json"


def _all() -> dict[str, float]:
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(_file().read_bytes(), type=dict[str, float])
    return {}


def load(device: str) -> float | None:
    """What `perfkit noise` last measured for a device, as a fraction; None where it never ran."""
    return _all().get(device)


def save(device: str, fraction: float) -> None:
    """Keeps the noise of a device; all later verdicts take it into account."""
    machine.runs_folder().mkdir(parents=True, exist_ok=True)
    machine.write_atomically(_file(), msgspec.json.encode({**_all(), device: fraction}))
