"""What is around a line that takes time: its function or loop, which often goes with the line."""

import ast
import functools
import linecache
import os
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from msgspec import structs

from perfkit.additions.shared.attribution import TimedLine
from perfkit.additions.shared.positions import Place, Stack
from perfkit.additions.shared.sampler import Times

_LEAST, _MOST = 1.1, 2.0  # times as long as the line: what is around it is named
_ENTRIES = ("__", "<")  # how the names of functions begin that are called by torch, or are a whole script
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
_LOOPS = ast.For | ast.AsyncFor | ast.While


class Block(NamedTuple):
    """A function or a loop by its file, its first and its last line."""

    name: str
    file: str
    first: int
    last: int
    is_loop: bool

    def has(self, place: Place) -> bool:
        return place[0] == self.file and self.first <= place[1] <= self.last


def with_around(
    line: TimedLine, times: Times, passes: Collection[Place], outside: Collection[str] = ()
) -> TimedLine:
    """A line with its function or the loop in which it runs: the longer one that has no other part of a step.

    `passes` are the lines by which a step calls its passes, and what calls these. Parts `outside` of steps do
    not count: what makes a sample is also called in evaluations.
    """
    stacks = [stack for part, stack in times if part == line.part]
    longest, longest_s = None, _LEAST * line.seconds
    blocks = dict.fromkeys(block for stack in stacks for block in _around(line, stack))  # functions first
    for block in blocks:
        seconds_of = _seconds(block, times)
        is_alone = {*seconds_of} <= {line.part, *outside} and not any(map(block.has, passes))
        if is_alone and longest_s <= seconds_of[line.part] <= _MOST * line.seconds:
            longest, longest_s = block, seconds_of[line.part]
    return structs.replace(line, around=longest.name, around_s=longest_s) if longest else line


def _around(line: TimedLine, stack: Stack) -> Iterator[Block]:
    """The function of a line in a stack, and the innermost loop around the line or around a caller of it."""
    places = [spot.place for spot in stack]
    if (line.file, line.line) not in places:
        return
    *callers, own = stack[: places.index((line.file, line.line)) + 1]
    functions = [block for block in _blocks(own.file) if block.has(own.place) and not block.is_loop]
    if functions and not own.function.rpartition(".")[2].startswith(_ENTRIES):
        innermost = max(functions, key=lambda block: block.first)
        yield innermost._replace(name=own.function.rpartition("<locals>.")[2])
    for spot in (own, *reversed(callers)):
        loops = [block for block in _blocks(spot.file) if block.has(spot.place) and block.is_loop]
        if loops:
            yield max(loops, key=lambda block: block.first)
            return


def mentions(name: str, file: str, line: int) -> list[int]:
    """The lines of the function around a line, or else of its file, that mention a name."""
    functions = [block for block in _blocks(file) if block.has((file, line)) and not block.is_loop]
    lines = linecache.getlines(file)
    innermost = max(functions, key=lambda block: block.first, default=Block("", file, 1, len(lines), False))
    numbers = range(innermost.first, innermost.last + 1)
    return [number for number in numbers if re.search(rf"\b{name}\b", linecache.getline(file, number))]


def _seconds(block: Block, times: Times) -> dict[str, float]:
    """The seconds in a block, by part."""
    seconds = dict[str, float]()
    for (part, stack), spent in times.items():
        if any(block.has(spot.place) for spot in stack):
            seconds[part] = seconds.get(part, 0.0) + spent
    return seconds


@functools.cache
def _blocks(file: str) -> list[Block]:
    """The functions and loops of a file."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):  # such as a template
        return []
    blocks = list[Block]()
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS):
            blocks.append(Block(node.name, file, node.lineno, node.end_lineno or node.lineno, is_loop=False))
        elif isinstance(node, _LOOPS):
            name = f"the loop at {os.path.basename(file)}:{node.lineno}"
            blocks.append(Block(name, file, node.lineno, node.end_lineno or node.lineno, is_loop=True))
    return blocks
