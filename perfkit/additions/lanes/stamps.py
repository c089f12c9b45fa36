"""Records when loader workers begin and end each batch; the training process reads it."""

import contextlib
import os
import struct
import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

from torch.utils.data import get_worker_info
from torch.utils.data._utils import fetch

_LAYOUT = struct.Struct("qdd")


class Stamp(NamedTuple):
    """The start and end of a worker's batch, in seconds of `time.perf_counter`, which processes share."""

    worker: int
    start: float
    end: float


class Stamps:
    """The stamps of workers that were forked while `noted` was active."""

    def __init__(self) -> None:
        self._from, self._to = os.pipe()
        for end in (self._from, self._to):
            os.set_blocking(end, False)  # neither a worker nor the training may wait for stamps

    def write(self, start: float) -> None:
        """Called in a worker that has fetched a batch."""
        worker: Any = get_worker_info()
        if worker is not None:
            with contextlib.suppress(BlockingIOError):  # the pipe is full: this stamp is lost
                os.write(self._to, _LAYOUT.pack(worker.id, start, time.perf_counter()))

    def read(self) -> list[Stamp]:
        """The stamps since the last call, in the order in which batches were finished."""
        stamps = list[Stamp]()
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._from, _LAYOUT.size * 128):
                stamps += [Stamp(*values) for values in _LAYOUT.iter_unpack(data)]
        return stamps

    def close(self) -> None:
        """Closes the pipe."""
        os.close(self._from)
        os.close(self._to)


@contextlib.contextmanager
def noted() -> Iterator[Stamps]:
    """Makes loader workers that start while it is active stamp each batch."""
    stamps = Stamps()

    def stamped(kind: Any) -> Any:
        plain = kind.fetch

        def fetch_batch(self: Any, indices: Any) -> Any:
            start = time.perf_counter()
            batch = plain(self, indices)
            stamps.write(start)
            return batch

        return mock.patch.object(kind, "fetch", fetch_batch)

    with stamped(fetch._MapDatasetFetcher), stamped(fetch._IterableDatasetFetcher):
        try:
            yield stamps
        finally:
            stamps.close()


def numbers(stamps: list[Stamp], workers: int, batches: int) -> list[int]:
    """The number of each stamp's batch, counted over epochs of `batches` batches.

    A loader gives batch 0 of an epoch to worker 0, batch 1 to worker 1, and so on.
    """
    done = [0] * workers
    found = []
    for stamp in stamps:
        in_epoch = len(range(stamp.worker, batches, workers))
        epoch, round_ = divmod(done[stamp.worker], in_epoch)
        found.append(epoch * batches + stamp.worker + round_ * workers)
        done[stamp.worker] += 1
    return found
