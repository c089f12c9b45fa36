"""What a device can do and what a training asks of it: measured roofs, shapes, FLOPs and bytes of a step.

Peaks are measured, not taken from a data sheet: the best of some large products, a copy of a large tensor.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

from perfkit.worker.checks import shown
from perfkit.worker.messages import KernelReport, MisalignedLayer, ShapeTiming, StepWork
from perfkit.worker.procedure import synchronize
from perfkit.worker.training import Training, inner_model

REPEATS = 7
MULTIPLE = 8
"""Sizes should be multiples of this for Tensor Cores to compute 16-bit types fast (NVIDIA's rule)."""


def measure(training: Training, step_s: float) -> KernelReport:
    """Roofs of the device, a sweep of shapes, and the work of this training's step."""
    device = training.device
    big = device.type != "cpu"
    dtypes = [torch.float32, torch.bfloat16, *([torch.float16] if big else [])]
    rows = _sweep(device, dtypes, 1 if big else 4)
    sizes = (1024, 4096, 8192) if big else (512, 1024)
    squares = _rows(device, [_product(device, n, n, n, dtype) for dtype in dtypes for n in sizes])
    peaks = {
        shown(dtype): max(row.flops_per_s for row in rows + squares if row.dtype == shown(dtype))
        for dtype in dtypes
    }
    source = torch.empty(1 << (30 if big else 26), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    bytes_per_s = 2 * source.nbytes / _timed(device, [lambda: target.copy_(source)])[0]  # read and written
    step_work, operators = work(training)
    mfu, light_share = shares(step_work, operators, step_s, peaks, bytes_per_s)
    return KernelReport(
        peaks=peaks,
        bytes_per_s=bytes_per_s,
        rows=rows,
        work=step_work,
        misaligned=misaligned(inner_model(training.model)),
        step_s=step_s,
        mfu=mfu,
        light_share=light_share,
        recipe=training.recipe.describe(),
        device=str(device),
    )


# ---------------------------------------------------------------- shapes


def _timed(device: torch.device, calls: Sequence[Callable[[], Any]]) -> list[float]:
    """The least seconds of each call; they alternate, so that drift affects all of them alike.

    The least, not the median: the question is what the device can do, and every disturbance adds time.
    """
    rounds = []
    for _ in range(1 + REPEATS):
        seconds = []
        for call in calls:
            synchronize(device)
            start = time.perf_counter()
            call()
            synchronize(device)
            seconds.append(time.perf_counter() - start)
        rounds.append(seconds)
    return [min(times) for times in zip(*rounds[1:], strict=True)]  # the first call plans and allocates


@dataclass
class _Case:
    """One shape: the call, and what it computes and moves."""

    shape: str
    kind: str
    dtype: torch.dtype
    call: Callable[[], Any]
    flops: int
    size: int
    """Bytes read and written."""


def _product(device: torch.device, m: int, k: int, n: int, dtype: torch.dtype) -> _Case:
    a = torch.randn(m, k, device=device).to(dtype)
    b = torch.randn(k, n, device=device).to(dtype)
    size = (m * k + k * n + m * n) * a.element_size()
    return _Case(f"{m} x {k} x {n}", "matmul", dtype, lambda: a @ b, 2 * m * k * n, size)


def _rows(device: torch.device, cases: list[_Case]) -> list[ShapeTiming]:
    timings = zip(cases, _timed(device, [case.call for case in cases]), strict=True)
    return [
        ShapeTiming(
            shape=case.shape,
            kind=case.kind,
            dtype=shown(case.dtype),
            seconds=seconds,
            flops_per_s=case.flops / seconds,
            flops_per_byte=case.flops / case.size,
        )
        for case, seconds in timings
    ]


def _neighbours(size: int) -> tuple[int, int, int, int]:
    """The next multiples of 64 and of 8, then a multiple of 4 only and an odd size just below the latter."""
    eights = -(-size // 8) * 8
    return -(-size // 64) * 64, eights, eights - 4, eights - 1


def _sweep(device: torch.device, dtypes: list[torch.dtype], shrink: int) -> list[ShapeTiming]:
    """The article's product and its neighbours, an odd m, and a small m.

    Args:
        device: where.
        dtypes: of the operands.
        shrink: divides the article's m and n, for slow devices.
    """
    m, deep, wide = 16 * 36 // shrink, _neighbours(1500), _neighbours(10_000 // shrink)
    shapes = [(m, k, n) for k in deep for n in wide] + [(m - 1, deep[1], wide[1]), (8, deep[1], wide[1])]
    cases = [_product(device, *shape, dtype) for dtype in dtypes for shape in shapes]
    return _rows(device, cases)


# ---------------------------------------------------------------- a step


class Operator(NamedTuple):
    """One call of an operator."""

    flops: int
    """Of a product or convolution; 0 for any other."""
    bytes: int
    """Read and written."""


class _Counter(TorchDispatchMode):
    """Counts the work of every operator, as if none of them were fused."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: list[Operator] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = {id(t): t for t in tree_iter((args, kwargs, outputs)) if isinstance(t, torch.Tensor)}
            count = flop_registry.get(func.overloadpacket)
            flops = count(*args, **(kwargs or {}), out_val=outputs) if count else 0
            self.operators.append(Operator(flops, sum(t.nbytes for t in tensors.values())))
        return outputs


def work(training: Training) -> tuple[StepWork, list[Operator]]:
    """FLOPs of a step (products and convolutions), the bytes it moves if nothing is fused; its operators."""
    if training.recipe.compile:  # fusing changes the bytes, so they are counted without it
        return StepWork(None, None, "", "counted on the recipe without compile"), []
    with _Counter() as counter:
        training.step()
    amp = {"off": "float32", "bf16": "bfloat16", "fp16": "float16"}[training.recipe.amp]
    flops, moved = map(sum, zip(*counter.operators, strict=True))
    return StepWork(flops, moved, amp), counter.operators


def shares(
    step: StepWork,
    operators: Sequence[Operator],
    step_s: float,
    peaks: Mapping[str, float],
    bytes_per_s: float,
) -> tuple[float | None, float | None]:
    """MFU, and the least time of all operators / the step's; None where the work is not known.

    An operator computes and moves data at the same time, so it needs the longer of the two (the roofline
    model: Williams, Waterman and Patterson 2009, doi:10.1145/1498765.1498785).
    """
    if not step.flops or step.dtype not in peaks:
        return None, None
    peak = peaks[step.dtype]
    least_s = sum(max(flops / peak, moved / bytes_per_s) for flops, moved in operators)
    return step.flops / peak / step_s, least_s / step_s


def misaligned(model: nn.Module) -> list[MisalignedLayer]:
    """Layers with sizes that do not suit 16-bit matrix units, and what padding would cost."""
    layers = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            sizes = [module.in_features, module.out_features]
        elif isinstance(module, nn.Conv2d) and module.groups == 1:
            sizes = [module.in_channels, module.out_channels]
        else:
            continue
        padded = [-(-size // MULTIPLE) * MULTIPLE for size in sizes]
        if padded != sizes:
            more = padded[0] * padded[1] / (sizes[0] * sizes[1]) - 1
            kind = type(module).__name__
            layers.append(MisalignedLayer(layer=name, kind=kind, sizes=sizes, padded=padded, more_flops=more))
    return layers
