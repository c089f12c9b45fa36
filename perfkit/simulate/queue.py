"""The queue of a simulated device: streams that are busy until some time, fed by a host on a clock.

The same code issues a step on a virtual clock, where nothing is real (`simulate.host`), and on this machine's
own, beside a real loader (`simulate.replay`).
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from perfkit.results.run import Mechanism
from perfkit.simulate.step import Copy, Fetch, Kernel, Operator, Step, Wait

RUN_AHEAD = 1024
"""Launches that the driver queues before the host has to wait (the queue of a CUDA stream)."""


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

    operator_s: float = 18e-6
    """An operator in eager mode: Python, dispatch, autograd."""
    launch_s: float = 5e-6
    """The launch of a kernel, or of a copy."""


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


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A training step on a simulated GPU, ready to be issued."""

    actions: list[Action]
    link_gbs: float
    """GB/s (10^9) of copies from pinned memory."""
    pageable_gbs: float
    """GB/s at most of copies from pageable memory, beside a real host that copies itself."""
    peak_bytes: int
    """Device memory."""
    reserved_bytes: int
    mechanisms: list[Mechanism] = []
    """What the plan shows of the switches."""


class Link(msgspec.Struct, frozen=True):
    """Between host and device, in bytes per second."""

    pinned: float
    pageable: float
    """The host's own copy into the driver's staging memory included."""


def actions(step: Step, kernels: Iterable[Kernel], costs: HostCosts) -> list[Action]:
    """What the host does in a step, in its order.

    Operators of forward and backward that belong to a CUDA graph become one launch. Fused kernels are
    launched by generated code, without dispatch.
    """
    seconds: dict[int, list[float]] = collections.defaultdict(list)
    for kernel in kernels:
        seconds[kernel.operator].append(kernel.seconds)
    found: list[Action] = []
    graph: list[float] = []

    def close() -> None:
        if graph:
            found.append(Launch(costs.operator_s, costs.launch_s, list(graph), is_graph=True))
            graph.clear()

    for at, event in enumerate(step.events):
        if isinstance(event, Operator):
            if step.graph and event.phase in ("forward", "backward"):
                graph.extend(seconds[at])
                continue
            close()
            dispatch = 0.0 if event.name == "fused" else costs.operator_s
            found.append(Launch(dispatch, costs.launch_s, seconds[at], stream=event.stream))
        elif isinstance(event, Fetch | Copy | Wait):
            close()
            found.append(event)
    close()
    return found


class Queue:
    """The streams of a simulated device.

    Args:
        clock: the host's.
        link: between host and device.
        call_s: of the host's core, to start a copy that it does not wait for.
    """

    def __init__(self, clock: Clock, link: Link, call_s: float = HostCosts().launch_s) -> None:
        self.clock, self.link, self._call_s = clock, link, call_s
        self.kernel_s = 0.0
        """Kernel time so far."""
        self._free: dict[int, float] = collections.defaultdict(float)
        self._engine_free = 0.0
        self._steps = 0
        self._queued: collections.deque[float] = collections.deque(maxlen=RUN_AHEAD)

    def begin_step(self) -> None:
        """Counts steps: some waits happen in every n-th one only."""
        self._steps += 1

    def issue(self, action: Launch | Copy | Wait, stage: Callable[[], Any] = lambda: None) -> None:
        """Does what the host does; `stage` is its own copy of a pageable batch."""
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

    def synchronize(self) -> None:
        """The host waits until everything in the queue is done."""
        self.clock.wait_until(self.ends())

    def ends(self) -> float:
        """When everything that is queued now is done."""
        return max(self._free.values(), default=0.0)

    def end_of_kernels(self) -> float:
        """When the kernels of the default stream that are queued now are done."""
        return self._free[0]

    def _launch(self, launch: Launch) -> None:
        if launch.host_s:
            self.clock.work(launch.host_s)
        for group in [launch.kernel_s] if launch.is_graph else [[seconds] for seconds in launch.kernel_s]:
            self._wait_for_room()
            self.clock.work(launch.launch_s)
            seconds = sum(group)
            free = max(self._free[launch.stream], self.clock.now()) + seconds
            self._free[launch.stream] = free
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
            self._free[copy.stream] = self.clock.now()
            return
        self.clock.work(self._call_s)
        start = max(self.clock.now(), self._free[copy.stream], self._engine_free)
        self._free[copy.stream] = self._engine_free = start + copy.nbytes / self.link.pinned
        self._queued.append(self._free[copy.stream])
        if not copy.non_blocking:
            self.clock.wait_until(self._free[copy.stream])


def kernel_seconds(found: Sequence[Action]) -> float:
    """Device time of a step's kernels."""
    return sum(sum(action.kernel_s) for action in found if isinstance(action, Launch))
