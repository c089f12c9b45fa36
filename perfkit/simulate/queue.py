"""The queue of a GPU: streams that are busy until some time, fed by a host on a virtual clock."""

import collections
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from perfkit.simulate.step import Copy, Event, Kernel, Operator, Wait

RUN_AHEAD = 1024
"""Launches that the driver queues before the host has to wait."""
COPY_S = 5e-6
"""What starting a copy costs the host, if it does not wait for the copy; assumed."""

What = Literal["step", "host", "launch", "wait", "kernel", "copy"]


class Bar(NamedTuple):
    """What the host or a stream did, from when to when in seconds."""

    what: What
    """`host` spans all that the host did for an event, after its parts; `step` spans a whole step."""
    event: Event | None
    start: float
    end: float
    stream: int = 0
    kernel: Kernel | None = None


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
        operator_s: what an operator in eager mode costs the host: Python, dispatch, autograd. Fused kernels
            are launched by generated code, without dispatch.
        launch_s: what a launch costs it.
    """

    def __init__(
        self, pinned: float, pageable: float, operator_s: float = 0.0, launch_s: float = 0.0
    ) -> None:
        self._pinned, self._pageable = pinned, pageable
        self._operator_s, self._launch_s = operator_s, launch_s
        self.now = 0.0
        """The host's time, which passes only because it waits or works."""
        self.bars: list[Bar] | None = None
        """What was done and when, for a trace; None: it is not noted."""
        self._free: dict[int, float] = collections.defaultdict(float)
        self._engine_free = 0.0
        self._queued: collections.deque[float] = collections.deque(maxlen=RUN_AHEAD)
        self._elsewhere: list[_Busy] = []
        """Kernels that still have to slow another stream down."""

    def wait_until(self, time: float, event: Event | None = None) -> None:
        """The host waits: for an event, in a call of the runtime."""
        start = self.now
        self.now = max(start, time)
        if event:
            self.note("wait", event, start)

    def issue(self, event: Operator | Copy | Wait, kernels: Iterable[Kernel] = ()) -> None:
        """Does what the host does."""
        match event:
            case Operator():
                if event.name != "fused":
                    self.now += self._operator_s
                for kernel in kernels:
                    self._call(event, self._launch_s)
                    self._run(event, kernel)
            case Copy():
                self._copy(event)
            case Wait(streams=None):
                self.wait_until(self._free[event.stream], event)
            case Wait(streams=(waiting, awaited)):
                self._free[waiting] = max(self._free[waiting], self._free[awaited])

    def note(
        self, what: What, event: Event | None, start: float, end: float | None = None, *about: Any
    ) -> None:
        """Keeps a bar, if bars are kept; it ends now unless another end is given."""
        if self.bars is not None:
            self.bars.append(Bar(what, event, start, self.now if end is None else end, *about))

    def ends(self) -> float:
        """When everything that is queued now is done."""
        return max(self._free.values(), default=0.0)

    def _call(self, event: Event, seconds: float) -> None:
        """The host puts something in the queue, once there is room."""
        start = self.now
        if len(self._queued) == RUN_AHEAD:
            self.wait_until(self._queued[0])
        self.now += seconds
        self.note("launch", event, start)

    def _run(self, event: Operator, kernel: Kernel) -> None:
        stream = event.stream
        start = max(self._free[stream], self.now)
        end = start + kernel.seconds
        current = [other for other in self._elsewhere if other.end > start]
        for other in current:
            if other.stream != stream and other.start < end:
                end += other.seconds  # the GPU was the other stream's for so long
        self._elsewhere = [other for other in current if other.stream == stream or other.start >= end]
        if len(self._free) > 1:
            self._elsewhere.append(_Busy(start, end, kernel.seconds, stream))
        self._free[stream] = end
        self._queued.append(end)
        self.note("kernel", event, start, end, stream, kernel)

    def _copy(self, copy: Copy) -> None:
        began, stream = self.now, copy.stream
        if copy.pinned:
            self._call(copy, COPY_S)
            start = max(self.now, self._free[stream], self._engine_free)
            end = self._engine_free = start + copy.nbytes / self._pinned
            self._queued.append(end)
        else:
            # The driver lets the stream finish, then copies through staging memory while the host waits.
            start = max(self.now, self._free[stream])
            end = start + copy.nbytes / self._pageable
            self.wait_until(end)
            self.note("launch", copy, began)
        self._free[stream] = end
        self.note("copy", copy, start, end, stream)
        if copy.pinned and not copy.non_blocking:
            self.wait_until(end, copy)
