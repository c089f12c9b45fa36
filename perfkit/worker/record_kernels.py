"""Records how long the operators of training steps take on this device, for `simulate.recorded`.

Real training steps are taken, and every operator of a kind and size that is not yet known is repeated on its
own inputs, between two events of the device. So types, shapes and layouts are those of training, and the
names are those of a planned step.
"""

from __future__ import annotations

import datetime
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from msgspec import json
from msgspec.structs import replace
from torch.utils._python_dispatch import TorchDispatchMode

from perfkit import machine
from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.simulate import describe, recorded
from perfkit.simulate.recorded import Entry, KernelRecording
from perfkit.simulate.step import Operator
from perfkit.train import Training
from perfkit.worker.messages import RecordKernels
from perfkit.worker.reports import KernelsRecorded

_LEAST, _MOST = 5, 30
"""Repeats of an operator."""
_PER_OPERATOR_S = 0.05
"""Long operators are repeated less often, so that each takes about as long."""
_WRITE_EVERY_S = 20.0
_COLD_BYTES = 256 << 20
"""Written before each repeat, so that no input is left in a cache of the GPU; more than any has."""


class Timer(Protocol):
    """Seconds that a call takes on a device, each time it is repeated."""

    def __call__(self, work: Callable[[], Any], repeats: int) -> list[float]:
        """One value for each repeat, after one call that is not counted."""


class CudaTimer:
    """Two events around each call; the host is ahead of the device, so that no launch is in between."""

    def __init__(self, device: torch.device) -> None:
        self._cold = torch.empty(_COLD_BYTES, dtype=torch.uint8, device=device)

    def __call__(self, work: Callable[[], Any], repeats: int) -> list[float]:
        """Seconds of each repeat, by the device's clock."""
        work()
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
        for start, end in pairs:
            self._cold.zero_()  # takes longer than the launches below, which therefore wait in the queue
            start.record()
            work()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in pairs]


class _Enough(Exception):
    """The time for recording is over."""


class _Watch(TorchDispatchMode):
    """Hands every operator of a step, with a call that repeats it, to a function."""

    def __init__(self, device: torch.device, take: Callable[[Operator, Callable[[], Any]], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._type, self._take = device.type, take

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        if operator := describe.operator_of(
            func, args, kwargs or {}, outputs, lambda tensor: tensor.device.type == self._type
        ):
            self._take(operator, lambda: func(*args, **(kwargs or {})))
        return outputs


class Recorder:
    """Takes training steps and times their operators.

    Args:
        recording: what is known already; its circumstances are those of this device.
        timer: of the device.
        seconds: after which it stops.
        has_tf32: whether the device can compute float32 in TF32.
        clock: of the host.
        clock_mhz: reads that of the multiprocessors, while they are busy or have just been.
    """

    def __init__(
        self, recording: KernelRecording, timer: Timer, seconds: float, has_tf32: bool = False,
        clock: Callable[[], float] = time.monotonic, clock_mhz: Callable[[], float | None] = lambda: None,
    ) -> None:  # fmt: skip
        self._clock_mhz = clock_mhz
        self.recording, self._timer, self._clock, self._has_tf32 = recording, timer, clock, has_tf32
        self._deadline = clock() + seconds
        self._entries = list(recording.entries)
        self._known = {_key(entry) for entry in self._entries}
        self._overhead_s = statistics.median(timer(lambda: None, _MOST))
        self._skipped: dict[str, str] = {}

    def record(
        self, workload: Any, recipes: Sequence[Recipe], device: torch.device, seed: int, path: Path,
        progress: Callable[[str, int, int], None] = lambda phase, done, total: None,
    ) -> KernelsRecorded:  # fmt: skip
        """Records a step of each recipe, in this order; writes the file now and then, and at the end."""
        before, complete, written = len(self._entries), True, self._clock()
        try:
            for number, recipe in enumerate(recipes):
                progress(f"recording {recipe.describe()}", number, len(recipes))
                try:
                    self._step(workload, recipe, device, seed)
                except torch.OutOfMemoryError:
                    self._skipped[recipe.describe()] = "it does not fit into the device's memory"
                if device.type == "cuda":
                    torch.cuda.empty_cache()
                if self._clock() - written > _WRITE_EVERY_S:
                    self._write(path, complete=False)
                    written = self._clock()
        except _Enough:
            complete = False
        self._write(path, complete)
        return KernelsRecorded(
            path=str(path), name=self.recording.name, entries=len(self._entries),
            new=len(self._entries) - before, complete=complete, skipped=self._skipped,
        )  # fmt: skip

    def _step(self, workload: Any, recipe: Recipe, device: torch.device, seed: int) -> None:
        """Two steps on a batch that is on the device; the operators of the second one are timed."""
        training = Training(workload, recipe, device, seed)
        batch = tuple(part.to(device) for part in next(iter(training.loader)))
        batches = training.batches(itertools.repeat(batch))
        training.step(batches)
        with _Watch(device, lambda operator, work: self._take(operator, work, recipe)):
            training.step(batches)

    def _take(self, operator: Operator, work: Callable[[], Any], recipe: Recipe) -> None:
        entry = Entry(
            operator.name, operator.inputs, operator.outputs, operator.attributes, 1.0, 1, 0.0,
            self._precision(operator.name, recipe), recipe.cudnn_benchmark,
        )  # fmt: skip
        if (key := _key(entry)) in self._known:
            return
        if self._clock() > self._deadline:
            raise _Enough
        (first,) = self._timer(work, 1)
        repeats = min(_MOST, max(_LEAST, int(_PER_OPERATOR_S / max(first, 1e-6))))
        seconds = np.array(self._timer(work, repeats))
        low, middle, high = np.quantile(seconds, [0.25, 0.5, 0.75]).tolist()
        # What is shorter than the overhead of timing is known to be short, no more.
        least = max(middle - self._overhead_s, 0.1 * self._overhead_s, 1e-9)
        self._entries.append(replace(entry, seconds=least, repeats=repeats, iqr_s=high - low))
        self._known.add(key)

    def _precision(self, name: str, recipe: Recipe) -> Any:
        """Of float32, if the operator is a product: torch's own choice is TF32 for convolutions alone."""
        convolutions = "ieee" if recipe.fp32_precision == "ieee" else "tf32"
        products = "tf32" if recipe.fp32_precision == "tf32" else "ieee"
        return recorded.precision_of(name, convolutions, products) if self._has_tf32 else "ieee"

    def _write(self, path: Path, complete: bool) -> None:
        done = replace(
            self.recording, entries=self._entries, overhead_s=self._overhead_s, complete=complete,
            skipped=self.recording.skipped | self._skipped, clock_mhz=self._clock_mhz(),
        )  # fmt: skip
        machine.write_atomically(path, json.encode(done))


def _key(entry: Entry) -> Any:
    operator = Operator(entry.name, "forward", entry.inputs, entry.outputs, entry.attributes)
    return recorded.key_of(operator, entry.precision, entry.searched)


def record(
    workload: Any, command: RecordKernels, device: torch.device,
    progress: Callable[[str, int, int], None] = lambda phase, done, total: None,
) -> KernelsRecorded:  # fmt: skip
    """Records the operators of some recipes on a CUDA device; what its file has already is not repeated.

    Raises:
        InvalidValue: the file is of another GPU or of other versions.
        StoreError: the file is not a recording.
    """
    path, here = Path(command.path), _circumstances(command.gpu, device)
    if path.exists():
        before = recorded.load(path)
        changed = [
            f"{name} {getattr(before, name)}, not {getattr(here, name)}"
            for name in ("name", "torch", "cuda", "cudnn")
            if getattr(before, name) != getattr(here, name)
        ]
        if changed:
            raise InvalidValue(
                f"{path} was recorded with {', '.join(changed)}", "Move it away, or give --out"
            )
        here = replace(here, entries=before.entries, skipped=before.skipped)
    has_tf32 = torch.cuda.get_device_capability(device)[0] >= 8
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    recorder = Recorder(
        here, CudaTimer(device), command.seconds, has_tf32, clock_mhz=lambda: _clock_mhz(uuid)
    )
    recipes = [Recipe.from_dict(recipe) for recipe in command.recipes]
    return recorder.record(workload, recipes, device, command.seed, path, progress)


def _circumstances(gpu: str, device: torch.device) -> KernelRecording:
    properties = torch.cuda.get_device_properties(device)
    uuid = f"GPU-{properties.uuid}"
    drivers = [facts["driver"] for facts in machine.facts()["gpus"] if facts["uuid"] == uuid]
    return KernelRecording(
        gpu=gpu, name=properties.name, driver=str(next(iter(drivers), None) or "unknown"),
        torch=str(torch.__version__), cuda=str(torch.version.cuda),
        cudnn=str(torch.backends.cudnn.version()),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        clock_mhz=None, overhead_s=0.0, complete=False,
    )  # fmt: skip


def _clock_mhz(uuid: str) -> float | None:
    states = machine.read_conditions()["gpus"]
    return next((state["sm_clock_mhz"] for state in states if state["uuid"] == uuid), None)
