"""A learner's results, kept in the data folder for other notebooks and later days."""

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

import filelock
import msgspec

from perfkit import machine
from perfkit.errors import InvalidValue, PerfkitError, explain

T = TypeVar("T")


def load(name: str, kind: type[T], remedy: str) -> T | None:
    """The value kept in a file, None if there is no file yet; an `InvalidValue` if it is damaged."""
    file = machine.data_folder() / name
    if not file.is_file():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise InvalidValue(f"{file} is damaged: {error}", f"Move it away; {remedy}") from error


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """Locks a file against other notebooks, from reading to writing."""
    file = machine.data_folder() / name
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{file}.lock"):
            yield
    except OSError as problem:
        raise PerfkitError(*explain(problem, file)) from problem


def save(name: str, value: Any) -> None:
    """Stores a value, replacing the previous one."""
    file = machine.data_folder() / name
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        machine.write_atomically(file, msgspec.json.encode(value))
    except OSError as problem:
        raise PerfkitError(*explain(problem, file)) from problem
