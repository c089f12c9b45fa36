"""The A/A noise of this machine: how far a recipe differs from itself in another process.

Every ladder measures its baseline twice, in two processes; `perfkit doctor --noise` measures more such pairs.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from perfkit import machine
from perfkit.results import stats
from perfkit.results.stats import AAPair

_OF_SCRIPTS = 0.05
"""Equal processes of a script differed by 2.1% (standard deviation, 18 pairs of three small scripts that are
watched, two cores, torch 2.15), two of them by more than 4.5%."""
_NEWEST = 30
"""Pairs of a device that count, since a machine changes."""


class _Line(msgspec.Struct, frozen=True):
    device: str
    pair: AAPair


def _file() -> Path:
    return machine.runs_folder() / "noise.jsonl"


def load(device: str) -> float | None:
    """The noise of a device as a fraction; None where no pair was measured here."""
    pairs = []
    for text in _file().read_bytes().splitlines() if _file().is_file() else ():
        with contextlib.suppress(msgspec.DecodeError):
            line = msgspec.json.decode(text, type=_Line)
            pairs += [line.pair] * (line.device == device)
    return stats.aa_noise_bound(pairs[-_NEWEST:]) if pairs else None


def expected(device: str, script: bool = False) -> tuple[float | None, bool]:
    """The noise that verdicts on a device take into account, and whether it is assumed.

    On a CPU where no pair was measured, it is the noise of other machines. For a user's script, whose pairs
    no ladder measures, it is never less than that of other scripts.
    """
    measured = load(device)
    elsewhere = _OF_SCRIPTS if script else stats.aa_noise_bound(())
    if device == "cpu" and (measured is None or (script and measured < elsewhere)):
        return elsewhere, True
    return measured, False


def add(device: str, pairs: Sequence[AAPair]) -> None:
    """Keeps further pairs of a device; all later verdicts take them into account."""
    lines = b"".join(msgspec.json.encode(_Line(device, pair)) + b"\n" for pair in pairs)
    _file().parent.mkdir(parents=True, exist_ok=True)
    # One append is one write: processes that add at the same time lose nothing.
    with _file().open("ab", buffering=0) as file:
        file.write(lines)
