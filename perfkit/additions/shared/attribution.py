"""Attributes the seconds of looks at stacks to the lines of the user's code that are worth naming."""

import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from perfkit.additions.shared.positions import Place, Spot, Stack, text_at
from perfkit.additions.shared.sampler import PartAndStack, Times

_LEAST = 0.03  # of all time: the least share of a line that is listed
_MOST = 0.5  # of a line's time: a called line with a larger share is named instead
_MANY = 3  # calls of a function in a step, from one loop, that are worth naming
_NEARLY_ALL = 0.9  # of a line's time

Stacks = dict[Stack, float]  # seconds by stack, in one part of the steps


class TimedLine(msgspec.Struct, frozen=True):
    """A line, and the seconds that it took in a part of the steps, including everything that it called."""

    part: str
    file: str
    line: int
    seconds: float
    calls: list[str] = []  # library functions that it was in, the most frequent first
    text: str = ""  # the line itself
    called: str = ""  # `in f, called 25 times a step from train.py:60`
    times: int = 0  # 25, in this example
    within: str = ""  # `in Average.update (average.py:19)`: what takes its time, if no line there has most
    around: str = ""  # `Loss.match` or `the loop at loss.py:33`, if it takes longer
    around_s: float = 0.0

    @property
    def where(self) -> str:
        """`train.py:41`."""
        return f"{os.path.basename(self.file)}:{self.line}"

    @property
    def with_function(self) -> str:
        """`where`, with the function that it is in, or that it calls, if one is known."""
        if self.called:
            return f"{self.where} {self.called}"
        return f"{self.where}, {self.within}" if self.within else self.where

    @property
    def calls_layer(self) -> bool:
        """Whether it calls a module of torch, as a call of a model does."""
        return any(name.endswith(".forward") for name in self.calls)


def timed_lines(times: Mapping[PartAndStack, float], passes: Collection[Place] = ()) -> list[TimedLine]:
    """The lines that took the most time, the largest first: the innermost with most of their callers' time.

    A line that calls several parts of a step, or a pass, is a loop: the lines that it calls are listed, and
    the loop itself only for the time that it spends outside of them.
    """
    by_part = defaultdict[str, Stacks](dict)
    parts_below = defaultdict[Stack, set[str]](set)
    for (part, stack), seconds in times.items():
        if stack:
            by_part[part][stack] = seconds
        for depth in range(1, len(stack)):
            parts_below[stack[:depth]].add(part)
    loops = {callers[-1].place for callers, parts in parts_below.items() if len(parts) > 1} | {*passes}
    least = _LEAST * sum(times.values())
    return merged(line for part, stacks in by_part.items() for line in _named(part, stacks, least, loops))


def merged(lines: Iterable[TimedLine]) -> list[TimedLine]:
    """Each line once, with the seconds of all callers or loader workers; the largest first."""
    by_place: dict[tuple[str, str, int], TimedLine] = {}
    for line in lines:
        place = line.part, line.file, line.line
        before = by_place[place].seconds if place in by_place else 0.0
        by_place[place] = msgspec.structs.replace(line, seconds=before + line.seconds)
    return sorted(by_place.values(), key=lambda line: -line.seconds)


def _named(part: str, stacks: Stacks, least: float, loops: Collection[Place]) -> Iterator[TimedLine]:
    """The outermost line of each stack, or the lines that it calls if one of them has most of its time."""
    by_line = defaultdict[Place, Stacks](dict)
    for stack, seconds in stacks.items():
        by_line[stack[0].place][stack] = seconds
    for place, group in by_line.items():
        total = sum(group.values())
        if total < least:
            continue
        inner = _seconds_within(group)
        most = max(inner, key=inner.__getitem__, default=place)
        is_loop = place in loops
        if not inner or not (is_loop or inner[most] >= _MOST * total):
            yield _timed_line(part, group)
            continue
        yield from _named(part, _called_by(group, most), least, loops)
        own: Stacks = {stack: seconds for stack, seconds in group.items() if len(stack) == 1}
        if is_loop and own and sum(own.values()) >= least:
            yield _timed_line(part, own)


def _seconds_within(group: Stacks) -> dict[Place, float]:
    """The seconds of the lines that the outermost line of these stacks calls, except its own lambdas."""
    seconds_of = defaultdict[Place, float](float)
    for (outermost, *within), seconds in group.items():
        for place in {spot.place: None for spot in within if spot.place != outermost.place}:
            seconds_of[place] += seconds
    return seconds_of


def _called_by(group: Stacks, most: Place) -> Stacks:
    """The stacks below their outermost line, from one place on, so that all its callers count as one."""
    below: Stacks = defaultdict(float)
    for (_, *within), seconds in group.items():
        places = [spot.place for spot in within]
        start = places.index(most) if most in places else 0
        if within:
            below[tuple(within[start:])] += seconds
    return below


def _timed_line(part: str, group: Stacks) -> TimedLine:
    """The outermost line of these stacks, with the library functions that it was in."""
    total = sum(group.values())
    by_function = defaultdict[str, float](float)  # seconds; functions in C have no name
    for stack, seconds in group.items():
        by_function[stack[-1].calls] += seconds
    unnamed_s = by_function.pop("", 0.0)
    largest_first = sorted(by_function, key=by_function.__getitem__, reverse=True)
    names = largest_first[:4] if total > 2 * unnamed_s else []
    file, line = next(iter(group))[0].place
    text = text_at(f"{file}:{line}")
    return TimedLine(part, file, line, total, names, text, within=_function_within(group))


def _function_within(group: Stacks) -> str:
    """The user's function that a line calls for most of its time, with the line that takes longest in it."""
    by_function = defaultdict[tuple[str, str], dict[int, float]](lambda: defaultdict(float))
    for (outermost, *within), seconds in group.items():
        first = next((spot for spot in within if spot.place != outermost.place), None)
        if first:
            by_function[first.file, first.function][first.line] += seconds
    for (file, function), lines_of in by_function.items():
        if sum(lines_of.values()) >= _MOST * sum(group.values()):
            dearest = max(lines_of, key=lines_of.__getitem__)
            return f"in {function} ({os.path.basename(file)}:{dearest})"
    return ""


def called(line: TimedLine, times: Times, calls: Counter[tuple[str, str]]) -> TimedLine:
    """A line, with how often a loop calls its function in a step, if one does; `calls`: of all functions."""
    by_loop = defaultdict[tuple[str, int, Spot | None], float](float)  # by function, its calls, and the loop
    for (part, stack), seconds in times.items():
        places = [spot.place for spot in stack]
        if part == line.part and (line.file, line.line) in places:
            *callers, own = stack[: places.index((line.file, line.line)) + 1]
            count = calls[own.file, own.function]
            loops = [spot for spot in callers if 2 * calls[spot.file, spot.function] <= count]
            by_loop[own.function, count, loops[-1] if loops else None] += seconds
    most = max(by_loop, key=by_loop.__getitem__)
    name, count, loop = most
    if loop is None or count < _MANY or by_loop[most] < _NEARLY_ALL * sum(by_loop.values()):
        return line
    where = f"{os.path.basename(loop.file)}:{loop.line}"
    words = f"in {name.rpartition('<locals>.')[2]}, called {count:,} times a step from {where}"
    return msgspec.structs.replace(line, called=words, times=count)
