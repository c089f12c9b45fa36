"""The one seam between the core and its additions.

An addition is a folder in `perfkit/additions/` that can be deleted. Its `__init__.py` holds plain data and
imports nothing heavy. docs/ARCHITECTURE.md says what each table holds, and who asks for it:

    COMMANDS = {"trace": ("perfkit.additions.trace.command:trace", "Read a trace of PyTorch's profiler")}
    NOTEBOOK = {"trace": "perfkit.additions.trace.panel:trace"}
    PUBLIC = {"profile": "perfkit.additions.trace.profile:profile"}
    SOURCES = {"sim": "perfkit.additions.simulate.source:SimulatedSource"}
    PROOFS = {"parity": "perfkit.additions.parity.study:parity"}
    PICTURES = {"lanes": "perfkit.additions.lanes.panel:of_runs"}
    EDITS = {"patch": "perfkit.additions.patch.edits:make"}
    LAUNCHERS = {"torchrun": "perfkit.additions.ranks.command:RANKS"}
"""

import importlib
import pkgutil
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from perfkit import lookup

ADDITIONS = Path(__file__).with_name("additions")  # this folder may be missing


@cache
def present() -> tuple[ModuleType, ...]:
    """The additions whose folder exists. A plain file next to them is not an addition."""
    names = sorted(folder.name for folder in pkgutil.iter_modules([str(ADDITIONS)]) if folder.ispkg)
    return tuple(importlib.import_module(f"perfkit.additions.{name}") for name in names)


def table(name: str) -> dict[str, Any]:
    """The entries of all additions in the table of this name; the caller loads those that it uses."""
    entries: dict[str, Any] = {}
    for module in present():
        entries |= getattr(module, name, {})
    return entries


def first_answer(name: str, *arguments: Any, **named: Any) -> Any:
    """The answer of the first addition in the table of this name that has one; None where none has."""
    for reference in table(name).values():
        answer = lookup.load(reference)(*arguments, **named)
        if answer is not None:
            return answer
    return None
