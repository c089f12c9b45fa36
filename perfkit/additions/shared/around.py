"""What is around a line that takes time: its function or loop, which often goes with the line."""

import ast
import functools
import linecache
import os
from collections.abc import Collection, Iterator
from typing import NamedTuple

from msgspec import structs

from perfkit.additions.shared.lines import Line, Spot, Stack, Times

_LEAST = 1.1  # times as long as the line: what is around it is named
_ENTRIES = ("__", "<")  # how the names of functions begin that are called by torch, or are a whole script


class Loop(NamedTuple):
    """A loop by its file, and by its first and last line."""

    file: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"the loop at {os.path.basename(self.file)}:{self.first}"

    def has(self, spot: Spot) -> bool:
        return spot.file == self.file and self.first <= spot.line <= self.last


class Function(NamedTuple):
    """A function by its file and its name."""

    file: str
    name: str

    def __str__(self) -> str:
        return self.name.rpartition("<locals>.")[2]

    def has(self, spot: Spot) -> bool:
        return (spot.file, spot.function) == self


def with_around(line: Line, times: Times, outside: Collection[str] = ()) -> Line:
    """A line with its function or the loop in which it runs: the longer one that has no other part of a step.

    The loop over the batches of a training has, and so does its function. Parts `outside` of steps do not
    count: what makes a sample is also called in evaluations.
    """
    stacks = [stack for part, stack in times if part == line.part]
    around = dict.fromkeys(whole for stack in stacks for whole in _around(line, stack))  # a function first
    longest, longest_s = None, _LEAST * line.seconds
    for whole in around:
        seconds_of = _seconds(whole, times)
        if {*seconds_of} <= {line.part, *outside} and seconds_of[line.part] >= longest_s:
            longest, longest_s = whole, seconds_of[line.part]
    return structs.replace(line, around=str(longest), around_s=longest_s) if longest else line


def _around(line: Line, stack: Stack) -> Iterator[Loop | Function]:
    """The function of a line in a stack, and the innermost loop around the line or around a caller of it."""
    places = [spot.place for spot in stack]
    if (line.file, line.line) not in places:
        return
    *callers, own = stack[: places.index((line.file, line.line)) + 1]
    if not own.function.rpartition(".")[2].startswith(_ENTRIES):
        yield Function(own.file, own.function)
    for spot in (own, *reversed(callers)):
        around = [loop for loop in _loops(spot.file) if loop.has(spot)]
        if around:
            yield max(around, key=lambda loop: loop.first)
            return


def _seconds(whole: Loop | Function, times: Times) -> dict[str, float]:
    """The seconds in a function or loop, by part."""
    seconds = dict[str, float]()
    for (part, stack), spent in times.items():
        if any(whole.has(spot) for spot in stack):
            seconds[part] = seconds.get(part, 0.0) + spent
    return seconds


@functools.cache
def _loops(file: str) -> list[Loop]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):  # such as a template
        return []
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While)]
    return [Loop(file, loop.lineno, loop.end_lineno or loop.lineno) for loop in loops]
