"""A virtual host: cores that load data, a link, a loop that launches kernels. Nothing in it is real.

A deterministic model of a training loop beside a simulated GPU: loader workers with their prefetch limit, the
thread that pins batches, copies, launches, and the queue of the GPU.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

import msgspec

from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.simulate.queue import RUN_AHEAD, Bar, Queue
from perfkit.simulate.step import Action, Copy, Fetch


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The machine around a simulated GPU."""

    name: str
    processors: int
    """As the system counts them: the loader workers that a ladder starts."""
    cores: float
    """Loader workers that run at full speed at the same time; a hyper-thread is a part of a core."""
    fetch_s: float | None
    """Core seconds that a sample of the plain recipe takes: read, transform, collate. None: unknown yet."""
    pageable_gbs: float
    """GB/s of a copy to the device from pageable memory, the host's own copy included."""
    link_gbs: float | None = None
    """GB/s of a copy from pinned memory; None: what the GPU's link reaches."""
    copy_gbs: float = 8.0
    """GB/s at which the pinning thread copies in host memory."""
    band: float = 0.0
    """How far off the host's times may be, as a fraction; 0 where a person has set them."""

    def describe(self) -> str:
        """One line for people."""
        if self == IDEAL:
            return "ideal host: the data are already on the device"
        fetch = "fetch time unknown"
        if self.fetch_s is not None:
            fetch = f"{1e3 * self.fetch_s:.3g} ms to fetch a sample"
        link = f", link {self.link_gbs:g} GB/s" if self.link_gbs else ""
        copies = f"pageable copies {self.pageable_gbs:g} GB/s{link}"
        return f"{self.name} host: {self.cores:g} cores, {fetch}, {copies}"


ARTICLE = Host(
    name="article",
    processors=8,
    cores=5.2,  # p3.2xlarge: 8 vCPU are 4 cores with hyper-threads, which add about 30%
    fetch_s=1.85e-3,  # a trace of the same loader beside a V100-DGX: 59.3 ms for 32 samples
    pageable_gbs=2.0,  # the article: 10 of 37 ms are the copy of 32 x 3 x 224 x 224 floats (19.3 MB)
    link_gbs=12.0,  # PCIe 3 x16
    band=0.25,  # the trace is another machine's; the article's 80 ms a step would need 2.2 ms a sample
)
"""The article's machine, an Amazon p3.2xlarge. The pageable copies follow from one figure of the article; the
other values come from elsewhere."""

IDEAL = Host(name="ideal", processors=1, cores=1, fetch_s=0.0, pageable_gbs=1e9, link_gbs=1e9)
"""The data are already on the device."""

MEASURED_BAND = 0.15
"""How far off a fetch time may be that was measured on this machine for another one."""

_Number = Literal["cores", "fetch_ms", "link_gbs", "pageable_gbs"]
_Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e6)]


def host(text: str | None, is_article: bool, cores: int) -> Host:
    """A host by name, or by its numbers: `cores=8,fetch_ms=1.85,link_gbs=12,pageable_gbs=6`.

    Args:
        text: None: the article's for the article's workload, else this machine's cores; a number that is left
            out is the article's, and a fetch time that is left out is measured unless it is the article's.
        is_article: whether the workload is the article's, at its sizes.
        cores: of this machine.

    Raises:
        InvalidValue: neither a name nor such numbers, or the article's host for another workload.
    """
    if text == "ideal":
        return IDEAL
    if text == "article" and not is_article:
        raise InvalidValue(
            "--host article knows what the article's images cost to load, and no other data set",
            "Leave --host out to measure the fetch time here, or give it as --host cores=8,fetch_ms=2",
        )
    if is_article and text in (None, "", "article"):
        return ARTICLE
    other = msgspec.structs.replace(
        ARTICLE, name="virtual", fetch_s=ARTICLE.fetch_s if is_article else None,
        pageable_gbs=6.0, link_gbs=None, band=0.0 if is_article else MEASURED_BAND,
    )  # fmt: skip
    if not text:
        return msgspec.structs.replace(other, processors=cores, cores=float(cores))
    try:
        parts = dict(part.split("=") for part in text.replace(" ", "").split(","))
        values: dict[str, Any] = msgspec.convert(parts, dict[_Number, _Positive], strict=False)
    except ValueError:
        raise InvalidValue(
            f"--host was given '{text}'",
            f"Allowed: article, ideal, or numbers above 0 as {'=…,'.join(get_args(_Number))}=…",
        ) from None
    if "fetch_ms" in values:
        values |= {"fetch_s": 1e-3 * values.pop("fetch_ms"), "band": 0.0}
    if "cores" in values:
        values["processors"] = max(1, int(values["cores"]))
    return msgspec.structs.replace(other, name=text, **values)


class Outcome(msgspec.Struct, frozen=True):
    """A training on a virtual host in its steady state; times in seconds, means over steps."""

    step_s: float
    data_wait_s: float
    bars: list[Bar] = []
    """What the queue did in the last steps, where that was asked for."""


class _Loader:
    """A `DataLoader` on the host's clock: workers with their prefetch limit, and the thread that pins."""

    def __init__(self, queue: Queue, recipe: Recipe, fetch_s: float, cores: float, pin_s: float) -> None:
        self._queue, self._workers = queue, recipe.workers
        self._ahead = recipe.workers * recipe.prefetch_factor
        self._fetch_s = fetch_s * max(1.0, recipe.workers / cores)
        self._pin_s, self._pinned = pin_s, 0.0
        self._done: list[float] = []
        self._taken: list[float] = []
        self.waited = 0.0

    def take(self) -> None:
        """The loop takes a batch, and waits for it if it must."""
        start, number = self._queue.now, len(self._taken)
        if not self._workers:
            self._queue.now += self._fetch_s + self._pin_s
        else:
            requested = self._taken[number - self._ahead] if number >= self._ahead else 0.0
            before = self._done[number - self._workers] if number >= self._workers else 0.0
            ready = max(requested, before) + self._fetch_s
            self._done.append(ready)
            if self._pin_s:
                ready = self._pinned = max(self._pinned, ready) + self._pin_s
            self._queue.wait_until(ready)
        self._taken.append(self._queue.now)
        self.waited += self._queue.now - start


def run(
    actions: Sequence[Action], recipe: Recipe, host: Host, queue: Queue, fetch_s: float, noted: int = 0
) -> Outcome:
    """A training in its steady state.

    Args:
        actions: of a step, in the host's order.
        recipe: its loader switches and batch size.
        host: the machine around the GPU.
        queue: of the GPU; a new one.
        fetch_s: core seconds that a sample takes under this recipe.
        noted: the number of steps at the end of which the bars are kept.
    """
    is_ideal = host == IDEAL
    if is_ideal:  # the data are on the device
        actions = [action for action in actions if not isinstance(action[0], Copy)]
    batch_bytes = sum(event.nbytes for event, _ in actions if isinstance(event, Copy)) / recipe.accumulation
    pin_s = batch_bytes / (host.copy_gbs * 1e9) if recipe.pin_memory else 0.0
    loader = _Loader(queue, recipe, 0.0 if is_ideal else fetch_s * recipe.batch_size, host.cores, pin_s)
    marks: list[tuple[float, float]] = []
    # It is steady once all workers have delivered some rounds and the driver's queue is full; the average is
    # over whole rounds of all workers.
    workers = max(1, recipe.workers)
    launches = sum(len(kernels) for _, kernels in actions)
    warm = 2 * workers * recipe.prefetch_factor + -(-RUN_AHEAD // max(1, launches)) + 2
    measured = workers * max(1, 16 // workers)
    for number in range(warm + measured + 1):
        if number == warm + measured + 1 - noted:
            queue.bars = []
        marks.append((max(queue.now, queue.ends()), loader.waited))
        first = queue.now
        for event, kernels in actions:
            before = queue.now
            if isinstance(event, Fetch):
                loader.take()
            else:
                queue.issue(event, kernels)
            queue.note("host", event, before)
        queue.note("step", None, first)
    start, end = marks[warm], marks[-1]
    step_s, wait_s = ((b - a) / measured for a, b in zip(start, end, strict=True))
    return Outcome(step_s, wait_s, queue.bars or [])
