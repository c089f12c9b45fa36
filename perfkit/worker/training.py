"""The training program, run step by step and observed: the objects it builds, its batches, its parts."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.profiler import record_function

from perfkit import train
from perfkit.program import Program
from perfkit.recipe import Recipe
from perfkit.worker.checks import View, compile_counters, first_tensor
from perfkit.worker.procedure import MeasuredStep, workers_stopped

OnPhase = Callable[[str], AbstractContextManager[Any]]
"""Called with the name of a part of a step (data, copy, forward, backward, optimizer); entered around it."""


class MeasuredProgram(Program):
    """The program of a measured training, whose batches are the loader's or their `replacements`."""

    def __init__(self, replacements: Iterable[Any] | None = None) -> None:
        self._replacements = replacements
        self.parts: tuple[Any, ...] = ()  # loader, model, optimizer, scaler and device, once they are built
        self.built_at = 0.0
        self.waited = 0.0  # seconds that the program has waited for batches
        self.on_phase: OnPhase | None = None
        self.source: Iterator[Any] = iter(())  # where the next batch comes from

    def built(self, loader: Any, model: Any, optimizer: Any, scaler: Any, device: torch.device) -> None:
        self.parts = loader, model, optimizer, scaler, device
        self.built_at = time.time()

    def batches(self, loader: Any) -> Iterator[Any]:
        self.source = super().batches(loader) if self._replacements is None else iter(self._replacements)
        return self._fetched()

    def _fetched(self) -> Iterator[Any]:
        while True:
            yield self.fetch()

    def fetch(self) -> Any:
        start = time.perf_counter()
        with self.part("data"):
            batch = next(self.source)
        self.waited += time.perf_counter() - start
        return batch

    def part(self, name: str) -> AbstractContextManager[Any]:
        if self.on_phase:
            return _named(name, self.on_phase)
        # In a profile, torch itself already names the wait for the loader.
        return contextlib.nullcontext() if name == "data" else super().part(name)


@contextlib.contextmanager
def _named(name: str, on_phase: OnPhase) -> Iterator[None]:
    with on_phase(name), record_function(name):
        yield


class Training:
    """A training that has been started: it has taken its first step, which builds everything.

    It is a `procedure.Subject`, and shows its switches in an `observed_step`. `batches`, if given,
    replace the loader's.
    """

    def __init__(
        self,
        recipe: Recipe,
        workload: Any,
        device: torch.device,
        seed: int = 0,
        batches: Iterable[Any] | None = None,
    ) -> None:
        self.recipe = recipe
        self.samples_per_step = recipe.batch_size * recipe.accumulation
        program = MeasuredProgram(batches)
        self._program = program
        self._steps = train.train(recipe, workload, device, seed, program)
        self.first = self.step()
        self.loader, self.model, self.optimizer, self.scaler, self.device = program.parts
        self.iterator = self.loader._iterator  # None without workers
        self.built_at = program.built_at
        self.first_graphs = compile_counters().graphs

    def step(self) -> MeasuredStep:
        """Takes one optimizer step. Its wait is all waiting for batches in it, even that of a prefetcher."""
        start = time.perf_counter()
        self._program.waited = 0.0
        loss = next(self._steps)
        return MeasuredStep(time.perf_counter() - start, self._program.waited, self.samples_per_step, loss)

    def stop(self) -> None:
        """Ends the loader's workers at once; the garbage collector would take 5 seconds for each."""
        if self.iterator:
            self.iterator._shutdown_workers()

    @contextlib.contextmanager
    def on_cached_batch(self) -> Iterator[None]:
        """Trains on one batch that is already on the device, with the loader's workers stopped."""
        program = self._program
        source = program.source
        batch = [part.to(self.device) for part in program.fetch()]
        program.source = itertools.repeat(batch)
        try:
            with workers_stopped(self.iterator):
                yield
        finally:
            program.source = source

    @contextlib.contextmanager
    def phases(self, on_phase: OnPhase = lambda name: contextlib.nullcontext()) -> Iterator[None]:
        """Enters what `on_phase` returns around each part of a step, and names the parts in a profile."""
        self._program.on_phase = on_phase
        try:
            yield
        finally:
            self._program.on_phase = None

    def observed_step(self) -> tuple[MeasuredStep, View]:
        """Takes one optimizer step, and shows the effect of each switch in it.

        torch.compile does not notice a hook on the outermost module, so nothing is recompiled.
        """
        observed: dict[str, Any] = {"batches": 0, "updates": 0}
        copies = _Copies(self.device)

        def called(_: Any, inputs: Any, outputs: Any) -> None:
            observed["inputs"] = inputs[0]
            observed["outputs"] = first_tensor(outputs)
            if torch.is_autocast_enabled(self.device.type):
                observed["autocast"] = torch.get_autocast_dtype(self.device.type)

        def updated(*_: Any) -> None:
            observed["updates"] += 1

        def on_phase(name: str) -> AbstractContextManager[Any]:
            if name == "data":
                copies.parts = []
                observed["batches"] += 1
            if name == "forward":
                observed["copies_beside"] = bool(copies.streams) and copies.stream() not in copies.streams
            return copies if name == "copy" else contextlib.nullcontext()

        with (
            self.model.register_forward_hook(called),
            self.optimizer.register_step_post_hook(updated),
            self.phases(on_phase),
        ):
            step = self.step()
        observed |= {"batch": copies.parts, "copies": copies.arguments, "first_graphs": self.first_graphs}
        parts = (self.loader, self.iterator, self.model, self.device, self.optimizer, self.scaler)
        return step, View(*parts, **observed)


class _Copies(TorchFunctionMode):
    """Records the calls of `Tensor.to` while it is active."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self.parts: list[torch.Tensor] = []  # the copied tensors, as the loader returned them
        self.arguments: list[dict[str, Any]] = []  # the keyword arguments of each call
        self.streams: set[int | None] = set()  # the streams of the copies

    def stream(self) -> int | None:
        is_cuda = self._device.type == "cuda"
        return int(torch.cuda.current_stream(self._device).cuda_stream) if is_cuda else None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.to:
            self.parts.append(args[0])
            self.arguments.append(kwargs or {})
            self.streams.add(self.stream())
        return func(*args, **(kwargs or {}))


def loss_values(steps: Sequence[MeasuredStep]) -> list[float]:
    """The losses of steps as numbers."""
    if not steps:
        return []
    values: list[float] = torch.stack([step.loss for step in steps]).float().tolist()
    return values
