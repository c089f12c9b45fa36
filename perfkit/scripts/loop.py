"""A loop observed in its own process: `for batch in perfkit.track(loader)`, and cells with `%%watch`.

Nothing is set from outside here: model and loader exist already, so there is no other side to compare with.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np

from perfkit.results import stats
from perfkit.results.stats import Estimate
from perfkit.show import style, terminal, units
from perfkit.show.document import Content, Figure, Notice, Table

Batch = TypeVar("Batch")
_FIRST = 2
"""Steps that the figures leave out where there are others: caches, compilation, workers that start."""


class Tracked:
    """Raw values of a loop's steps, from the request for a batch to the request for the next one.

    Args:
        clock: gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.step_s: list[float] = []
        self.wait_s: list[float] = []  # the part of each step in the loader's `next`
        self.samples: list[int] = []  # samples of each step; 0 where a batch holds no tensor
        self.tokens: list[int] = []
        self._begin()

    def _begin(self) -> None:
        self._since: float | None = None
        self._waited, self._samples, self._tokens = 0.0, 0, 0

    def fetch(self, fetch: Callable[[], Batch]) -> Batch:
        """Fetches a batch of the step under way, which begins with the request for its first one."""
        start = self._clock()
        batch = fetch()
        self._since = start if self._since is None else self._since
        self._waited += self._clock() - start
        samples, tokens = _size(batch)
        self._samples, self._tokens = self._samples + samples, self._tokens + tokens
        return batch

    def end(self) -> None:
        if self._since is not None:
            self.step_s.append(self._clock() - self._since)
            self.wait_s.append(self._waited)
            self.samples.append(self._samples)
            self.tokens.append(self._tokens)
            self._begin()

    def finish(self) -> None:
        """The loop is over: the last step includes what a GPU still has to do."""
        torch, start = sys.modules.get("torch"), self._clock()
        if self.step_s and torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
            self.step_s[-1] += self._clock() - start

    @property
    def counted(self) -> slice:
        """The steps that the figures are made from."""
        return slice(_FIRST if len(self.step_s) > 2 * _FIRST else 0, None)

    @property
    def step(self) -> Estimate | None:
        """Median time of a step in seconds, with its interval; None without steps."""
        return stats.median(np.array(self.step_s[self.counted]))

    @property
    def waiting(self) -> float | None:
        """Share of the time that was spent waiting for data."""
        total = sum(self.step_s[self.counted])
        return sum(self.wait_s[self.counted]) / total if total else None

    def rate(self, counts: list[int]) -> float | None:
        """Samples or tokens per second; None where none were counted."""
        total, number = sum(self.step_s[self.counted]), sum(counts[self.counted])
        return number / total if total and number else None

    def describe(self) -> str:
        if self.step is None or self.waiting is None:
            return "no step was seen"
        rate = self.rate(self.samples)
        speed = f"{rate:.4g} samples/s" if rate else f"{1 / self.step.value:.4g} steps/s"
        step = f"{self.step.value * 1e3:.4g} ms a step (median)"
        return f"{speed}, {step}, {self.waiting:.0%} of it waiting for data ({len(self.step_s)} steps)"


def contents(result: Tracked) -> list[Content]:
    """The steps of a loop that was observed: a table, and a picture of the steps one by one."""
    if not result.step_s:
        return [Notice("No step was seen: no batch of a loader was followed by an optimizer step.")]
    rows = [
        ["samples/s", units.number(result.rate(result.samples))],
        ["tokens/s", units.number(result.rate(result.tokens))],
        ["step (median)", units.duration_interval(result.step)],
        ["waiting for data", units.percent(result.waiting)],
        ["steps", str(len(result.step_s))],
    ]
    left_out = result.counted.start
    note = f"The first {left_out} steps are left out." if left_out else ""

    def paint(figure: Any) -> None:
        ax = figure.add_subplot()
        steps = range(1, len(result.step_s) + 1)
        ax.plot(steps, [1e3 * value for value in result.step_s], color=style.BLUE, label="step")
        waits = [1e3 * value for value in result.wait_s]
        ax.plot(steps, waits, "--", color=style.VERMILLION, label="waiting for data")
        kept, _ = style.split_outliers(result.step_s)
        outliers = style.outliers_note(result.step_s, "step", units.duration)
        ax.set_ylim(0, 1.08e3 * max(kept) or 1)
        ax.set(xlabel="; ".join(filter(None, ("step", outliers))), ylabel="ms")
        style.legend_below(ax, 2)

    picture = Figure("steps", "Each step of the loop", f"Times of {result.describe()}", paint, height=2.6)
    return [Table(("what", "how much"), rows, "The loop", note), picture]


class track(Iterable[Batch], Generic[Batch]):
    """Goes through a loader and notes how long each step takes, and how long it waits for its batch.

    A line says so when the loop ends, also by `break`. A step is the body of the loop; work that a GPU still
    has to do is waited for once, at the end.

    Args:
        loader: batches; anything that can be iterated over. Its length and attributes stay available.
        quiet: whether the line at the end is left out; `tracked` and `show()` have everything.
        clock: seconds.
    """

    def __init__(
        self, loader: Iterable[Batch], quiet: bool = False, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._loader, self._quiet = loader, quiet
        self.tracked = Tracked(clock)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Batch]:
        batches = iter(self._loader)
        try:
            with contextlib.suppress(StopIteration):
                while True:
                    batch = self.tracked.fetch(lambda: next(batches))
                    yield batch
                    self.tracked.end()
        finally:
            self.tracked.end()  # left by `break`: that step counts
            self.tracked.finish()
            if not self._quiet and self.tracked.step_s:
                print(f"perfkit: {self.tracked.describe()}", file=sys.stderr)

    def sections(self) -> list[Content]:
        """The figures as a table and a picture."""
        return contents(self.tracked)

    def show(self) -> None:
        terminal.show(self.sections())


@contextlib.contextmanager
def observed() -> Iterator[Tracked]:
    """Notes the steps of any loop over a `DataLoader` while the context lasts; afterwards all is as before.

    A step ends with the step of an optimizer; what is fetched between two of them belongs to the second.
    """
    from torch.optim import optimizer
    from torch.utils.data import dataloader

    tracked = Tracked()
    base: Any = dataloader._BaseDataLoaderIter
    plain, here = base.__next__, threading.current_thread()
    first: list[Any] = []

    def fetch(iterator: Any) -> Any:
        if threading.current_thread() is not here:
            return plain(iterator)
        return tracked.fetch(lambda: plain(iterator))

    def stepped(which: Any, *_: Any) -> None:
        first[:] = first or [which]
        if which is first[0]:  # with several optimizers, the first one ends a step
            tracked.end()

    handle = optimizer.register_optimizer_step_post_hook(stepped)
    base.__next__ = fetch
    try:
        yield tracked
    finally:
        base.__next__ = plain
        handle.remove()
        tracked.finish()


def _size(batch: Any) -> tuple[int, int]:
    """Samples and tokens of a batch; without torch in this process there are no tensors in it."""
    if "torch" not in sys.modules:
        return 0, 0
    from perfkit.scripts.script import first_tensor, size

    return size(first_tensor(batch))
