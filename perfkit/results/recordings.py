"""Recordings: files with the runs of a named machine, to share with others. Some come with perfkit."""

import datetime
import shlex
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from perfkit import machine
from perfkit.errors import InvalidValue, StoreError
from perfkit.results.documents import read
from perfkit.results.run import Run
from perfkit.results.schema import SCHEMA, Provenance

PREFIX = "recorded:"  # of a device name; the name of a recording, or a file, follows
FILES = (".json", ".zip")  # endings of files with a recording: of `perfkit run -o`, and of `make gpu`
PACKED = ("ladder.json", "smoke.json")  # the recording in a file of `make gpu`, or the small one
MOST_BYTES = 64 << 20  # the size of the largest file that is read


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
    """The provenance of what this command records here and now."""
    facts = machine.facts()
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    # Recordings are shared, so files are named without their paths on this machine.
    program, *words = map(_without_folders, sys.argv)
    command = shlex.join([Path(program).name, *words])
    return Provenance(machine=facts, when=when, command=command, commit=facts["commit"])


def _without_folders(word: str) -> str:
    """A word of a command with file names instead of paths, even in `--option=root=../me/photos`."""
    if "/" not in word:
        return word
    start = word.partition("/")[0]
    option = start[: start.rfind("=") + 1]  # `--option=root=`; empty without an option
    path = word.removeprefix(option)
    return option + (Path(path).name or path)


def content(recorded: Sequence[Run]) -> bytes:
    """The content of a recording of these runs, except cancelled ones; empty if none is left."""
    if any(run.origin for run in recorded):
        raise InvalidValue("these runs are from a recording already", "Copy its file instead")
    runs = [run for run in recorded if run.status != "cancelled"]
    if not runs:
        return b""
    return msgspec.json.format(msgspec.json.encode(Recording(provenance=provenance(), runs=runs)), indent=1)


def available() -> Mapping[str, Path]:
    """Recordings by name: those that come with perfkit, and `make gpu` files in the data folder."""
    files = sorted(machine.shipped("recordings").glob("*.json"))
    files += sorted((machine.data_folder() / "recordings").glob("gpu-*.zip"))
    return {file.stem: file for file in files if file.stem != "provenance"}


def find(name: str) -> list[Run]:
    """The runs of a recording, by its name or its file (`FILES`); a `StoreError` if it cannot be read."""
    files = available()
    path = files.get(name, Path(name))
    if path.suffix in FILES and path.is_file():
        if path.suffix == ".json" and path.stat().st_size > MOST_BYTES:
            raise StoreError(f"{path.name} has over {MOST_BYTES:,} bytes", "Do not trust it")
        recording = read(_unpacked(path) if path.suffix == ".zip" else path.read_bytes(), Recording, path)
        return [msgspec.structs.replace(run, origin=recording.provenance) for run in recording.runs]
    remedy = f"There are: {', '.join(files) or 'none'}. Or name a file of `perfkit run -o`, or of `make gpu`"
    raise InvalidValue(f"there is no recording '{name}'", remedy)


def _unpacked(path: Path) -> bytes:
    """Reads the recording in a file of `make gpu` into memory. Nothing is written to disk or executed."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next((name for name in PACKED if name in archive.namelist()), PACKED[0])
            with archive.open(name) as file:
                text = file.read(MOST_BYTES + 1)
    except Exception as problem:  # a malicious archive may raise anything
        raise StoreError(f"{path.name} is not of `make gpu`: {problem}", "Ask for it again") from None
    if len(text) > MOST_BYTES:
        raise StoreError(f"{name} in {path.name} unpacks to over {MOST_BYTES:,} bytes", "Do not trust it")
    return text
