"""A loop observed in its own process: `for batch in perfkit.track(loader)`, and cells with `%%watch`.

Nothing is set from outside here: model and loader exist already, so there is no other side to compare with.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from perfkit.scripts import tables
from perfkit.scripts.tracked import Tracked
from perfkit.show import terminal
from perfkit.show.document import Content

Batch = TypeVar("Batch")
Clock = Callable[[], float]


class _Steps:
    """The step under way: it begins with the request for its batch."""

    def __init__(self, tracked: Tracked, clock: Clock) -> None:
        self.tracked = tracked
        self._clock = clock
        self._since = clock()
        self._waited = 0.0
        self._samples = 0
        self._tokens = 0
        self.is_open = False

    def fetch(self, fetch: Callable[[], Batch]) -> Batch:
        """Fetches a batch of the step."""
        start = self._clock()
        if not self.tracked.step_s and not self.is_open:
            self._since = start
        try:
            batch = fetch()
        finally:
            self._waited += self._clock() - start
        samples, tokens = _size(batch)
        self._samples, self._tokens = self._samples + samples, self._tokens + tokens
        self.is_open = True
        return batch

    def end(self) -> None:
        """The step has ended."""
        now = self._clock()
        self.tracked.step_s.append(now - self._since)
        self.tracked.wait_s.append(self._waited)
        self.tracked.samples.append(self._samples)
        self.tracked.tokens.append(self._tokens)
        self._since, self._waited, self._samples, self._tokens = now, 0.0, 0, 0
        self.is_open = False

    def finish(self) -> None:
        """The loop is over: the last step includes the device's work."""
        _synchronize()
        if self.tracked.step_s:
            self.tracked.step_s[-1] += self._clock() - self._since - self._waited


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
        batches = iter(self._loader)
        try:
            while True:
                try:
                    batch = steps.fetch(lambda: next(batches))
                except StopIteration:
                    return
                yield batch
                steps.end()
        finally:
            if steps.is_open:  # left by `break`: that step counts
                steps.end()
            steps.finish()
            if not self._quiet and self.tracked.step_s:
                print(f"perfkit: {self.tracked.describe()}", file=sys.stderr)

    def sections(self) -> list[Content]:
        """The figures as a table and a picture."""
        return tables.tracked(self.tracked)

    def show(self) -> None:
        """Prints the table."""
        terminal.show(self.sections())


@contextlib.contextmanager
def observed(clock: Clock = time.perf_counter) -> Iterator[Tracked]:
    """Notes the steps of any loop over a `DataLoader` while the context lasts; afterwards all is as before.

    A step ends with the step of an optimizer; what is fetched between two of them belongs to the second.
    """
    from torch.optim import optimizer
    from torch.utils.data import dataloader

    steps = _Steps(Tracked(), clock)
    base: Any = dataloader._BaseDataLoaderIter
    plain, here = base.__next__, threading.current_thread()
    first: list[Any] = []

    def fetch(iterator: Any) -> Any:
        if threading.current_thread() is not here:
            return plain(iterator)
        return steps.fetch(lambda: plain(iterator))

    def stepped(which: Any, *_: Any) -> None:
        first[:] = first or [which]
        if which is first[0]:  # with several optimizers, the first one ends a step
            steps.end()

    handle = optimizer.register_optimizer_step_post_hook(stepped)
    base.__next__ = fetch
    try:
        yield steps.tracked
    finally:
        base.__next__ = plain
        handle.remove()
        steps.finish()


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
