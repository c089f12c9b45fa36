"""The queue of a GPU: streams that are busy until some time, fed by a host on a virtual clock."""

import collections
from collections.abc import Iterable
from typing import Literal, NamedTuple

from msgspec import Struct

from perfkit.simulate.step import Allocate, Copy, Event, Fetch, Kernel, Operator, Step, Wait

RUN_AHEAD = 1024
"""Launches that the driver queues before the host has to wait."""
COPY_S = 5e-6
"""What starting a copy costs the host, if it does not wait for the copy; assumed."""


class Clock:
    """Time that passes only because somebody waits or works."""

    def __init__(self) -> None:
        self.now = 0.0

    def wait_until(self, time: float) -> None:
        self.now = max(self.now, time)

    def work(self, seconds: float) -> None:
        self.now += seconds


class HostCosts(Struct, frozen=True):
    """What issuing work costs the host, in seconds."""

    operator_s: float
    """An operator in eager mode: Python, dispatch, autograd."""
    launch_s: float


class Launch(Struct, frozen=True):
    """The kernels of one operator, or of a CUDA graph, in a stream."""

    host_s: float
    """The host's work before the first launch."""
    launch_s: float
    """The host's work for each launch; a graph has one."""
    kernel_s: list[float]
    is_graph: bool = False
    stream: int = 0


Action = Launch | Fetch | Copy | Wait


class Link(NamedTuple):
    """Between host and device, in bytes per second."""

    pinned: float
    pageable: float
    """The host's own copy into the driver's staging memory included."""


class Bar(NamedTuple):
    """What the host or a stream did, from when to when in seconds."""

    what: Literal["launch", "kernel", "copy", "action", "fetch"]
    """`launch` is the host's, for the `kernel` or `copy` after it; an `action` spans what was issued at once,
    and comes after its parts."""
    start: float
    end: float
    stream: int = -1


def actions(step: Step, kernels: Iterable[Kernel], costs: HostCosts) -> list[Action]:
    """What the host does in a step, in its order.

    Fused kernels are launched by generated code, without dispatch.
    """
    seconds: dict[int, list[float]] = collections.defaultdict(list)
    for kernel in kernels:
        seconds[kernel.operator].append(kernel.seconds)
    result: list[Action] = []
    for first, *others in groups(step):
        event = step.events[first]
        if isinstance(event, Operator):
            is_graph = _in_graph(step, event)
            dispatch = 0.0 if event.name == "fused" and not is_graph else costs.operator_s
            kernel_s = [each for at in (first, *others) for each in seconds[at]]
            result.append(Launch(dispatch, costs.launch_s, kernel_s, is_graph, event.stream))
        elif not isinstance(event, Allocate):
            result.append(event)
    return result


def groups(step: Step) -> list[list[int]]:
    """The events that the host issues, by index: one by one, those of a CUDA graph together."""
    result: list[list[int]] = []
    is_open = False
    for at, event in enumerate(step.events):
        if isinstance(event, Allocate):
            continue
        in_graph = _in_graph(step, event)
        if in_graph and is_open:
            result[-1].append(at)
        else:
            result.append([at])
        is_open = in_graph
    return result


def _in_graph(step: Step, event: Event) -> bool:
    return step.graph and isinstance(event, Operator) and event.phase in ("forward", "backward")


class _Busy(NamedTuple):
    start: float
    end: float
    seconds: float
    """Its own kernel's time; it ends later where another stream slowed it down."""
    stream: int


class Queue:
    """The streams of a GPU. Kernels of two streams share it; copies have an engine of their own.

    Args:
        clock: the host's.
        link: between host and device.
    """

    def __init__(self, clock: Clock, link: Link) -> None:
        self.clock, self.link = clock, link
        self.kernel_s = 0.0
        """Kernel time so far."""
        self.copy_s = 0.0
        self.bars: list[Bar] | None = None
        """What was done and when, for a trace; None: it is not noted."""
        self._free: dict[int, float] = collections.defaultdict(float)
        self._engine_free = 0.0
        self._queued: collections.deque[float] = collections.deque(maxlen=RUN_AHEAD)
        self._elsewhere: list[_Busy] = []
        """Kernels that still have to slow another stream down."""

    def issue(self, action: Launch | Copy | Wait) -> None:
        """Does what the host does."""
        start = self.clock.now
        match action:
            case Launch():
                self._launch(action)
            case Copy():
                self._copy(action)
            case Wait(streams=None):
                self.clock.wait_until(self._free[action.stream])
            case Wait(streams=(waiting, awaited)):
                self._free[waiting] = max(self._free[waiting], self._free[awaited])
        self.note("action", start)

    def note(
        self, what: Literal["launch", "kernel", "copy", "action", "fetch"], start: float,
        end: float | None = None, stream: int = -1,
    ) -> None:  # fmt: skip
        """Keeps a bar, if bars are kept; without an end, it ends now."""
        if self.bars is not None:
            self.bars.append(Bar(what, start, self.clock.now if end is None else end, stream))

    def ends(self) -> float:
        """When everything that is queued now is done."""
        return max(self._free.values(), default=0.0)

    def _launch(self, launch: Launch) -> None:
        self.clock.work(launch.host_s)
        for group in [launch.kernel_s] if launch.is_graph else [[seconds] for seconds in launch.kernel_s]:
            called = self.clock.now
            self._wait_for_room()
            self.clock.work(launch.launch_s)
            self.note("launch", called)
            self._run(sum(group), launch.stream)

    def _run(self, seconds: float, stream: int) -> None:
        start = max(self._free[stream], self.clock.now)
        end = start + seconds
        current = [other for other in self._elsewhere if other.end > start]
        for other in current:
            if other.stream != stream and other.start < end:
                end += other.seconds  # the GPU was the other stream's for so long
        self._elsewhere = [other for other in current if other.stream == stream or other.start >= end]
        if len(self._free) > 1:
            self._elsewhere.append(_Busy(start, end, seconds, stream))
        self._free[stream] = end
        self.note("kernel", start, end, stream)
        self.kernel_s += seconds
        self._queued.append(end)

    def _wait_for_room(self) -> None:
        if len(self._queued) == RUN_AHEAD:
            self.clock.wait_until(self._queued[0])

    def _copy(self, copy: Copy) -> None:
        self._wait_for_room()
        if not copy.pinned:
            # The driver lets the stream finish, then copies through staging memory while the host waits.
            self.clock.wait_until(self._free[copy.stream])
            start = self.clock.now
            self.clock.work(copy.nbytes / self.link.pageable)
            self._free[copy.stream] = self.clock.now
            self.copy_s += self.clock.now - start
            self.note("copy", start, stream=copy.stream)
            return
        called = self.clock.now
        self.clock.work(COPY_S)
        self.note("launch", called)
        start = max(self.clock.now, self._free[copy.stream], self._engine_free)
        self._free[copy.stream] = self._engine_free = start + copy.nbytes / self.link.pinned
        self.copy_s += copy.nbytes / self.link.pinned
        self.note("copy", start, self._free[copy.stream], copy.stream)
        self._queued.append(self._free[copy.stream])
        if not copy.non_blocking:
            self.clock.wait_until(self._free[copy.stream])
