"""The programs of learners, and their results, kept in the data folder for later notebooks."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import filelock
import msgspec

from perfkit import machine
from perfkit.errors import InvalidValue, PerfkitError, what_and_remedy

T = TypeVar("T")


def program(file: Path) -> str:
    """The text of a learner's program. Raises `InvalidValue` if it is not in UTF-8."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidValue(f"{file} is not in UTF-8: {error}", "Save it in UTF-8") from None


def load(name: str, kind: type[T], remedy: str) -> T | None:
    """The value that a file keeps; None without a file. Raises `InvalidValue` if the file is damaged."""
    file = machine.data_folder() / name
    if not file.is_file():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise InvalidValue(f"{file} is damaged: {error}", f"Move it away; {remedy}") from error


@contextlib.contextmanager
def _writable(name: str) -> Iterator[Path]:
    """The file of this name, whose folder is created. Raises `PerfkitError` if it cannot be written."""
    file = machine.data_folder() / name
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        yield file
    except OSError as problem:
        raise PerfkitError(*what_and_remedy(problem, file)) from problem


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """Locks a file against other notebooks, from reading to writing."""
    with _writable(name) as file, filelock.FileLock(f"{file}.lock"):
        yield


def save(name: str, value: object) -> None:
    """Stores a value, replacing the previous one."""
    with _writable(name) as file:
        machine.write_atomically(file, msgspec.json.encode(value))
