"""Looks at the stack of a thread in short intervals, which tells what takes time: nothing in it is timed."""

import atexit
import contextlib
import dis
import os
import signal
import sys
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from types import CodeType, FrameType

from perfkit.additions.shared.clock import clock, own_time
from perfkit.additions.shared.positions import Spot, Stack, line_at, line_of
from perfkit.process.failures import is_users

EVERY_S = 0.003  # seconds between two looks
SWITCH_S = 1e-6  # how long a thread runs on when another one wants to look at it: the shortest possible
_PATIENCE_S = 3e-4  # the same for a thread that also looks at itself: longer than a look by another thread
_TRIES = 5  # attempts to look at a thread that keeps running
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

PartAndStack = tuple[str, Stack]  # a part of a step, and the stack in it
Times = dict[PartAndStack, float]  # seconds


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


def _is_telling(code: CodeType) -> bool:
    """Whether the name of a library function says what a line does."""
    is_wrapper = code.co_qualname in _WRAPPERS + _PIPELINES or "<locals>" in code.co_qualname
    is_wrapper |= code.co_name == "__getitem__" and _IMAGES in code.co_filename
    return not (is_wrapper or code.co_filename.endswith(_LOADS) or _OWN_FOLDER in code.co_filename)
