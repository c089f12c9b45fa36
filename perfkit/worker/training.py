"""The training program, taken step by step: what it has built, its batches, the parts of its steps."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from perfkit import prefetch, train
from perfkit.recipe import Recipe

Clock = Callable[[], float]
OnPhase = Callable[[str], AbstractContextManager[Any]]
"""Called with the name of a part of a step (data, copy, forward, backward, optimizer); entered around it."""

_plain_endless = train.endless


class Feed:
    """The batches of a training. It times how long each is waited for, and can repeat one.

    Whatever reads ahead (a device prefetcher) reads from here too, so a step's wait is all the waiting that
    happened during it.

    Args:
        batches: without end.
        clock: gives seconds.
    """

    def __init__(self, batches: Iterator[Any], clock: Clock) -> None:
        self._batches = batches
        self._clock = clock
        self._waited = 0.0
        self._repeated: Any = None
        self.count = 0
        """Batches that were taken."""
        self.last: Any = None
        """The last batch, as the loader gave it, while `keeps_last`."""
        self.keeps_last = False
        self.stamps: list[tuple[int, float, float]] = []
        """Of each batch: its number from 0, when it was requested, when it was received."""
        self.phase: OnPhase | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._repeated is not None:
            return self._repeated
        start = self._clock()
        with self.phase("data") if self.phase else contextlib.nullcontext():
            batch = next(self._batches)
        end = self._clock()
        self._waited += end - start
        self.stamps.append((self.count, start, end))
        self.count += 1
        if self.keeps_last:
            self.last = batch
        return batch

    def take_waited(self) -> float:
        """Seconds waited since the last call."""
        waited, self._waited = self._waited, 0.0
        return waited

    @contextlib.contextmanager
    def repeat(self, batch: Any) -> Iterator[None]:
        """Gives nothing but this batch, without asking the loader."""
        self._repeated = batch
        try:
            yield
        finally:
            self._repeated = None


class Training:
    """The program for a recipe, built up to its first step.

    Args:
        recipe: every switch.
        workload: what is trained.
        device: where.
        seed: of weights and order.
        batches: takes the place of the loader's batches.
        on_loader: called with the loader before its first batch.
        clock: gives seconds.
    """

    loader: Any
    model: Any
    optimizer: Any
    scaler: Any
    device: torch.device
    """With several ranks on GPUs, this rank's own."""

    def __init__(
        self,
        recipe: Recipe,
        workload: Any,
        device: torch.device,
        seed: int = 0,
        batches: Iterable[Any] | None = None,
        on_loader: Callable[[Any], None] = lambda loader: None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.recipe = recipe
        self.workload = workload
        self.device = device
        self.built_at: float
        """`time.time()` when everything was built, just before the first batch."""
        self._on_loader = on_loader
        self._clock = clock
        self._batches = iter(batches) if batches is not None else None
        self._program: Any = train.train(recipe, workload, device, seed)

    def _feed(self, loader: Any) -> Feed:
        self._on_loader(loader)
        self.feed = Feed(self._batches or _plain_endless(loader), self._clock)
        self.built_at = time.time()
        return self.feed

    def step(self) -> torch.Tensor:
        """One optimizer step; the loss, on the device. The first one builds everything."""
        if hasattr(self, "feed"):
            return next(self._program)  # type: ignore[no-any-return]
        train.endless = self._feed
        try:
            loss: torch.Tensor = next(self._program)
        finally:
            train.endless = _plain_endless
        names = self._program.gi_frame.f_locals
        for name in ("loader", "model", "optimizer", "scaler", "device"):
            setattr(self, name, names[name])
        names.clear()  # the frame keeps this dictionary, and with it the first batch
        return loss

    @property
    def iterator(self) -> Any:
        """The loader's iterator, which has its worker processes; None without, and before the first batch."""
        return getattr(getattr(self, "loader", None), "_iterator", None)

    @property
    def samples_per_step(self) -> int:
        """Samples of an optimizer step, of all ranks."""
        return self.recipe.batch_size * self.recipe.accumulation * self.recipe.ranks

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Trains on one batch that is already on the device, without the loader."""
        batch = [part.to(self.device) for part in next(self.feed)]
        with self.feed.repeat(batch):
            yield

    @contextlib.contextmanager
    def phases(self, on_phase: OnPhase) -> Iterator[None]:
        """Enters what `on_phase` returns around each part of the steps that are taken meanwhile."""

        @contextlib.contextmanager
        def observed(name: str) -> Iterator[None]:
            with on_phase(name), record_function(name):
                yield

        programs: Any = (train, prefetch)
        for module in programs:
            module.record_function = observed
        if hasattr(self, "feed"):
            self.feed.phase = observed
        try:
            yield
        finally:
            for module in programs:
                module.record_function = record_function
            if hasattr(self, "feed"):
                self.feed.phase = None


def inner_model(model: Any) -> Any:
    """The workload's own module, inside of what compiles or distributes it."""
    ddp = distributed_model(model)
    return ddp.module if ddp else getattr(model, "_orig_mod", model)


def distributed_model(model: Any) -> DistributedDataParallel | None:
    """The module that averages gradients over the ranks; None with one rank."""
    model = getattr(model, "_orig_mod", model)
    return model if isinstance(model, DistributedDataParallel) else None


def is_compiled(model: nn.Module) -> bool:
    """Whether torch.compile has wrapped the model."""
    return isinstance(model, torch._dynamo.eval_frame.OptimizedModule)
