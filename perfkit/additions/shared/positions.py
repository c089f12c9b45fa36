"""Positions in the user's code: the lines of instructions, of frames, and of a whole stack."""

import dis
import functools
import linecache
import os
import re
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import NamedTuple

Place = tuple[str, int]  # a file and a line


class Spot(NamedTuple):
    """A running line of the user's code, its function, and the library function that it called, if any."""

    file: str
    line: int
    function: str
    calls: str = ""

    @property
    def place(self) -> Place:
        return self.file, self.line


Stack = tuple[Spot, ...]  # from the outermost line to the innermost


def line_at(code: CodeType, at: int, line: int | None) -> int:
    """The line of an instruction; for the jump back of a `for`, that of the loop.

    Python handles an alarm after a call or at a jump back, where any line of the loop may have taken time.
    """
    if dis.opname[code.co_code[at]] == "JUMP_BACKWARD":
        line = _loop_of(code, at) or line
    return line or line_before(code, at)


@functools.cache
def _loop_of(code: CodeType, at: int) -> int | None:
    """The line of the `for` to which an instruction jumps back; None for other loops."""
    by_offset = {instruction.offset: instruction for instruction in dis.get_instructions(code)}
    target = by_offset[by_offset[at].argval]
    return target.positions.lineno if target.opname == "FOR_ITER" and target.positions else None


def line_of(frame: FrameType) -> int:
    """The line under way in a frame, also where Python knows none: `frame.f_lineno` may be None."""
    return frame.f_lineno or line_before(frame.f_code, frame.f_lasti)


def line_before(code: CodeType, at: int) -> int:
    """The last line before an instruction that has none, such as the jump back of a loop."""
    numbers = [line for start, _, line in code.co_lines() if line and start <= at]
    return numbers[-1] if numbers else code.co_firstlineno


def text_at(place: str) -> str:
    """The text of a line such as `/home/me/train.py:41`."""
    file, _, line = place.rpartition(":")
    return linecache.getline(file, int(line or 0)).strip()


def places(pattern: str, file: str) -> Iterator[str]:
    """The lines of a file that match a pattern, as `train.py:41`."""
    for number, line in enumerate(linecache.getlines(file), 1):
        if re.search(pattern, line):
            yield f"{os.path.basename(file)}:{number}"
