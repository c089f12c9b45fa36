"""Recordings: files with the runs of a named machine, for others to open. Some ship with perfkit."""

import datetime
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from perfkit import machine
from perfkit.errors import InvalidValue
from perfkit.results.run import Provenance, Run, read
from perfkit.results.upgrade import SCHEMA

PREFIX = "recorded:"
"""Begins the name of a device; the name of a recording, or a file, follows."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of a named machine."""

    schema: Literal[2] = SCHEMA
    provenance: Provenance
    runs: Annotated[list[Run], msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        try:
            for facts in (self.provenance.machine, *(run.machine for run in self.runs)):
                machine.describe(facts)
        except (AttributeError, TypeError) as problem:
            raise ValueError(f"a machine is described in a different way ({problem})") from None


def provenance() -> Provenance:
    """The provenance of what this process's command records here and now."""
    facts = machine.facts()
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    # A recording is shared: it names files without their paths on this machine.
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]
    command = shlex.join([Path(words[0]).name, *words[1:]])
    return Provenance(machine=facts, when=when, command=command, commit=facts["commit"])


def text(recorded: Sequence[Run]) -> bytes:
    """Runs as the content of a recording's file; those of a recording have their own provenance already."""
    if any(run.origin for run in recorded):
        raise InvalidValue("these runs are of a recording already", "Copy its file instead")
    recording = Recording(provenance=provenance(), runs=list(recorded))
    return msgspec.json.format(msgspec.json.encode(recording), indent=1)


def available() -> Mapping[str, Path]:
    """The recordings that ship with perfkit, by name."""
    files = sorted(machine.shipped("recordings").glob("*.json"))
    return {file.stem: file for file in files if file.stem != "provenance"}


def find(name: str) -> list[Run]:
    """The runs of a recording by its name, or by its file (`*.json`); a `StoreError` if that is none."""
    known = available()
    path = known.get(name, Path(name))
    if path.suffix == ".json" and path.is_file():
        recording = read(path.read_bytes(), Recording, path)
        return [msgspec.structs.replace(run, origin=recording.provenance) for run in recording.runs]
    raise InvalidValue(
        f"there is no recording '{name}'",
        f"There are: {', '.join(known) or 'none'}. Others: recorded:FILE.json, a file from `perfkit run -o`",
    )
