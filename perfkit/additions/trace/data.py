"""Reads the tables of words, names and formats in this folder, and its templates."""

import re
from functools import cache
from typing import Any

import jinja2

from perfkit import lookup
from perfkit.show import units


@cache
def table(name: str) -> dict[str, Any]:
    """The contents of `NAME.toml`."""
    return lookup.toml(__package__, name)


@cache
def names(group: str) -> dict[str, re.Pattern[str]]:
    """The regular expressions of a group of names.toml."""
    return {name: re.compile("".join(pattern)) for name, pattern in table("names")[group].items()}


def us(value: float | None) -> str:
    """A time in µs as text with a unit."""
    return units.duration(None if value is None else value / 1e6)


def filled(template: str, **facts: object) -> str:
    """The text of a filled template, with single spaces. The caller escapes it when it is shown."""
    environment = jinja2.Environment(loader=jinja2.PackageLoader(__package__, "."), autoescape=False)
    environment.filters |= {"us": us, "percent": units.percent, "clean": lambda name: units.clean(name, 60)}
    return " ".join(environment.get_template(template).render(**facts).split())
