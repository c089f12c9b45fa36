"""What is inside a step: the memory it holds, its FLOPs, and what the device can do by shape.

Memory is that of every tensor's storage, from its allocation until it is freed: the tensors that operators
return, on a CPU as on a GPU. What a library allocates for itself inside one operator (cuDNN's workspace), and
the allocator's reserve, are not tensors: they are the difference to the allocator's own figures.

Peaks are measured, not taken from a data sheet: the best of some large products, and a large copy.
"""

import contextlib
import math
import statistics
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import FlopCounterMode

from perfkit.additions.inside import KernelReport, MemoryReport, ShapeTiming
from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.train import DTYPES
from perfkit.worker.checks import dtype_name, facts, is_tf32_supported, peak_bytes, reset_peak
from perfkit.worker.procedure import Procedure
from perfkit.worker.session import WorkerSession
from perfkit.worker.timeline import Timeline
from perfkit.worker.training import Training

# ---------------------------------------------------------------- memory

KIND_IN = {"forward": "activations", "data": "batch"}
"""The kind of what a phase allocates, unless more is known about it; other phases allocate workspace."""

Storage = list[Any]
"""The kind and size of a storage. The kind can change: a gradient is recognised after its allocation."""


class Ledger(TorchDispatchMode):
    """Accounts for all storages of a training while it is active."""

    def __init__(self, training: Training) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._training = training
        self._phase = "data"
        self._live = weakref.WeakKeyDictionary[torch.UntypedStorage, Storage]()
        self._bytes = 0
        self.peak: tuple[int, str, list[Storage]] = 0, "", []  # bytes, phase, and all storages

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        self._note("", outputs)
        return outputs

    def _note(self, kind: str, *values: object) -> None:
        """Records tensors under this kind, or else under the kind that the phase implies."""
        for tensor in tree_iter(values):
            if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
                continue
            if tensor.device.type != self._training.device.type:
                continue
            storage = tensor.untyped_storage()
            if known := self._live.get(storage):
                known[0] = kind or known[0]
                continue
            size = storage.nbytes()
            self._live[storage] = [kind or KIND_IN.get(self._phase, "workspace"), size]
            self._bytes += size
            weakref.finalize(storage, self._freed, size)
            if self._bytes > self.peak[0]:
                self.peak = self._bytes, self._phase, list(self._live.values())

    def _freed(self, size: int) -> None:
        self._bytes -= size

    @contextlib.contextmanager
    def in_phase(self, name: str) -> Iterator[None]:
        """Counts what is allocated while it is active under this phase; copies count as data.

        Weights, gradients and optimizer state keep their kind, wherever they were allocated.
        """
        self._phase = "data" if name == "copy" else name
        model = self._training.model
        parameters = list(model.parameters())
        self._note("weights", [value.data for value in parameters], list(model.buffers()))
        self._note("gradients", [value.grad for value in parameters])
        self._note("optimizer", list(self._training.optimizer.state.values()))
        try:
            yield
        finally:
            self._phase = "data"


def memory(session: WorkerSession) -> MemoryReport:
    """Takes some steps and accounts for their memory; a compiled model is an `InvalidValue`."""
    training = session.subject
    if training.recipe.compile:
        what = "the memory of a compiled model cannot be tracked, because its kernels allocate on their own"
        raise InvalidValue(what, "Use the recipe with compile=off")
    ledger = Ledger(training)
    reset_peak(training.device)
    with training.phases(ledger.in_phase), ledger:
        for _ in range(2):
            training.step()
    _, phase, storages = ledger.peak
    allocated, reserved = peak_bytes(training.device) if training.device.type == "cuda" else (None, None)
    return MemoryReport.of(
        storages, peak_phase=phase, allocated=allocated, reserved=reserved, recipe=training.recipe.describe()
    )


# ---------------------------------------------------------------- what the device can do

REPEATS, LAUNCHES, ENOUGH_S = 7, 20, 0.02
SLOW_S = 3.0
"""Of all products together, which are measured once then; emulated 16 bits took minutes, and end there."""
DEPTHS = (1536, 1504, 1500, 1503)
"""The k of the slides' product (m × k × n), and nearby sizes: multiples of 64, 8 and 4, and an odd one."""
WIDTHS_ON_GPU, WIDTHS_ON_CPU = (10_048, 10_000, 9_996, 9_999), (2_560, 2_504, 2_500, 2_503)
"""The same for n. On a CPU, n and m are a quarter of the slides'."""


def kernels(session: WorkerSession) -> Procedure:
    """Measures a `KernelReport`: the device's roofs, a sweep of shapes, and the work of a step."""
    taken = yield from session.take(8, "measuring")
    step_s = statistics.median(taken.step_s)  # some steps are longer, as other programs took the cores
    training, device = session.subject, session.subject.device
    big = device.type != "cpu"
    m, widths = (576, WIDTHS_ON_GPU) if big else (144, WIDTHS_ON_CPU)
    shapes = [(m, k, n) for k in DEPTHS for n in widths]
    shapes += [(each, DEPTHS[1], widths[1]) for each in (m - 1, 8)]  # an odd m, and a small one
    shapes += [(n, n, n) for n in ((1024, 4096, 8192) if big else (512, 1024))]
    rows = list[ShapeTiming]()
    peaks = dict[str, float]()
    settings = torch.backends.cuda.matmul
    usual = settings.fp32_precision
    for kind, (dtype, precision) in _formats(device).items():
        factors = partial(torch.randn, device=device, dtype=dtype)
        products = [partial(torch.mm, factors(m, k), factors(k, n)) for m, k, n in shapes]
        settings.fp32_precision = precision or usual
        least = _least_s(device, products, SLOW_S if rows else math.inf)  # all of float32
        settings.fp32_precision = usual  # not in a `finally`: an error ends this process
        for (m, k, n), seconds in zip(shapes, least, strict=False):
            rate = 2 * m * k * n / seconds
            moved = (m * k + k * n + m * n) * dtype.itemsize
            rows.append(ShapeTiming(f"{m} x {k} x {n}", kind, seconds, rate, rate * seconds / moved))
            peaks[kind] = max(rate, peaks.get(kind, 0.0))
    source = torch.empty(1 << (30 if big else 26), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    (copy_s,) = _least_s(device, [lambda: target.copy_(source)], math.inf)
    return KernelReport(
        peaks=peaks,
        bytes_per_s=2 * source.nbytes / copy_s,  # read and written
        rows=rows,
        flops=flops(training),
        dtype=_format(training.recipe, training.model, peaks),
        step_s=step_s,
        recipe=training.recipe.describe(),
    )


def _formats(device: torch.device) -> dict[str, tuple[torch.dtype, str]]:
    """The formats that a device supports without emulation: their type, and the precision of float32."""
    plain = {"float32": (torch.float32, "ieee")}
    if device.type == "cpu":
        return plain | {"bfloat16": (torch.bfloat16, "")}
    if is_tf32_supported(device):
        plain |= {"tf32": (torch.float32, "tf32")}
    if facts(device).bf16 is not False:
        plain |= {"bfloat16": (torch.bfloat16, "")}
    return plain | {"float16": (torch.float16, "")}


def _format(recipe: Recipe, model: nn.Module, peaks: Mapping[str, float]) -> str:
    """The fastest format that a step computes in. TF32, if the GPU has it, is the default in convolutions."""
    if dtype := DTYPES[recipe.amp]:
        return dtype_name(dtype)
    convolves = any(isinstance(part, nn.modules.conv._ConvNd) for part in model.modules())
    wants_tf32 = recipe.fp32_precision == "tf32" or (recipe.fp32_precision == "default" and convolves)
    return "tf32" if wants_tf32 and "tf32" in peaks else "float32"


def flops(training: Training) -> int | None:
    """FLOPs of a step's products and convolutions; None in a compiled one and in cuDNN's recurrent layers."""
    is_recurrent = any(isinstance(part, nn.RNNBase) for part in training.model.modules())
    if training.recipe.compile or (is_recurrent and training.device.type != "cpu"):
        return None  # torch has no formula for them
    with FlopCounterMode(display=False) as counter:
        training.step()
    return int(counter.get_total_flops())


def _seconds(device: torch.device, call: Callable[[], object], launches: int) -> float:
    """Seconds per call by the device's own clock, over some calls launched one after the other.

    By the host's clock a product of 20 µs would be mostly its launch and the wait for its end.
    """
    ends = Timeline(device)
    for _ in range(launches):
        call()
    ends.mark()
    return sum(ends.step_s()) / launches


def _least_s(device: torch.device, calls: Sequence[Callable[[], object]], limit_s: float) -> list[float]:
    """The least seconds of calls that alternate, because of drift; none of those after the limit."""
    first: list[float] = []
    for call in calls:
        if sum(first) <= limit_s:
            first.append(_seconds(device, call, 1))
    if sum(first) > SLOW_S:  # such as emulated types, for which planning and allocating add little
        return first
    once = [_seconds(device, call, 1) for call in calls]
    counts = [min(LAUNCHES, math.ceil(ENOUGH_S / seconds)) for seconds in once]  # up to 0.3 s on a T4
    rounds = [list(map(partial(_seconds, device), calls, counts)) for _ in range(REPEATS)]
    return [min(times) for times in zip(*rounds, strict=True)]
