"""A virtual host: cores that load data, a link, a loop that launches kernels. Nothing in it is real.

A deterministic discrete-event model of a training loop beside a simulated device: loader workers with their
prefetch limit, the thread that pins batches, copies, launches, and the device's queue. It answers what the
article's machine would have shown, and "what if I had 8 cores?", at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

import msgspec

from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.simulate.queue import Action, Bar, Launch, Link, Queue, VirtualClock
from perfkit.simulate.step import Copy, Fetch

GB = 1e9


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The machine around a simulated GPU."""

    name: str
    processors: int
    """As the system counts them: loader workers that a ladder starts."""
    cores: float
    """Loader workers that run at full speed at the same time; a hyper-thread is a part of a core."""
    fetch_s: float
    """Core seconds that a sample of the plain recipe takes: read, transform, collate."""
    pageable_gbs: float
    """GB/s of a copy to the device from pageable memory, the host's own copy included."""
    link_gbs: float | None = None
    """GB/s of a copy from pinned memory; None: what the GPU's link is known to reach."""
    copy_gbs: float = 8.0
    """GB/s at which a thread copies in host memory: the one that pins batches."""

    def describe(self) -> str:
        """One line for people."""
        if not self.fetch_s:
            return "ideal host: the data are already on the device"
        link = f", link {self.link_gbs:g} GB/s" if self.link_gbs else ""
        return (
            f"{self.name} host: {self.cores:g} cores, {1e3 * self.fetch_s:g} ms to fetch a sample, "
            f"pageable copies {self.pageable_gbs:g} GB/s{link}"
        )

    def link(self, gpu_link_gbs: float) -> Link:
        """Between this host and a GPU whose own link reaches this much, in GB/s."""
        return Link(pinned=(self.link_gbs or gpu_link_gbs) * GB, pageable=self.pageable_gbs * GB)


ARTICLE = Host(
    name="article",
    processors=8,
    cores=5.2,  # p3.2xlarge: 8 vCPU are 4 cores with hyper-threads, which add about 30%
    fetch_s=1.85e-3,  # the tutorial's trace of the same loader on a V100-DGX: 59.3 ms for 32 samples
    pageable_gbs=2.0,  # the article: 10 of 37 ms are the copy of 32 x 3 x 224 x 224 floats (19.3 MB)
    link_gbs=12.0,  # PCIe 3 x16: about 12 GB/s from pinned memory
)
"""The article's machine, an Amazon p3.2xlarge; no value of it was chosen to fit the article's table."""

IDEAL = Host(name="ideal", processors=1, cores=1, fetch_s=0.0, pageable_gbs=1e9, link_gbs=1e9)
"""The data are already on the device."""

MINE = "mine"
"""This machine: loader, collate and copies are real, only the GPU is simulated."""

_Number = Literal["cores", "fetch_ms", "link_gbs", "pageable_gbs"]
_Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e6)]


def host(text: str | None) -> Host | None:
    """A host by name, or by its numbers: `cores=8,fetch_ms=1.85,link_gbs=12,pageable_gbs=6`.

    Numbers that are left out are the article's. None stands for this machine.

    Raises:
        InvalidValue: neither a name nor such numbers.
    """
    if text in (None, "", MINE):
        return None
    if text in ("article", "ideal"):
        return ARTICLE if text == "article" else IDEAL
    try:
        parts = dict(part.split("=") for part in str(text).replace(" ", "").split(","))
        values: dict[str, Any] = msgspec.convert(parts, dict[_Number, _Positive], strict=False)
    except ValueError:
        raise InvalidValue(
            f"--host was given '{text}'",
            f"Allowed: mine, article, ideal, or numbers above 0 as {'=…,'.join(get_args(_Number))}=…",
        ) from None
    if "fetch_ms" in values:
        values["fetch_s"] = 1e-3 * values.pop("fetch_ms")
    if "cores" in values:
        values["processors"] = max(1, int(values["cores"]))
    return msgspec.structs.replace(ARTICLE, name=str(text), **values)


class Outcome(msgspec.Struct, frozen=True):
    """A training on a virtual host in its steady state; times in seconds, means over steps."""

    step_s: float
    data_wait_s: float
    kernel_s: float
    """Kernel time of a step."""
    copy_s: float = 0.0
    """The same of copies."""
    bars: list[Bar] = []
    """What the queue did in the last steps, where that was asked for."""

    @property
    def utilization(self) -> float:
        """Kernel time / step, 0 to 1."""
        return self.kernel_s / self.step_s


class VirtualLoader:
    """A `DataLoader` on a virtual clock: worker processes with their prefetch limit, and the pin thread.

    Args:
        clock: the loop's.
        recipe: its loader switches.
        fetch_s: core seconds of a batch.
        cores: workers that run at full speed at the same time.
        pin_s: seconds that the pin thread takes for a batch; 0 where nothing is pinned.
    """

    def __init__(
        self, clock: VirtualClock, recipe: Recipe, fetch_s: float, cores: float, pin_s: float = 0.0
    ) -> None:
        self._clock, self._workers = clock, recipe.workers
        self._ahead = recipe.workers * recipe.prefetch_factor
        self._fetch_s = fetch_s * max(1.0, recipe.workers / cores)
        self._pin_s, self._pinned = pin_s, 0.0
        self._done: list[float] = []
        self._taken: list[float] = []

    def take(self) -> None:
        """The loop takes a batch, and waits for it if need be."""
        number = len(self._taken)
        if not self._workers:
            self._clock.work(self._fetch_s + self._pin_s)
        else:
            requested = self._taken[number - self._ahead] if number >= self._ahead else 0.0
            before = self._done[number - self._workers] if number >= self._workers else 0.0
            self._done.append(max(requested, before) + self._fetch_s)
            ready = self._done[number]
            if self._pin_s:
                ready = self._pinned = max(self._pinned, ready) + self._pin_s
            self._clock.wait_until(ready)
        self._taken.append(self._clock.now())


def run(
    actions: Sequence[Action], recipe: Recipe, host: Host, gpu_link_gbs: float, fetch_share: float = 1.0,
    noted: int = 0,
) -> Outcome:  # fmt: skip
    """A training in its steady state, on a virtual host.

    Args:
        actions: of a step, in the host's order.
        recipe: what is trained: its loader switches and batch size.
        host: the machine around the GPU.
        gpu_link_gbs: GB/s that the GPU's link reaches.
        fetch_share: what fetching a sample takes under this recipe / under the plain one.
        noted: of this number of steps at the end, what the queue did is kept.
    """
    clock = VirtualClock()
    queue = Queue(clock, host.link(gpu_link_gbs))
    batch_bytes = sum(a.nbytes for a in actions if isinstance(a, Copy)) / max(1, recipe.accumulation)
    pin_s = batch_bytes / (host.copy_gbs * GB) if recipe.pin_memory and host.fetch_s else 0.0
    fetch_s = host.fetch_s * fetch_share * recipe.batch_size
    loader = VirtualLoader(clock, recipe, fetch_s, host.cores, pin_s)
    waited = 0.0
    marks: list[tuple[float, float, float, float]] = []
    warm, measured = _lengths(recipe, actions)
    for number in range(warm + measured + 1):
        if number == warm + measured + 1 - noted:
            queue.bars = []
        marks.append((max(clock.now(), queue.ends()), waited, queue.kernel_s, queue.copy_s))
        queue.begin_step()
        for action in actions:
            if isinstance(action, Fetch):
                before = clock.now()
                loader.take()
                waited += clock.now() - before
                queue.note("fetch", before)
            elif not (isinstance(action, Copy) and host == IDEAL):
                queue.issue(action)
            else:
                queue.note("action", clock.now())
    first, last = marks[warm], marks[-1]
    step_s, wait_s, kernel_s, copy_s = ((b - a) / measured for a, b in zip(first, last, strict=True))
    return Outcome(step_s, wait_s, kernel_s, copy_s, queue.bars or [])


def _lengths(recipe: Recipe, actions: Sequence[Action]) -> tuple[int, int]:
    """Steps until it is steady, and steps to average over: whole rounds of all workers, a full queue."""
    workers = max(1, recipe.workers)
    launches = sum(len(a.kernel_s) for a in actions if isinstance(a, Launch))
    fill = -(-1024 // max(1, launches))  # the driver's queue
    return 2 * workers * recipe.prefetch_factor + fill + 2, workers * max(1, 16 // workers)
