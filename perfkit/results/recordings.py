"""Recordings by name: those that ship with perfkit, and the user's own."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from perfkit import machine
from perfkit.errors import InvalidValue, PerfkitError
from perfkit.results.run import Run
from perfkit.results.store import ORIGIN, Recording, load_recording

PREFIX = "recorded:"
"""Of a device name; the name of a recording, or a file, follows."""
_OTHER = ("provenance",)
"""Files beside recordings that are none."""


def available() -> Mapping[str, Path]:
    """Every recording by its name, the shipped ones first; a file that is added appears by itself.

    Recordings of one's own are kept in `machine.own_recordings_folder()`; one that has the name of a shipped
    recording takes its place.
    """
    tree = machine.checkout()
    folders = [tree / "data" / "recordings"] if tree else []
    files = (
        file
        for folder in [*folders, machine.own_recordings_folder()]
        for file in sorted(folder.glob("*.json"))
    )
    return {file.stem: file for file in files if file.stem not in _OTHER}


def find(name: str) -> Recording:
    """A recording by its name, or by its file (`*.json`).

    Raises:
        InvalidValue: no such recording.
        StoreError: the file is not a recording, or is damaged.
    """
    known = available()
    if name in known:
        return load_recording(known[name])
    if name.endswith(".json") and Path(name).is_file():
        return load_recording(Path(name))
    there = ", ".join(known) or "none"
    raise InvalidValue(
        f"there is no recording '{name}'",
        f"There are: {there}. Others: a file from `perfkit run --record`, as recorded:FILE.json, or put it "
        f"into {machine.own_recordings_folder()}",
    )


def readable() -> dict[str, Recording]:
    """Every recording that can be opened; a chooser leaves out the others."""
    recordings = {}
    for name, path in available().items():
        with contextlib.suppress(PerfkitError):
            recordings[name] = load_recording(path)
    return recordings


def played(recording: Recording) -> list[Run]:
    """Its runs, each with the fact where it comes from."""
    origin = {ORIGIN: recording.provenance.describe()}
    return [msgspec.structs.replace(run, facts={**run.facts, **origin}) for run in recording.runs]
