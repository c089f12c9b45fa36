"""The one seam between the core and its additions.

An addition is a folder that can be deleted. Its `__init__.py` holds plain data and imports nothing heavy:

    COMMANDS = {"trace": ("perfkit.trace.command:trace", "Read a trace of PyTorch's profiler")}
    NOTEBOOK = {"trace": "perfkit.trace.panel:trace"}
    SOURCES = {"sim": "perfkit.simulate.source:Simulated"}
    SECTIONS = ("perfkit.simulate.article:sections",)

The core asks for all of them here and loads what is named when it is used.
"""

import importlib
import importlib.util
from functools import cache
from types import ModuleType
from typing import Any

NAMES = ("trace", "scripts", "simulate", "search", "puzzles")


@cache
def present() -> tuple[ModuleType, ...]:
    """The additions whose folder is there."""
    names = [f"perfkit.{name}" for name in NAMES]
    return tuple(importlib.import_module(name) for name in names if importlib.util.find_spec(name))


def commands() -> dict[str, tuple[str, str]]:
    """Command → (`module:attribute`, the line for `perfkit --help`)."""
    return _merged("COMMANDS")


def notebook_names() -> dict[str, str]:
    """Name in `perfkit.notebook` → `module:attribute`."""
    return _merged("NOTEBOOK")


def sources() -> dict[str, str]:
    """Prefix of a device, such as `sim` in `sim:v100` → `module:attribute` of its source of runs."""
    return _merged("SOURCES")


def sections() -> list[str]:
    """`module:attribute` of functions from the runs of a session to further contents of its report."""
    return [place for module in present() for place in getattr(module, "SECTIONS", ())]


def load(place: str) -> Any:
    """The object at `module:attribute`."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _merged(table: str) -> dict[str, Any]:
    return {name: place for module in present() for name, place in getattr(module, table, {}).items()}
