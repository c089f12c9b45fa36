"""What is found by its name: a table in a package, an object in a module."""

import importlib
import tomllib
from importlib import resources
from typing import Any


def toml(package: str, name: str) -> dict[str, Any]:
    """The contents of `NAME.toml` in a package."""
    return tomllib.loads(resources.files(package).joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def load(reference: str) -> Any:
    """The object at `module:attribute`."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)
