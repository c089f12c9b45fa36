"""The A/A noise of this machine: how far a recipe differs from itself in another process.

Every ladder measures its baseline twice, in two processes; `perfkit noise` measures more such pairs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from perfkit import machine
from perfkit.results import stats
from perfkit.results.simulated import refuse
from perfkit.results.stats import AAPair

_OF_SCRIPTS = 0.05
"""Equal processes of a script differed by 2.1% (standard deviation, 18 pairs of three small scripts that are
watched, two cores, torch 2.15), two of them by more than 4.5%."""
_KEPT = 30
"""Pairs of a device; the newest count, since a machine changes."""


def _file() -> Path:
    return machine.runs_folder() / "noise.json"


def _all() -> dict[str, list[AAPair]]:
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(_file().read_bytes(), type=dict[str, list[AAPair]])
    return {}


def load(device: str, further: Sequence[AAPair] = ()) -> float | None:
    """The noise of a device as a fraction; None where no pair was measured here.

    Args:
        device: whose pairs are kept.
        further: pairs that are not kept yet.
    """
    pairs = [*_all().get(device, []), *further]
    return stats.aa_noise_bound(pairs) if pairs else None


def expected(device: str, script: bool = False) -> tuple[float | None, bool]:
    """The noise that verdicts on a device take into account, and whether it is assumed.

    On a CPU where no pair was measured, processes are taken to differ as they did elsewhere; those of a
    user's script, of which no ladder measures a pair, never by less.
    """
    known, elsewhere = load(device), _OF_SCRIPTS if script else stats.aa_noise_bound(())
    assumed = device == "cpu" and (known is None or (script and known < elsewhere))
    return (elsewhere, True) if assumed else (known, False)


def add(device: str, pairs: Sequence[AAPair]) -> None:
    """Keeps further pairs of a device; all later verdicts take them into account.

    Raises:
        InvalidValue: the device is simulated.
    """
    refuse(device, "keeping A/A noise", "two simulated runs differ by what this machine's loader does")
    machine.runs_folder().mkdir(parents=True, exist_ok=True)
    every = _all()
    every[device] = [*every.get(device, []), *pairs][-_KEPT:]
    machine.write_atomically(_file(), msgspec.json.encode(every))
