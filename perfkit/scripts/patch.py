"""A user's own files with some switches set: edits at the calls that were seen while their script trained.

Pure: source text, sites and switches in; new source text and refusals out. Nothing is run or written here.
"""

import difflib
import io
import os
import re
import tokenize
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfkit.recipe import Value, switches
from perfkit.scripts.patch_calls import Site
from perfkit.scripts.patch_edits import Edits
from perfkit.scripts.patch_source import Refused


@dataclass(frozen=True)
class Change:
    """One file, before and after."""

    path: str
    before: bytes
    after: bytes


@dataclass(frozen=True)
class Patch:
    """What to change so that a script has the switches by itself."""

    changes: list[Change]
    arguments: list[str]
    """The script's command line; as it was given, if no option had to change."""
    edits: dict[str, list[str]] = field(default_factory=dict)
    """For each switch that was set, what was changed and where."""
    already: list[str] = field(default_factory=list)
    """Switches for which nothing had to be changed."""
    refused: dict[str, str] = field(default_factory=dict)
    """Switches that need an edit by hand: why, and which."""

    def diff(self, root: str | Path) -> str:
        """A unified diff for `git apply` or `patch -p1`, with paths from `root`; empty without edits."""
        return "".join(_diff(change, os.path.relpath(change.path, root)) for change in self.changes)


def patch(
    settings: Mapping[str, Value],
    sites: Sequence[Site],
    script: str,
    arguments: Sequence[str] = (),
    device: str = "cpu",
    own: Mapping[str, Value] | None = None,
    refused: Mapping[str, str] | None = None,
    read: Callable[[str], bytes] = lambda path: Path(path).read_bytes(),
) -> Patch:
    """The edits that set switches in a user's own files.

    Args:
        settings: switch → value, as for a recipe.
        sites: the calls that were seen while the script trained.
        script: absolute path of the script's main file.
        arguments: the script's command line.
        device: where it trains: `cpu`, `cuda` or `mps`.
        own: the switches as the script sets them already.
        refused: switches that could not be set from outside either, and why.
        read: gives the content of a file.

    Raises:
        PerfkitError: a file is not valid Python.
        OSError: a file cannot be read.
    """
    planner = Edits(settings, sites, script, arguments, device, read)
    result = Patch([], [])
    for name in (name for name in switches() if name in settings):
        if own and own.get(name) == settings[name]:
            result.already.append(name)
            continue
        partner, idle = switches()[name].idle_when or ("", None)
        if refused and name in refused and settings.get(partner, idle) == idle:
            result.refused[name] = refused[name]
            continue
        before = {source: len(source.edits) for source in planner.sources.values()}, planner.arguments
        try:
            done = planner.set(name, settings[name])
        except Refused as reason:
            for source in planner.sources.values():
                del source.edits[before[0].get(source, 0) :]
            planner.arguments = before[1]
            result.refused[name] = str(reason)
            continue
        if done or (name == "compile_mode" and "compile" in result.edits):
            result.edits[name] = done
        else:
            result.already.append(name)
    changes = [
        Change(source.path, source.original, source.edited())
        for source in planner.sources.values()
        if source.edits
    ]
    return Patch(changes, planner.arguments, result.edits, result.already, result.refused)


def _diff(change: Change, name: str) -> str:
    """Lines end at line feeds only, so that carriage returns and form feeds are kept."""
    sides = [re.findall(r"[^\n]*\n|[^\n]+", _text(data)) for data in (change.before, change.after)]
    lines = difflib.unified_diff(sides[0], sides[1], f"a/{name}", f"b/{name}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _text(data: bytes) -> str:
    """A file's text by its own encoding."""
    return data.decode(tokenize.detect_encoding(io.BytesIO(data).readline)[0])
