"""The queue of a simulated device: streams that are busy until some time, fed by a host on a clock.

The same code issues a step on a virtual clock, where nothing is real (`simulate.host`), and on this machine's
own, beside a real loader (`simulate.replay`).
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from perfkit.simulate.step import Allocate, Copy, Event, Fetch, Kernel, Operator, Step, Wait

RUN_AHEAD = 1024
"""Launches that the driver queues before the host has to wait (the queue of a CUDA stream)."""
COPY_S = 5e-6
"""What starting a copy costs the host's core, if it does not wait for the copy; assumed."""


class Clock(Protocol):
    """What the host's time is."""

    def now(self) -> float:
        """Seconds."""

    def wait_until(self, time: float) -> None:
        """The host is idle until then."""

    def work(self, seconds: float) -> None:
        """A core of the host is busy for so long."""


class VirtualClock:
    """Time that passes only because somebody waits or works."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """Seconds."""
        return self._now

    def wait_until(self, time: float) -> None:
        """The host is idle until then."""
        self._now = max(self._now, time)

    def work(self, seconds: float) -> None:
        """The host is busy for so long."""
        self._now += seconds


class HostCosts(msgspec.Struct, frozen=True):
    """What issuing work costs the host's core, in seconds."""

    operator_s: float
    """An operator in eager mode: Python, dispatch, autograd."""
    launch_s: float
    """The launch of a kernel."""


class Launch(msgspec.Struct, frozen=True, tag="launch"):
    """The kernels of one operator, or of a CUDA graph, in a stream."""

    host_s: float
    """Of the host before the first launch."""
    launch_s: float
    """For each launch; a graph has one."""
    kernel_s: list[float]
    is_graph: bool = False
    stream: int = 0


Action = Launch | Fetch | Copy | Wait


class Link(msgspec.Struct, frozen=True):
    """Between host and device, in bytes per second."""

    pinned: float
    pageable: float
    """The host's own copy into the driver's staging memory included."""


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A training step on a simulated GPU, ready to be issued."""

    actions: list[Action]
    link: Link
    """Beside a real host that copies pageable memory itself: there, the most that it reaches."""
    peak_bytes: int
    """Device memory."""
    reserved_bytes: int

    @property
    def copy_s(self) -> float:
        """Seconds that the copies of a step take."""
        return sum(
            copy.nbytes / (self.link.pinned if copy.pinned else self.link.pageable) for copy in self.copies
        )

    @property
    def copies(self) -> list[Copy]:
        """Those of a step."""
        return [action for action in self.actions if isinstance(action, Copy)]


class Bar(NamedTuple):
    """What the host or a stream did, from when to when in seconds of the host's clock."""

    what: Literal["launch", "kernel", "copy", "action", "fetch"]
    """`launch` is the host's, for the `kernel` or `copy` that follows; an `action` is the whole of what was
    issued at once, and comes after its parts."""
    start: float
    end: float
    stream: int = -1
    """Of kernels and copies."""


def actions(step: Step, kernels: Iterable[Kernel], costs: HostCosts) -> list[Action]:
    """What the host does in a step, in its order.

    Operators of forward and backward that belong to a CUDA graph become one launch. Fused kernels are
    launched by generated code, without dispatch.
    """
    seconds: dict[int, list[float]] = collections.defaultdict(list)
    for kernel in kernels:
        seconds[kernel.operator].append(kernel.seconds)
    found: list[Action] = []
    for first, *others in groups(step):
        event = step.events[first]
        if isinstance(event, Operator):
            is_graph = _in_graph(step, event)
            dispatch = 0.0 if event.name == "fused" and not is_graph else costs.operator_s
            kernel_s = [each for at in (first, *others) for each in seconds[at]]
            found.append(Launch(dispatch, costs.launch_s, kernel_s, is_graph, event.stream))
        elif not isinstance(event, Allocate):
            found.append(event)
    return found


def groups(step: Step) -> list[list[int]]:
    """The events that the host issues, by index: one by one, those of a CUDA graph together."""
    found: list[list[int]] = []
    is_open = False
    for at, event in enumerate(step.events):
        if isinstance(event, Allocate):
            continue
        in_graph = _in_graph(step, event)
        if in_graph and is_open:
            found[-1].append(at)
        else:
            found.append([at])
        is_open = in_graph
    return found


def _in_graph(step: Step, event: Event) -> bool:
    return step.graph and isinstance(event, Operator) and event.phase in ("forward", "backward")


class Queue:
    """The streams of a simulated device.

    Args:
        clock: the host's.
        link: between host and device.
    """

    def __init__(self, clock: Clock, link: Link) -> None:
        self.clock, self.link = clock, link
        self.kernel_s = 0.0
        """Kernel time so far."""
        self.copy_s = 0.0
        """The same of copies."""
        self._free: dict[int, float] = collections.defaultdict(float)
        self._engine_free = 0.0
        self._steps = 0
        self._queued: collections.deque[float] = collections.deque(maxlen=RUN_AHEAD)
        self.bars: list[Bar] | None = None
        """What was done and when, for a trace; None: it is not noted."""

    def begin_step(self) -> None:
        """Counts steps: some waits happen in every n-th one only."""
        self._steps += 1

    def issue(self, action: Launch | Copy | Wait, stage: Callable[[], Any] = lambda: None) -> None:
        """Does what the host does; `stage` is its own copy of a pageable batch."""
        start = self.clock.now()
        match action:
            case Launch():
                self._launch(action)
            case Copy():
                self._copy(action, stage)
            case Wait(streams=None):
                if self._steps % action.every == 0:
                    self.synchronize()
            case Wait(streams=(waiting, awaited)):
                self._free[waiting] = max(self._free[waiting], self._free[awaited])
        self.note("action", start)

    def note(self, what: Any, start: float, end: float | None = None, stream: int = -1) -> None:
        """Keeps a bar, until now if it has no end, where bars are wanted."""
        if self.bars is not None:
            self.bars.append(Bar(what, start, self.clock.now() if end is None else end, stream))

    def synchronize(self) -> None:
        """The host waits until everything in the queue is done."""
        self.clock.wait_until(self.ends())

    def ends(self) -> float:
        """When everything that is queued now is done."""
        return max(self._free.values(), default=0.0)

    def _launch(self, launch: Launch) -> None:
        if launch.host_s:
            self.clock.work(launch.host_s)
        for group in [launch.kernel_s] if launch.is_graph else [[seconds] for seconds in launch.kernel_s]:
            called = self.clock.now()
            self._wait_for_room()
            self.clock.work(launch.launch_s)
            self.note("launch", called)
            seconds = sum(group)
            start = max(self._free[launch.stream], self.clock.now())
            self._free[launch.stream] = free = start + seconds
            self.note("kernel", start, free, launch.stream)
            self.kernel_s += seconds
            self._queued.append(free)

    def _wait_for_room(self) -> None:
        if len(self._queued) == RUN_AHEAD:
            self.clock.wait_until(self._queued[0])

    def _copy(self, copy: Copy, stage: Callable[[], Any]) -> None:
        self._wait_for_room()
        if not copy.pinned:
            # The driver lets the stream finish, then copies through staging memory while the host waits.
            self.clock.wait_until(self._free[copy.stream])
            start = self.clock.now()
            stage()
            self.clock.wait_until(start + copy.nbytes / self.link.pageable)
            self._free[copy.stream] = now = self.clock.now()
            self.copy_s += now - start
            self.note("copy", start, now, copy.stream)
            return
        called = self.clock.now()
        self.clock.work(COPY_S)
        self.note("launch", called)
        start = max(self.clock.now(), self._free[copy.stream], self._engine_free)
        self._free[copy.stream] = self._engine_free = start + copy.nbytes / self.link.pinned
        self.copy_s += copy.nbytes / self.link.pinned
        self.note("copy", start, self._free[copy.stream], copy.stream)
        self._queued.append(self._free[copy.stream])
        if not copy.non_blocking:
            self.clock.wait_until(self._free[copy.stream])
