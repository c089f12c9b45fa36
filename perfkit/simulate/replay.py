"""A training whose device is simulated: loader, collate and host copies are real, the device is a queue.

The step was planned before. Here it is issued again and again on this machine's clock: batches come from the
real loader, launches keep a core busy for as long as they would, copies from pageable memory are made, and
the device is busy until some time. No kernel runs, so there are no losses.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from perfkit.old_train import make_loader
from perfkit.recipe import Recipe
from perfkit.simulate.queue import Action, Link, Queue
from perfkit.simulate.step import Copy, Fetch

ON_DEVICE = torch.device("meta")
"""Where tensors without numbers lie: a batch there is one that is on the device already."""

_SPIN_S = 3e-4
"""A sleep may end this much too late; the rest is spent spinning."""
_LATE_S = 5e-5
"""What the interpreter takes between two pieces of work is part of the second one, up to this."""


class RealClock:
    """This machine's time."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self._due = 0.0

    def wait_until(self, time_s: float) -> None:
        """Leaves the core to others until then."""
        while (left := time_s - self.now()) > 0:
            if left > _SPIN_S:
                time.sleep(left - _SPIN_S)

    def work(self, seconds: float) -> None:
        """Keeps the core busy."""
        now = self.now()
        start = self._due if 0 <= now - self._due < _LATE_S else now
        self._due = start + seconds
        while self.now() < self._due:
            pass


class Replay:
    """Stands in for `program.train.Training` in the harness.

    Args:
        workload: what is trained.
        recipe: its loader switches act here; the others are in the actions.
        actions: of one step, in the order of the host.
        link: between host and device.
        seed: of the order of the data.
        clock: this machine's.
    """

    device = ON_DEVICE
    model = torch.nn.Module()
    """No layer computes anything."""

    def __init__(
        self, workload: Any, recipe: Recipe, actions: Sequence[Action], link: Link, seed: int = 0,
        clock: RealClock | None = None,
    ) -> None:  # fmt: skip
        self.workload, self.recipe, self.actions = workload, recipe, list(actions)
        self.queue = Queue(clock or RealClock(), link)
        self.loader: Any = _loader(workload, recipe, seed)
        self._staging: dict[tuple[int, ...], Any] = {}
        self._loss = torch.empty((), device=ON_DEVICE)

    def batches(self, source: Iterator[Any]) -> Iterator[Any]:
        """The batches of the loader: copying them is a part of the step."""
        return source

    def step(self, batches: Iterator[Any]) -> torch.Tensor:
        """Issues one step; the loss that it returns has no number."""
        parts: list[Any] = []
        self.queue.begin_step()
        for action in self.actions:
            if isinstance(action, Fetch):
                start = self.queue.clock.now()
                parts = [part for part in next(batches) if isinstance(part, torch.Tensor)]
                self.queue.note("fetch", start)
            elif isinstance(action, Copy) and action.to == "device":
                part = parts.pop(0) if parts else None
                if part is None or not part.is_meta:
                    self.queue.issue(action, partial(self._stage, part))
            else:
                self.queue.issue(action)
        return self._loss

    def _stage(self, part: torch.Tensor | None) -> None:
        """The host's own copy of a pageable tensor, by one thread, as the driver makes it."""
        if part is None:
            return
        source = part.numpy()
        key = (part.nbytes, *part.shape)
        if key not in self._staging:
            self._staging[key] = np.empty_like(source)
        np.copyto(self._staging[key], source)


def _loader(workload: Any, recipe: Recipe, seed: int) -> Any:
    """The real loader; batches that would be pinned go through a thread that copies them."""
    # This machine may have no page-locked memory to offer; what pinning costs the host is a copy.
    loader = make_loader(workload, recipe.replace(pin_memory=False), torch.device("cpu"), seed)
    return PinnedLoader(loader, recipe.workers > 0) if recipe.pin_memory else loader


class PinnedLoader:
    """A loader and its pin thread: each batch is copied once more in host memory.

    torch's own thread works only beside a real accelerator. This one may read two batches further ahead.
    """

    def __init__(self, loader: Iterable[Any], in_thread: bool) -> None:
        self.loader, self.in_thread = loader, in_thread
        self.iterator: Any = None
        """The loader's own, which holds its worker processes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[Any]:
        if not self.in_thread:
            yield from map(_copied, self.loader)
            return
        self.iterator = iter(self.loader)
        ready: queue.Queue[Any] = queue.Queue(1)
        ended = threading.Event()
        threading.Thread(target=_pin, args=(self.iterator, ready, ended), daemon=True).start()
        try:
            while (batch := ready.get()) is not None:
                if isinstance(batch, BaseException):
                    raise batch
                yield batch
        finally:
            ended.set()


def _pin(batches: Iterator[Any], ready: queue.Queue[Any], ended: threading.Event) -> None:
    torch.set_num_threads(1)  # of this thread, as in torch's own
    last: Any = None
    try:
        for batch in batches:
            _put(ready, _copied(batch), ended)
            if ended.is_set():
                return
    except BaseException as problem:  # whoever takes the next batch must hear of it
        last = problem
    _put(ready, last, ended)


def _put(ready: queue.Queue[Any], batch: Any, ended: threading.Event) -> None:
    while not ended.is_set():
        try:
            return ready.put(batch, timeout=0.5)
        except queue.Full:
            continue


def _copied(batch: Any) -> Any:
    return type(batch)(part.clone() if isinstance(part, torch.Tensor) else part for part in batch)
