"""What a learner has done, kept in the data folder for other notebooks and later days."""

from typing import Any, TypeVar

import msgspec

from perfkit import machine
from perfkit.errors import InvalidValue

T = TypeVar("T")


def load(name: str, kind: type[T], remedy: str) -> T | None:
    """What is kept in a file, None before anything was; an `InvalidValue` if it is damaged."""
    file = machine.data_folder() / name
    if not file.is_file():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise InvalidValue(f"{file} is damaged: {error}", f"Move it away; {remedy}") from error


def save(name: str, value: Any) -> None:
    """Keeps a value in the place of the one before."""
    file = machine.data_folder() / name
    file.parent.mkdir(parents=True, exist_ok=True)
    machine.write_atomically(file, msgspec.json.encode(value))
