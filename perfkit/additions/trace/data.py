"""The tables of words, names and formats in this folder."""

import re
import tomllib
from functools import cache
from importlib import resources
from typing import Any


@cache
def table(name: str) -> dict[str, Any]:
    """What is in `NAME.toml`."""
    text = resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def names(group: str) -> dict[str, re.Pattern[str]]:
    """The regular expressions of a group of names.toml."""
    return {name: re.compile("".join(pattern)) for name, pattern in table("names")[group].items()}
