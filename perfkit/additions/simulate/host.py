"""Simulates a training on a virtual host with a virtual clock: deterministic, without anything real."""

import collections
import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec
from msgspec.structs import replace

from perfkit import lookup
from perfkit.additions.simulate.costs import Action, Kernel, constants
from perfkit.additions.simulate.step import Copy, Event, Fetch, OperatorCall, Wait
from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe

RUN_AHEAD = 1024  # launches that the driver queues before the host has to wait
_COPY_S = 5e-6  # of host time to start a copy without waiting for it; assumed
_PIN_BYTES_PER_S = 8e9  # the pinning thread's speed of copying in host memory; assumed


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The machine around a simulated GPU."""

    name: str
    processors: int  # as the system counts them; a ladder starts as many loader workers
    cores: float  # loader workers that can run at full speed at once; a hyper-thread is a part of one
    fetch_ms: float | None
    """The core time for a sample of the plain recipe: read, transform, collate. None: not yet known."""
    pageable_gbs: float  # of a copy from pageable memory to the device, including the host's own copy
    link_gbs: float | None = None  # of a copy from pinned memory; None: the GPU's own link speed
    operator_s: float = constants().values["host.operator_us"] * 1e-6
    """The host time of an operator in eager mode: Python, dispatch, autograd. Fused kernels skip dispatch."""
    launch_s: float = constants().values["host.launch_us"] * 1e-6
    band: float = 0.0  # the expected error of the host's times, as a fraction; 0 if the user set them

    def describe(self) -> str:
        """The host in one line."""
        if self == IDEAL:
            return "ideal host: the data are already on the device"
        link = f", link {self.link_gbs:g} GB/s" if self.link_gbs else ""
        loads = f"{self.cores:g} cores, {self.fetch_ms:.3g} ms to fetch a sample"
        return f"{self.name} host: {loads}, pageable copies {self.pageable_gbs:g} GB/s{link}"


ARTICLE = msgspec.convert(lookup.toml(__package__, "article")["host"], Host)
"""The article's machine, an Amazon p3.2xlarge."""

IDEAL = Host(name="ideal", processors=1, cores=1, fetch_ms=0.0, pageable_gbs=1e9)
"""The data are already on the device."""

MEASURED_BAND = 0.15  # the error of a fetch time that was measured on this machine for a different one
LAUNCHES_BAND = ARTICLE.band  # of operators and launches on any host: they are from one profile

_Number = Literal["cores", "fetch_ms", "link_gbs", "pageable_gbs"]
_Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e6)]


def host(text: str | None, is_article: bool, cores: int) -> Host:
    """A host by name, or by its numbers: `cores=8,fetch_ms=1.85,link_gbs=12,pageable_gbs=6`.

    None means the article's host for the article's workload at its sizes (`is_article`), the only workload
    that it is for; for others, this machine's `cores`. Without `fetch_ms`, loading other data is measured;
    without `link_gbs`, it is the GPU's own. Any other text is an `InvalidValue`.
    """
    if text == "ideal":
        return IDEAL
    if is_article and text in (None, "", "article"):
        return ARTICLE
    if text == "article":
        remedy = "Leave --host out to measure the fetch time here, or give it as --host cores=8,fetch_ms=2"
        raise InvalidValue("--host article knows only the cost of loading the article's images", remedy)
    other = replace(ARTICLE, name=text or "virtual", pageable_gbs=6.0, link_gbs=None, band=0.0)
    if not is_article:
        other = replace(other, fetch_ms=None, band=MEASURED_BAND)
    try:
        parts = dict(part.split("=") for part in (text or f"cores={cores}").replace(" ", "").split(","))
        values: dict[str, Any] = msgspec.convert(parts, dict[_Number, _Positive], strict=False)
    except ValueError:
        allowed = f"article, ideal, or numbers above 0 as {'=…,'.join(get_args(_Number))}=…"
        raise InvalidValue(f"--host was given '{text}'", f"Allowed: {allowed}") from None
    if "fetch_ms" in values:
        values["band"] = 0.0
    if "cores" in values:
        values["processors"] = max(1, int(values["cores"]))
    return replace(other, **values)


class HostBar(NamedTuple):
    """What the host or a stream did, and its start and end in seconds."""

    what: Literal["step", "host", "launch", "wait", "kernel", "copy", "worker"]
    """`host` covers all parts of an event; `step` is a whole step, `worker` the loading of its batch."""
    event: Event | None
    start: float
    end: float
    kernel: Kernel | None = None


class Outcome(NamedTuple):
    """A training in its steady state; times in seconds, means over steps."""

    step_s: float
    data_wait_s: float
    bars: list[HostBar]  # of the last steps, if they were requested


class _Busy(NamedTuple):
    start: float
    end: float
    seconds: float  # its kernel's own time; a different stream may delay its end
    stream: int


class SimulatedTraining:
    """A loader, a loop, and the streams of a GPU. Kernels of two streams share it; copies have an engine.

    `fetch_s` is the core time of a sample under the recipe; `link_gbs` is for copies from pinned memory.
    """

    def __init__(self, host: Host, recipe: Recipe, fetch_s: float, link_gbs: float) -> None:
        self._host = host
        self._recipe = recipe
        self._pinned = 1e9 * link_gbs
        self._fetch_s = fetch_s * recipe.batch_size * max(1.0, recipe.workers / host.cores)
        self._pin_s = self._pin_free = self._waited = 0.0
        self.now = 0.0  # the host's clock, which advances when it waits or works
        self._done = collections.deque(recipe.workers * [0.0], recipe.workers)
        """When the workers' most recent batches were ready."""
        ahead = recipe.workers * recipe.prefetch_factor
        self._taken = collections.deque(ahead * [0.0], ahead)
        """When the loop took the most recent batches: only then may a worker load another."""
        self._free: dict[int, float] = collections.defaultdict(float)
        self._engine_free = 0.0
        self._queued: collections.deque[float] = collections.deque(maxlen=RUN_AHEAD)
        self._elsewhere: list[_Busy] = []  # kernels that may still delay a different stream
        self._bars: list[HostBar] | None = None

    def steady(self, actions: Sequence[Action], noted: int = 0) -> Outcome:
        """The steady state of steps that have these actions, with bars for the last `noted` steps."""
        if self._host.name == IDEAL.name:
            actions = [action for action in actions if not isinstance(action[0], Copy | Fetch)]
        elif self._recipe.pin_memory:
            copied = sum(event.nbytes for event, _ in actions if isinstance(event, Copy))
            self._pin_s = copied / self._recipe.accumulation / _PIN_BYTES_PER_S
        # It is steady once every worker has delivered some batches and the driver's queue is full. The
        # average is over whole rounds of all workers.
        workers = max(1, self._recipe.workers)
        launches = sum(len(kernels) for _, kernels in actions)
        warm = 2 * workers * self._recipe.prefetch_factor + math.ceil(RUN_AHEAD / max(1, launches)) + 2
        measured = workers * max(1, 16 // workers)
        marks: list[tuple[float, float]] = []
        noted = min(noted, warm + measured + 1)
        for left in range(warm + measured, -1, -1):
            if left == noted - 1:
                self._bars = []
            start = self.now
            all_done = max([start, *self._free.values()])  # when the queue is empty
            marks.append((all_done, self._waited))
            for event, kernels in actions:
                self.do(event, kernels)
            self._note(HostBar("step", None, start, self.now))
        step_s, wait_s = ((b - a) / measured for a, b in zip(marks[warm], marks[-1], strict=True))
        return Outcome(step_s, wait_s, self._bars or [])

    def do(self, event: Event, kernels: Iterable[Kernel] = ()) -> None:
        """Does what the host does for an event."""
        start = self.now
        match event:
            case Fetch():
                self._fetch()
                self._waited += self.now - start
            case OperatorCall():
                if event.name != "fused":
                    self.now += self._host.operator_s
                for kernel in kernels:
                    self._call(event, self._host.launch_s)
                    self._run(event, kernel)
            case Copy():
                self._copy(event)
            case Wait(streams=None):
                self._wait(self._free[0], event)
            case Wait(streams=(waiting, awaited)):
                self._free[waiting] = max(self._free[waiting], self._free[awaited])
        self._note(HostBar("host", event, start, self.now))

    def _fetch(self) -> None:
        if not self._recipe.workers:
            self.now += self._fetch_s + self._pin_s
            return
        ready = max(self._taken[0], self._done[0]) + self._fetch_s
        self._done.append(ready)
        self._note(HostBar("worker", None, ready - self._fetch_s, ready))
        if self._pin_s:
            ready = self._pin_free = max(self._pin_free, ready) + self._pin_s
        self._wait(ready)
        self._taken.append(self.now)

    def _wait(self, time: float, event: Event | None = None) -> None:
        """Makes the host wait; if there is an event, in a runtime call."""
        start = self.now
        self.now = max(start, time)
        if event:
            self._note(HostBar("wait", event, start, self.now))

    def _note(self, bar: HostBar) -> None:
        if self._bars is not None:
            self._bars.append(bar)

    def _call(self, event: Event, seconds: float) -> None:
        """Makes the host queue something, once there is room."""
        start = self.now
        if len(self._queued) == RUN_AHEAD:
            self._wait(self._queued[0])
        self.now += seconds
        self._note(HostBar("launch", event, start, self.now))

    def _run(self, event: OperatorCall, kernel: Kernel) -> None:
        stream = event.stream
        _, seconds = kernel
        start = max(self._free[stream], self.now)
        end = start + seconds
        current = [other for other in self._elsewhere if other.end > start]
        for other in current:
            if other.stream != stream and other.start < end:
                end += other.seconds  # the other stream had the GPU for so long
        self._elsewhere = [other for other in current if other.stream == stream or other.start >= end]
        self._elsewhere.append(_Busy(start, end, seconds, stream))
        self._free[stream] = end
        self._queued.append(end)
        self._note(HostBar("kernel", event, start, end, kernel))

    def _copy(self, copy: Copy) -> None:
        began = self.now
        stream = copy.stream
        if copy.pinned:
            self._call(copy, _COPY_S)
            start = max(self.now, self._free[stream], self._engine_free)
            end = self._engine_free = start + copy.nbytes / self._pinned
            self._queued.append(end)
        else:
            # The driver waits for the stream, then copies through staging memory while the host waits.
            start = max(self.now, self._free[stream])
            end = start + copy.nbytes / (1e9 * self._host.pageable_gbs)
            self._wait(end)
            self._note(HostBar("launch", copy, began, self.now))
        self._free[stream] = end
        self._note(HostBar("copy", copy, start, end))
        if copy.pinned and not copy.non_blocking:
            self._wait(end, copy)
