"""A loop observed in its own process: `for batch in perfkit.track(loader)`, and cells with `%%watch`.

Nothing is set from outside here: model and loader exist already, so there is no other side to compare with.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from perfkit.scripts import tables as tables_script
from perfkit.scripts.tracked import Tracked
from perfkit.show import terminal
from perfkit.show.document import Content

Batch = TypeVar("Batch")
Clock = Callable[[], float]


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
        self, loader: Iterable[Batch], quiet: bool = False, clock: Clock = time.perf_counter
    ) -> None:
        self._loader, self._quiet, self._clock = loader, quiet, clock
        self.tracked = Tracked()

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Batch]:
        steps = _Steps(self.tracked, self._clock)
        self.tracked.loops += 1
        try:
            for batch in _fetched(iter(self._loader), steps):
                steps.begin(batch)
                yield batch
                steps.end()
        finally:
            steps.finish()
            if not self._quiet and self.tracked.step_s:
                print(f"perfkit: {self.tracked.describe()}", file=sys.stderr)

    def sections(self) -> list[Content]:
        """The figures as a table and a picture."""
        return tables_script.tracked(self.tracked)

    def show(self) -> None:
        """Prints the table."""
        terminal.show(self.sections())


class _Steps:
    """The step under way: it begins with the request for its batch."""

    def __init__(self, tracked: Tracked, clock: Clock) -> None:
        self._tracked, self._clock = tracked, clock
        self.since = clock()
        self.waited = 0.0
        self._size = (0, 0)
        self._open = False

    def begin(self, batch: Any) -> None:
        """Its batch is there."""
        self._size = _size(batch)
        self._open = True

    def end(self) -> None:
        """The next batch is asked for."""
        now, of = self._clock(), self._tracked
        of.step_s.append(now - self.since)
        of.wait_s.append(self.waited)
        of.samples.append(self._size[0])
        of.tokens.append(self._size[1])
        self.since, self.waited, self._open = now, 0.0, False

    def finish(self) -> None:
        """The loop is over: a step that was left by `break` counts, and the last one waits for the device."""
        _synchronize()
        if self._open:
            self.end()
        elif self._tracked.step_s:
            self._tracked.step_s[-1] += self._clock() - self.since - self.waited


def _fetched(batches: Iterator[Batch], steps: _Steps) -> Iterator[Batch]:
    clock = steps._clock
    while True:
        start = clock()
        try:
            batch = next(batches)
        except StopIteration:
            steps.waited = clock() - start
            return
        steps.waited = clock() - start
        yield batch


def _size(batch: Any) -> tuple[int, int]:
    """Samples and tokens of a batch; without torch in this process there are no tensors in it."""
    if "torch" not in sys.modules:
        return 0, 0
    from perfkit.scripts.tensors import first_tensor, size

    return size(first_tensor(batch))


def _synchronize() -> None:
    """Waits until a GPU has finished its work, if one is used."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


@contextlib.contextmanager
def observed(clock: Clock = time.perf_counter) -> Iterator[Tracked]:
    """Notes the steps of any loop over a `DataLoader` while the context lasts; afterwards all is as before.

    A step ends with the step of an optimizer; what is fetched between two of them belongs to the second.
    """
    from torch.optim import optimizer
    from torch.utils.data import dataloader

    tracked = Tracked()
    steps = _Steps(tracked, clock)
    base: Any = dataloader._BaseDataLoaderIter
    plain, here = base.__next__, threading.current_thread()
    counts = [0, 0]
    last: list[Any] = []

    def fetch(iterator: Any) -> Any:
        if threading.current_thread() is not here:
            return plain(iterator)
        start = clock()
        if not tracked.step_s and not counts[0]:
            steps.since = start
        batch = plain(iterator)
        steps.waited += clock() - start
        samples, tokens = _size(batch)
        counts[0], counts[1] = counts[0] + samples, counts[1] + tokens
        return batch

    def stepped(which: Any, *_: Any) -> None:
        last[:] = last or [which]
        if which is last[0]:  # with several optimizers, the first one ends a step
            steps._size = (counts[0], counts[1])
            steps.end()
            counts[:] = [0, 0]

    handle = optimizer.register_optimizer_step_post_hook(stepped)
    base.__next__ = fetch
    try:
        yield tracked
    finally:
        base.__next__ = plain
        handle.remove()
        steps.finish()
