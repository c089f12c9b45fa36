"""The one seam between the core and its additions.

An addition is a folder that can be deleted. Its `__init__.py` holds plain data and imports nothing heavy:

    COMMANDS = {"trace": ("perfkit.trace.command:trace", "Read a trace of PyTorch's profiler")}
    NOTEBOOK = {"trace": "perfkit.trace.panel:trace"}
    SOURCES = {"sim": "perfkit.simulate.source:Simulated"}
    SECTIONS = {"article": "perfkit.simulate.article:sections"}

`COMMANDS` have the line for `perfkit --help`, too. `SOURCES` of runs are named by the prefix of a device,
such as `sim:v100`. `SECTIONS` are functions from the runs of a session to further contents of its report. The
core asks for the tables of all additions here and loads what is named when it is used.
"""

import importlib
import importlib.util
from functools import cache
from types import ModuleType
from typing import Any

NAMES = ("trace", "inside", "scripts", "simulate", "search", "puzzles")


@cache
def present() -> tuple[ModuleType, ...]:
    """The additions whose folder is there."""
    names = [f"perfkit.{name}" for name in NAMES]
    return tuple(importlib.import_module(name) for name in names if importlib.util.find_spec(name))


def table(name: str) -> dict[str, Any]:
    """The entries of all additions in their tables of this name, such as `COMMANDS`."""
    return {key: entry for module in present() for key, entry in getattr(module, name, {}).items()}


def load(place: str) -> Any:
    """The object at `module:attribute`."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)
