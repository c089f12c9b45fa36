"""Devices that are not there, for the checks of puzzles: a simulated GPU with a clock, a queue, a machine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

from perfkit.ladder import catalogue
from perfkit.puzzles import device
from perfkit.recipe import Recipe
from perfkit.simulate import host
from perfkit.simulate.queue import Action, Clock, Launch, Link, Queue
from perfkit.simulate.step import Copy, Fetch, Wait


class SimulatedGpu:
    """A device with a clock: every operator takes the same time, copies take theirs.

    Tensors on it have shapes and no numbers. `torch.cuda.Stream`, `stream` and `current_stream` are its own
    while it is entered.

    Args:
        kernel_s: of each operator.
        link_gbs: of copies, which are from pinned memory.
        pinned: whether batches are in pinned memory.
    """

    def __init__(self, kernel_s: float = 1e-3, link_gbs: float = 10.0, pinned: bool = True) -> None:
        self.kernel_s, self.pinned = kernel_s, pinned
        self.clock = Clock()
        self.queue = Queue(self.clock, Link(link_gbs * 1e9, link_gbs * 5e8))
        self.device = device.register()
        self.copies: list[tuple[torch.Tensor, bool, int]] = []
        """To the device: tensor, non_blocking, stream."""
        self.to_host = 0
        self.host_waits: list[str] = []
        self.unsafe = 0
        """Operators that may read a batch before its copy has ended."""
        self.protected: set[int] = set()
        self._stream = 0
        self._copied: dict[int, tuple[int, int]] = {}
        """Of each storage that was copied: the number of the copy, from 1, and its stream."""
        self._ordered: dict[tuple[int, int], int] = {}
        """Up to which copy of the second stream the first one has waited."""

    def __enter__(self) -> SimulatedGpu:
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(device.recording(self))

        def protect(tensor: torch.Tensor, stream: Any = None) -> None:
            self.protected.add(tensor.untyped_storage()._cdata)

        self._stack.enter_context(mock.patch.object(torch.Tensor, "record_stream", protect))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def is_protected(self, tensor: torch.Tensor) -> bool:
        """Whether `record_stream` keeps its memory from being used again too early."""
        return tensor.untyped_storage()._cdata in self.protected

    def operator(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """An operator is launched on the current stream."""
        for tensor in (arg for arg in args if device.is_simulated(arg)):
            number, stream = self._copied.get(tensor.untyped_storage()._cdata, (0, self._stream))
            self.unsafe += stream != self._stream and number > self._ordered.get((self._stream, stream), 0)
        if "empty" not in func.name() and "view" not in func.name():
            self.queue.issue(Launch(1e-5, 5e-6, [self.kernel_s], stream=self._stream))

    def hold(self, tree: Any) -> None:
        """Memory is not followed."""

    def copied(self, tensor: torch.Tensor, to: str, non_blocking: bool) -> None:
        """A copy between host and device."""
        if to == "host":
            self.to_host += 1
            self.waits("copy to the host")
            return
        self.copies.append((tensor, non_blocking, self._stream))
        self._copied[tensor.untyped_storage()._cdata] = len(self.copies), self._stream
        self.queue.issue(Copy(tensor.nbytes, "device", self.pinned, non_blocking, self._stream))

    def waits(self, what: str, streams: tuple[int, int] | None = None) -> None:
        """The host waits, or a stream for another."""
        if streams is None:
            self.host_waits.append(what)
            self._copied.clear()  # all copies have ended
        else:
            self._ordered[streams] = len(self.copies)
        self.queue.issue(Wait(what, streams=streams))

    def stream(self, number: int) -> None:
        """Another stream is current."""
        self._stream = number

    @property
    def seconds(self) -> float:
        """Until all that was issued is done."""
        return max(self.clock.now, self.queue.ends())


@dataclass
class AsyncGpu:
    """A device that is only a queue, and the clocks of Python and of CUDA events as it would show them.

    While it is entered, `time.perf_counter` and similar functions read the virtual clock, and
    `torch.cuda.synchronize` waits for the queue.
    """

    kernel_s: float
    launch_s: float = 1e-4
    first_s: float = 1.0
    """What the first step takes longer on the host: compiling, allocating."""
    clock: Clock = field(default_factory=Clock)
    steps: int = 0

    def __post_init__(self) -> None:
        self.queue = Queue(self.clock, Link(1e10, 5e9))

    def step(self) -> None:
        """A training step, as the host sees it: it launches and returns."""
        self.steps += 1
        self.clock.work(self.first_s if self.steps == 1 else 0.0)
        self.queue.issue(Launch(0.0, self.launch_s, [self.kernel_s]))

    @contextlib.contextmanager
    def patched(self) -> Iterator[None]:
        """Python's clocks and CUDA's waits are this device's."""
        gpu = self

        class Event:
            def __init__(self, *_: Any, **__: Any) -> None:
                self.at = 0.0

            def record(self, *_: Any) -> None:
                self.at = max(gpu.clock.now, gpu.queue.ends())

            def synchronize(self) -> None:
                gpu.clock.wait_until(self.at)

            def elapsed_time(self, other: Any) -> float:
                return 1e3 * (float(other.at) - self.at)

        def now() -> float:
            return gpu.clock.now

        def sync(*_: Any) -> None:
            gpu.clock.wait_until(gpu.queue.ends())

        clocks: dict[str, Any] = {}
        for name in ("perf_counter", "monotonic", "time", "process_time"):
            clocks |= {name: now, f"{name}_ns": lambda: int(1e9 * now())}
        with (
            mock.patch.multiple(time, **clocks),
            mock.patch.multiple(torch.cuda, synchronize=sync, Event=Event, is_available=lambda: True),
            mock.patch.object(torch.accelerator, "synchronize", sync),
        ):
            yield


class VirtualTraining:
    """A training on a virtual machine, by the model of `perfkit.simulate.host`.

    Args:
        settings: switches of a recipe.
        cores: of the host.
        fetch_s: of a core, for one sample.
        kernel_s: of the device, for a step.
        sample_bytes: which are copied.
    """

    def __init__(
        self, settings: Mapping[str, Any], cores: int, fetch_s: float, kernel_s: float, sample_bytes: int = 0
    ) -> None:
        self.recipe = Recipe().replace(**settings)
        copy = Copy(
            self.recipe.batch_size * sample_bytes,
            pinned=self.recipe.pin_memory,
            non_blocking=self.recipe.non_blocking,
        )
        step: list[Action] = [Fetch(), copy, Launch(1e-4, 5e-6, [kernel_s])]
        machine = host.Host(
            name="puzzle", processors=cores, cores=cores, fetch_s=fetch_s, pageable_gbs=3.0, link_gbs=12.0
        )
        outcome = host.run(step, self.recipe, machine, gpu_link_gbs=12.0, fetch_s=fetch_s)
        self.step_s, self.data_wait_s = outcome.step_s, outcome.data_wait_s

    @property
    def exactness(self) -> str:
        """Whether it trains as the default recipe does."""
        return catalogue.exactness(self.recipe, Recipe())
