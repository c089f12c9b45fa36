"""The training program, taken step by step and observed: what it has built, its batches, its parts."""

import contextlib
import itertools
import operator
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from torch.profiler import record_function

from perfkit import parallel, train
from perfkit.parallel import mean_over_ranks
from perfkit.recipe import Recipe
from perfkit.train import endless
from perfkit.worker.checks import View, compile_counters, distributed_model, first_tensor, world
from perfkit.worker.procedure import Step

OnPhase = Callable[[str], AbstractContextManager[Any]]
"""Called with the name of a part of a step (data, copy, forward, backward, optimizer); entered around it."""


class Training(View):
    """The program for a recipe, started: it has taken its first step, which builds everything.

    It is the subject of `Procedures`, and shows its switches after an `observed_step`. `batches` take the
    place of the loader's.
    """

    def __init__(
        self,
        recipe: Recipe,
        workload: Any,
        device: torch.device,
        seed: int = 0,
        batches: Iterable[Any] | None = None,
    ) -> None:
        super().__init__(batches=0)
        self.recipe = recipe
        self.samples_per_step = recipe.batch_size * recipe.accumulation * recipe.ranks
        self.batches_per_step: float = recipe.accumulation
        self._waited = 0.0
        self._on_phase: OnPhase = contextlib.nullcontext

        def feed(loader: Any) -> Iterator[Any]:
            self._batches = endless(loader) if batches is None else iter(batches)
            self.built_at = time.time()
            while True:
                yield self._fetch()

        self._program = train.train(recipe, workload, device, seed)
        with mock.patch.object(train, "endless", feed):
            self.first = self.step()
        names = self._program.gi_frame.f_locals  # type: ignore[attr-defined]
        parts = operator.itemgetter("loader", "model", "optimizer", "scaler", "device")(names)
        # With several ranks on GPUs, the device is this rank's own.
        self.loader, self.model, self.optimizer, self.scaler, self.device = parts
        self.iterator = self.loader._iterator  # None without workers
        self.first_graphs = compile_counters().graphs
        if sys.version_info < (3, 13):
            names.clear()  # the frame keeps this dictionary, and with it the first batch

    def _fetch(self) -> Any:
        start = time.perf_counter()
        with self._on_phase("data"):
            batch = next(self._batches)
        self._waited += time.perf_counter() - start
        return batch

    def step(self) -> Step:
        """Takes one optimizer step.

        Its wait is all the waiting for batches during it, whoever reads ahead (a device prefetcher).
        """
        start, self._waited = time.perf_counter(), 0.0
        loss = next(self._program)
        return Step(time.perf_counter() - start, self._waited, self.samples_per_step, loss)

    def stop(self) -> None:
        """Ends the loader's workers at once; those that are found as garbage end after 5 seconds each."""
        if self.iterator:
            self.iterator._shutdown_workers()

    def hold(self) -> AbstractContextManager[Any]:
        """Trains on one batch that is already on the device, without the loader."""
        batch = [part.to(self.device) for part in self._fetch()]
        return mock.patch.object(self, "_batches", itertools.repeat(batch))

    @contextlib.contextmanager
    def phases(self, on_phase: OnPhase = contextlib.nullcontext) -> Iterator[None]:
        """Enters what `on_phase` returns around each part of the steps that are taken meanwhile.

        They have names in a profile: the program names all but the wait for a batch itself.
        """

        @contextlib.contextmanager
        def observed(name: str) -> Iterator[None]:
            with on_phase(name), record_function(name):
                yield

        with (
            mock.patch.object(train, "record_function", observed),
            mock.patch.object(parallel, "record_function", observed),
            mock.patch.object(self, "_on_phase", observed),
        ):
            yield

    def observed_step(self) -> Step:
        """Takes one optimizer step, and notes what each switch does in it.

        A hook on the outermost module is noticed neither by torch.compile nor by DistributedDataParallel, so
        nothing is compiled again.
        """
        device, ddp, to = self.device, distributed_model(self.model), torch.Tensor.to
        streams = set[int | None]()  # of copies

        def stream() -> int | None:
            return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else None

        def called(_: Any, inputs: Any, outputs: Any) -> None:
            self.inputs, self.outputs = inputs[0], first_tensor(outputs)
            if torch.is_autocast_enabled(device.type):
                self.autocast = torch.get_autocast_dtype(device.type)

        def updated(*_: Any) -> None:
            self.updates += 1

        def copied(part: torch.Tensor, *where: Any, **how: Any) -> torch.Tensor:
            self.batch.append(part)
            self.copies.append(how)
            streams.add(stream())
            return to(part, *where, **how)

        def on_phase(name: str) -> AbstractContextManager[Any]:
            if name == "data":
                self.batch, self.batches = [], self.batches + 1
            if name == "backward" and ddp:
                self.averaged = (self.averaged or 0) + ddp.require_backward_grad_sync
            if name == "forward":
                self.copies_beside = bool(streams) and stream() not in streams
            if name == "copy":
                return mock.patch.object(torch.Tensor, "to", copied)
            return contextlib.nullcontext()

        with (
            self.model.register_forward_hook(called),
            self.optimizer.register_step_post_hook(updated),
            self.phases(on_phase),
        ):
            return self.step()


def losses(steps: Sequence[Step]) -> list[float]:
    """The losses of steps as numbers, averaged over the ranks."""
    if not steps:
        return []
    stacked = torch.stack([step.loss for step in steps]).float()
    return [*(mean_over_ranks(stacked) if world() > 1 else stacked).tolist()]
