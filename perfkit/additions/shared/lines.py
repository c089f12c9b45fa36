"""Finds the lines of the user's code that take time, by looks at the stack: nothing in it is timed."""

import atexit
import contextlib
import dis
import functools
import linecache
import os
import re
import signal
import sys
import threading
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import CodeType, FrameType
from typing import NamedTuple

import msgspec

from perfkit.additions.shared.clock import clock, own_time
from perfkit.process.failures import is_users

EVERY_S = 0.003  # seconds between two looks
SWITCH_S = 1e-6  # how long a thread runs on when another one wants to look at it: the shortest possible
_PATIENCE_S = 3e-4  # the same for a thread that also looks at itself: longer than a look by another thread
_TRIES = 5  # attempts to look at a thread that keeps running
_LEAST = 0.03  # of all time: the least share of a line that is listed
_MOST = 0.5  # of a line's time: a called line with a larger share is named instead
_MANY = 3  # calls of a function in a step, from one loop, that are worth naming
_NEARLY_ALL = 0.9  # of a line's time
_writers = set[int]()  # files to which signals are written for looks; forks inherit those of their parent
_END = b"\0"  # no signal has this number
# Library functions that only call other functions.
_WRAPPERS = ("Module._wrapped_call_impl", "Module._call_impl", "BatchSampler.__iter__")
_PIPELINES = ("Compose.__call__", "Compose.forward", "Transform.forward", "StandardTransform.__call__")
_IMAGES = os.sep.join(("torchvision", "datasets", ""))  # their `__getitem__` reads a file, then transforms it
_LOADER = os.sep.join(("torch", "utils", "data", ""))
_LOADS = (f"{_LOADER}dataloader.py", os.path.join(_LOADER, "_utils", "fetch.py"))  # files of such functions
_WORKER = os.path.join(_LOADER, "_utils", "worker.py")
_OWN_FOLDER = f"{os.sep}perfkit{os.sep}"


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
PartAndStack = tuple[str, Stack]  # a part of a step, and the stack in it
Times = dict[PartAndStack, float]  # seconds by look
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


class Sampler:
    """Looks at the stack of a thread. `times` has the seconds between looks, by look.

    Seconds are counted in whole intervals, so a late look, as after a garbage collection, takes nothing
    from the lines before. `part` returns the part of the step; `place` maps a file to the user's.
    """

    def __init__(self, part: Callable[[], str], place: Callable[[str], str] = lambda file: file) -> None:
        self.times: Times = defaultdict(float)
        self.part = part
        self._place = place
        self._files: dict[str, str] = {}

    def taken(self) -> Times:
        """The times since the last call; looks go on meanwhile."""
        times, self.times = self.times, defaultdict(float)
        return times

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Looks at the thread that enters the context, while it is active."""
        with _Alarm(self).ringing() if self._may_interrupt() else self._by_a_thread():
            yield

    def _may_interrupt(self) -> bool:
        """Whether signals can be used: in the main thread, if the script does not use the alarm itself."""
        is_main = threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGALRM)
        is_left_over = getattr(handler, "__module__", "") == __name__  # from the parent of a fork
        is_free = handler == signal.SIG_DFL or is_left_over
        is_set = any(signal.getitimer(signal.ITIMER_REAL))
        return is_main and is_free and not is_set and not _writes_signals()

    @contextlib.contextmanager
    def _by_a_thread(self) -> Iterator[None]:
        """Looks from another thread, if this one cannot be interrupted; may miss short lines of Python."""
        thread_id = threading.get_ident()
        end = threading.Event()

        def look() -> None:
            before = clock()
            while not end.wait(EVERY_S):
                before = self.look(thread_id, before)

        thread = threading.Thread(target=look, daemon=True)
        thread.start()  # before anything is changed, as this may fail
        interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        try:
            yield
        finally:
            end.set()
            thread.join()
            sys.setswitchinterval(interval)

    def look(self, thread_id: int, before: float) -> float:
        """Looks at a thread, for the whole intervals since `before`; returns the end of the last one.

        The time of a failed look counts for the next one.
        """
        for _try in range(_TRIES):
            if thread_id not in sys._current_frames():  # it has ended
                return clock()
            if look := self.look_at(thread_id):
                return self.note([look], before, clock())
        return before

    def look_at(self, thread_id: int) -> PartAndStack | None:
        """A look at a thread; None if it ran on meanwhile, so its stack may not belong to its part."""
        position = self._position(thread_id)
        part, frame, _instruction = position
        stack = self.stack(frame) if frame else ()
        return (part, stack) if self._position(thread_id) == position else None

    def note(self, looks: Collection[PartAndStack], before: float, now: float) -> float:
        """Divides the whole intervals from `before` to `now` among looks; returns the last one's end."""
        passed = max(0.0, EVERY_S * ((now - before) // EVERY_S))  # `own_time` may go back by a wait
        for look in looks:
            self.times[look] += passed / len(looks)
        return before + passed

    def _position(self, thread_id: int) -> tuple[str, FrameType | None, int]:
        frame = sys._current_frames().get(thread_id)
        return self.part(), frame, frame.f_lasti if frame else 0

    def stack(self, frame: FrameType) -> Stack:
        """The user's lines of a stack, the innermost last; within a loader, only those that it calls."""
        spots = list[Spot]()
        calls = ""
        is_outside = False
        for caller, line in traceback.walk_stack(frame):
            code = caller.f_code
            if caller is frame and dis.opname[code.co_code[caller.f_lasti]] == "RESUME":
                continue  # it has only just been called, so its caller took the time
            if file := self.users(code.co_filename):
                number = line_at(code, caller.f_lasti, line)
                spots.append(Spot(file, number, code.co_qualname, "" if spots else calls))
            elif spots and _LOADER in code.co_filename:
                break  # the frames outside are the loop that asks for a batch
            elif code.co_filename.endswith(_WORKER):
                is_outside = True  # the frames outside have started the worker
            elif not (spots or is_outside) and _is_telling(code):
                calls = code.co_qualname
        return tuple(reversed(spots))

    def lines(self, frame: FrameType | None) -> Iterator[str]:
        """The user's lines of a stack, the innermost first: `/home/me/train.py:41`."""
        for caller, _ in traceback.walk_stack(frame):
            if file := self.users(caller.f_code.co_filename):
                yield f"{file}:{line_of(caller)}"

    def users(self, file: str) -> str:
        """The user's name of a user's file; empty for a file of a library."""
        place = self._files.get(file)
        if place is None:
            place = self._files[file] = self._place(os.path.realpath(file)) if is_users(file) else ""
        return place


class _Alarm:
    """Makes the thread that enters look at itself at each alarm: another thread would have to wait for it.

    Python handles an alarm after a call or at a jump back, so not within `a @ b`. But such an operator lets
    other threads run, and one of these looks meanwhile.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._thread_id = threading.get_ident()
        self._before = own_time()  # the time until then is noted
        self._began = clock()
        self._handled = 0.0  # when the last alarm was
        self._meanwhile: list[PartAndStack] = []  # what the other thread has seen since then

    @contextlib.contextmanager
    def ringing(self) -> Iterator[None]:
        """Rings at each interval, while it is active."""
        look: Callable[..., None] = self._look
        if "torch._dynamo" in sys.modules:  # it would compile `look` when that interrupts a compiled model
            look = sys.modules["torch"].compiler.disable(look)
        signal.signal(signal.SIGALRM, look)
        signal.siginterrupt(signal.SIGALRM, False)
        # At exit Python releases `look`, and then an alarm would kill the process.
        atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)
        self._began = clock()
        signal.setitimer(signal.ITIMER_REAL, EVERY_S, EVERY_S)
        try:
            with _at_signals(self._look_meanwhile):
                yield
        finally:
            if signal.getsignal(signal.SIGALRM) == look:  # else the script now uses the alarm itself
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, signal.SIG_IGN)  # drops a pending alarm
                signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def _look(self, _number: int, frame: FrameType | None) -> None:
        self._handled = clock()
        if frame is not None:
            looks = self._meanwhile or [(self._sampler.part(), self._sampler.stack(frame))]
            self._before = self._sampler.note(looks, self._before, own_time())
            self._meanwhile.clear()

    def _look_meanwhile(self) -> None:
        newest = self._began + EVERY_S * ((clock() - self._began) // EVERY_S)
        if self._handled < newest and (latest := self._sampler.look_at(self._thread_id)):
            self._meanwhile.append(latest)


def _writes_signals() -> bool:
    """Whether the script has signals written to a file, as event loops do: alarms would fill it."""
    file = signal.set_wakeup_fd(-1)
    if file in (-1, *_writers):  # a worker that was forked during looks has that of its parent
        return False
    _restore_signals(file)
    return True


def _restore_signals(file: int) -> None:
    """Restores a script's file for signals, if it is still open; its warning setting cannot be read back."""
    with contextlib.suppress(OSError, ValueError):
        signal.set_wakeup_fd(file, warn_on_full_buffer=False)


@contextlib.contextmanager
def _at_signals(call: Callable[[], None]) -> Iterator[None]:
    """Calls a function from another thread at each signal, as soon as this thread lets it run."""
    reader, writer = os.pipe()

    def follow() -> None:
        while os.read(reader, 1) != _END:
            call()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()  # before anything is changed, as this may fail
    os.set_blocking(writer, False)
    _writers.add(writer)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_PATIENCE_S)
    try:
        yield
    finally:
        newest = signal.set_wakeup_fd(-1)
        if newest != writer:  # the script has set another file meanwhile
            _restore_signals(newest)
        os.set_blocking(writer, True)
        os.write(writer, _END)  # closing the file is not enough: forked workers have a copy of it
        thread.join()
        sys.setswitchinterval(interval)
        _writers.discard(writer)
        os.close(reader)
        os.close(writer)


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


def _is_telling(code: CodeType) -> bool:
    """Whether the name of a library function says what a line does."""
    is_wrapper = code.co_qualname in _WRAPPERS + _PIPELINES or "<locals>" in code.co_qualname
    is_wrapper |= code.co_name == "__getitem__" and _IMAGES in code.co_filename
    return not (is_wrapper or code.co_filename.endswith(_LOADS) or _OWN_FOLDER in code.co_filename)


def text_at(place: str) -> str:
    """The text of a line such as `/home/me/train.py:41`."""
    file, _, line = place.rpartition(":")
    return linecache.getline(file, int(line or 0)).strip()


def places(pattern: str, file: str) -> Iterator[str]:
    """The lines of a file that match a pattern, as `train.py:41`."""
    for number, line in enumerate(linecache.getlines(file), 1):
        if re.search(pattern, line):
            yield f"{os.path.basename(file)}:{number}"


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
