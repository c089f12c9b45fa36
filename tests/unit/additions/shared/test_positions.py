"""Lines of instructions, also of those of which Python knows none."""

import sys

from perfkit.additions.shared.positions import line_before, line_of
from perfkit.additions.shared.sampler import Sampler


def test_an_instruction_without_a_line_is_part_of_the_loop_that_it_ends():
    """Python 3.11 has such a jump at the end of this loop, and looks at alarms there."""

    def look_up(words, known):
        ids = []
        for word in words:
            if word in known:
                ids.append(known[word])
        return ids

    first = look_up.__code__.co_firstlineno
    ranges = list(look_up.__code__.co_lines())
    without = [start for start, _, line in ranges if line is None] or [ranges[-1][0]]
    assert {line_before(look_up.__code__, at) for at in without} <= {*range(first, first + 6)}
    known = [line for _, _, line in ranges if line]
    assert [line_before(look_up.__code__, start) for start, _, line in ranges if line] == known


def test_a_place_has_a_line_where_python_knows_none():
    """A garbage collection may begin at such an instruction, as at any other."""
    found = {"sys": sys}
    exec(compile("def here():\n    return sys._getframe()", "/home/me/train.py", "exec"), found)
    here = found["here"]
    here.__code__ = here.__code__.replace(co_linetable=b"")
    frame = here()
    assert frame.f_lineno is None
    assert line_of(frame) == 1
    assert next(Sampler(lambda: "own code").lines(frame)) == "/home/me/train.py:1"
