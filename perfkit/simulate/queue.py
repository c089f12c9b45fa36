"""The queue of a GPU: streams that are busy until some time, fed by a host on a virtual clock."""

import collections
from collections.abc import Iterable
from typing import Literal, NamedTuple

from msgspec import Struct

from perfkit.simulate.step import Allocate, Copy, Fetch, Kernel, Operator, Step, Wait

RUN_AHEAD = 1024
"""Launches that the driver queues before the host has to wait."""
COPY_S = 5e-6
"""What starting a copy costs the host, if it does not wait for the copy; assumed."""


class Launch(Struct, frozen=True):
    """The kernels of one operator, in a stream."""

    host_s: float
    """The host's work before the first launch."""
    launch_s: float
    """The host's work for each launch."""
    kernel_s: list[float]
    stream: int = 0


Action = Launch | Fetch | Copy | Wait


class Bar(NamedTuple):
    """What the host or a stream did for an action, from when to when in seconds."""

    action: int
    """Which of a step's actions."""
    what: Literal["host", "launch", "kernel", "copy"]
    """`host` spans all that the host did for the action, and comes last."""
    start: float
    end: float
    stream: int = 0


def actions(step: Step, kernels: Iterable[Kernel], operator_s: float, launch_s: float) -> list[Action]:
    """What the host does in a step: an action for each event that is no allocation, in order.

    `operator_s` is what an operator in eager mode costs the host: Python, dispatch, autograd; `launch_s` what
    a launch costs it. Fused kernels are launched by generated code, without dispatch.
    """
    seconds: dict[int, list[float]] = collections.defaultdict(list)
    for kernel in kernels:
        seconds[kernel.operator].append(kernel.seconds)
    result: list[Action] = []
    for at, event in enumerate(step.events):
        if isinstance(event, Operator):
            dispatch = 0.0 if event.name == "fused" else operator_s
            result.append(Launch(dispatch, launch_s, seconds[at], event.stream))
        elif not isinstance(event, Allocate):
            result.append(event)
    return result


class _Busy(NamedTuple):
    start: float
    end: float
    seconds: float
    """Its own kernel's time; it ends later where another stream slowed it down."""
    stream: int


class Queue:
    """The streams of a GPU. Kernels of two streams share it; copies have an engine of their own.

    Args:
        pinned: bytes/s of a copy from pinned memory.
        pageable: bytes/s from pageable memory, the host's own copy into staging memory included.
    """

    def __init__(self, pinned: float, pageable: float) -> None:
        self.pinned, self.pageable = pinned, pageable
        self.now = 0.0
        """The host's time, which passes only because it waits or works."""
        self.bars: list[Bar] | None = None
        """What was done and when, for a trace; None: it is not noted."""
        self.action = 0
        """Which of a step's actions is under way."""
        self._free: dict[int, float] = collections.defaultdict(float)
        self._engine_free = 0.0
        self._queued: collections.deque[float] = collections.deque(maxlen=RUN_AHEAD)
        self._elsewhere: list[_Busy] = []
        """Kernels that still have to slow another stream down."""

    def wait_until(self, time: float) -> None:
        """The host waits."""
        self.now = max(self.now, time)

    def issue(self, action: Launch | Copy | Wait) -> None:
        """Does what the host does."""
        match action:
            case Launch():
                self.now += action.host_s
                for seconds in action.kernel_s:
                    self._call(action.launch_s)
                    self._run(seconds, action.stream)
            case Copy():
                self._copy(action)
            case Wait(streams=None):
                self.wait_until(self._free[action.stream])
            case Wait(streams=(waiting, awaited)):
                self._free[waiting] = max(self._free[waiting], self._free[awaited])

    def note(self, what: Literal["host", "launch", "kernel", "copy"], start: float, stream: int = 0) -> None:
        """Keeps a bar, if bars are kept: the host's ends now, a stream's when the stream is free."""
        if self.bars is not None:
            end = self.now if what in ("host", "launch") else self._free[stream]
            self.bars.append(Bar(self.action, what, start, end, stream))

    def ends(self) -> float:
        """When everything that is queued now is done."""
        return max(self._free.values(), default=0.0)

    def _call(self, seconds: float) -> None:
        """The host puts something in the queue, once there is room."""
        start = self.now
        if len(self._queued) == RUN_AHEAD:
            self.wait_until(self._queued[0])
        self.now += seconds
        self.note("launch", start)

    def _run(self, seconds: float, stream: int) -> None:
        start = max(self._free[stream], self.now)
        end = start + seconds
        current = [other for other in self._elsewhere if other.end > start]
        for other in current:
            if other.stream != stream and other.start < end:
                end += other.seconds  # the GPU was the other stream's for so long
        self._elsewhere = [other for other in current if other.stream == stream or other.start >= end]
        if len(self._free) > 1:
            self._elsewhere.append(_Busy(start, end, seconds, stream))
        self._free[stream] = end
        self._queued.append(end)
        self.note("kernel", start, stream)

    def _copy(self, copy: Copy) -> None:
        if copy.pinned:
            self._call(COPY_S)
            start = max(self.now, self._free[copy.stream], self._engine_free)
            end = self._engine_free = start + copy.nbytes / self.pinned
            self._queued.append(end)
        else:
            # The driver lets the stream finish, then copies through staging memory while the host waits.
            start = max(self.now, self._free[copy.stream])
            end = start + copy.nbytes / self.pageable
        self._free[copy.stream] = end
        self.note("copy", start, copy.stream)
        if not (copy.pinned and copy.non_blocking):
            self.wait_until(end)
