"""Lanes in a notebook."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from IPython.display import HTML

from perfkit import machine
from perfkit.additions.lanes import MEASURE, sides
from perfkit.additions.lanes.figures import Bar, Lanes, Side
from perfkit.additions.looking import prepared
from perfkit.additions.trace.profile import new_file
from perfkit.errors import InvalidValue, one_of
from perfkit.notebook.shown import with_line
from perfkit.recipe import Recipe
from perfkit.studies.sources import Progress

STEPS, FIRST = 36, 10
"""Steps that are profiled, and the first of the two that are shown: what runs in them was launched, and what
workers load in them is taken, within the recording."""
Given = Mapping[str, Any]
"""A title for each side, and its switches, a trace, a `Side`, or its rows of bars."""


def folder() -> Path:
    """Where the recorded pictures of the chapters are."""
    return machine.shipped("recordings") / "lanes"


def lanes(which: str | Given, workload: str | None = None, **where: Any) -> HTML:
    """Before above after, two steady steps of each, on one axis of time.

    Args:
        which: the number of a chapter, for its recorded picture; or one or two titles with what they show:
            switches (a training is measured, or simulated), a trace file, or rows of bars
            `(start_ms, end_ms, kind, batch)` and the number of `steps`.
        workload: of the switches.
        where: as for `perfkit.profile`.

    Raises:
        InvalidValue: there is no such recording, or too many sides.
    """
    if isinstance(which, str):
        return HTML(recorded(which).svg())
    if not 1 <= len(which) <= 2:
        raise InvalidValue(f"{len(which)} sides were given", "Give one, or two: before and after")
    return HTML(with_line(lambda progress: made(which, workload, where, progress)).svg())


def recorded(chapter: str) -> Lanes:
    """The recorded picture of a chapter."""
    names = sorted(file.stem for file in folder().glob("*.json"))
    if chapter not in names:
        raise one_of(chapter, names, "recorded picture")
    return msgspec.json.decode((folder() / f"{chapter}.json").read_bytes(), type=Lanes)


def made(which: Given, workload: str | None, where: Given, progress: Progress) -> Lanes:
    """The picture of what was given."""
    found = []
    for number, (title, one) in enumerate(which.items()):
        with progress.part(number, len(which)):
            found.append(_side(title, one, workload, where, progress))
    return Lanes(found)


def _side(title: str, one: Any, workload: str | None, where: Given, progress: Progress) -> Side:
    if isinstance(one, Side):
        return one
    if isinstance(one, str | Path):
        return sides.of_trace(one, title)
    if any(name in one for name in ("worker", "host", "copy", "kernels")):
        return _by_hand(title, one)
    recipe = Recipe.from_dict({**Recipe().to_dict(), **one})
    with prepared(workload, recipe, where, progress) as (source, used):
        if source.plan.device == "cpu":
            return source.look(used, MEASURE, title=title)  # type: ignore[no-any-return]
        path = new_file()
        source.look(used, "profile", path=str(path), wait=1, warmup=4, active=STEPS, stacks=False)
        side = sides.of_trace(path, title, FIRST)
        return msgspec.structs.replace(side, samples=used.batch_size * used.accumulation)


def _by_hand(title: str, given: Given) -> Side:
    """Rows of bars that a cell has noted, of one step or as many as `steps` says."""
    rows = {name: [Bar(*bar) for bar in row] for name, row in given.items() if name != "steps"}
    ends = [bar.end_ms for row in rows.values() for bar in row]
    steps = given.get("steps", 1)
    return Side(title=title, step_ms=max(ends, default=0.0) / steps, steps=steps, rows=rows)
