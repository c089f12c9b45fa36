"""What a device can do and what a training asks of it: measured roofs, shapes, FLOPs and bytes of a step.

Peaks are measured, not taken from a data sheet: the best of some large products, a copy of a large tensor.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

from perfkit.worker.harness import Harness
from perfkit.worker.procedure import Steps, synchronize
from perfkit.worker.reports import KernelReport, MisalignedLayer, ShapeTiming, StepWork
from perfkit.worker.roofline import Operator, misaligned_layer, shares
from perfkit.worker.training import inner_model

_REPEATS = 7


def measure(harness: Harness) -> KernelReport:
    """Roofs of the device, a sweep of shapes, and the work of this training's step."""
    taken: Steps = harness.run(harness.procedure.take(8, "measuring"))
    device = harness.device
    big = device.type != "cpu"
    dtypes = [torch.float32, torch.bfloat16, *([torch.float16] if big else [])]
    rows = sweep(device, dtypes, 1 if big else 4)
    sizes = (1024, 4096, 8192) if big else (512, 1024)
    squares = _rows(device, [_product(device, n, n, n, dtype) for dtype in dtypes for n in sizes])
    peaks = {
        _name(dtype): max(row.flops_per_s for row in rows + squares if row.dtype == _name(dtype))
        for dtype in dtypes
    }
    bytes_per_s = bandwidth(device, 1 << (30 if big else 26))
    (step_work, operators), training = work(harness), harness.training
    mfu, light_share = shares(step_work, operators, taken.mean_s, peaks, bytes_per_s)
    return KernelReport(
        peaks=peaks, bytes_per_s=bytes_per_s, rows=rows, work=step_work,
        misaligned=misaligned(inner_model(training.model)), step_s=taken.mean_s, mfu=mfu,
        light_share=light_share, recipe=training.recipe.describe(), device=str(training.device),
    )  # fmt: skip


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def timed(device: torch.device, works: Sequence[Callable[[], Any]]) -> list[float]:
    """The least seconds of a call of each; the calls alternate, so that drift affects all of them alike.

    The least, not the median: the question is what the device can do, and every disturbance adds time.
    """
    seconds = []
    for _ in range(1 + _REPEATS):
        for work in works:
            synchronize(device)
            start = time.perf_counter()
            work()
            synchronize(device)
            seconds.append(time.perf_counter() - start)
    counted = seconds[len(works) :]  # the first call of each plans and allocates
    return [min(counted[at :: len(works)]) for at in range(len(works))]


def bandwidth(device: torch.device, size: int) -> float:
    """Bytes/s of a copy within the device, counting bytes read and bytes written."""
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / timed(device, [lambda: target.copy_(source)])[0]


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


def _convolution(device: torch.device, channels: int, size: int, dtype: torch.dtype, layout: Any) -> _Case:
    inputs = torch.randn(16, channels, size, size, device=device).to(dtype, memory_format=layout)
    layer = nn.Conv2d(channels, channels, 3, padding=1, bias=False).to(device, dtype)
    layer.to(memory_format=layout).requires_grad_(False)
    flops = 2 * 16 * channels * channels * 9 * size * size
    size_of = (2 * inputs.numel() + layer.weight.numel()) * inputs.element_size()
    name = "NHWC" if layout is torch.channels_last else "NCHW"
    return _Case(f"{channels} channels, {name}", "convolution", dtype, lambda: layer(inputs), flops, size_of)


def _rows(device: torch.device, cases: list[_Case]) -> list[ShapeTiming]:
    seconds = timed(device, [case.call for case in cases])
    return [
        ShapeTiming(
            shape=case.shape, kind=case.kind, dtype=_name(case.dtype), seconds=taken,
            flops_per_s=case.flops / taken, flops_per_byte=case.flops / case.size,
        ) for case, taken in zip(cases, seconds, strict=True)
    ]  # fmt: skip


def neighbours(size: int) -> tuple[int, int, int, int]:
    """The next multiples of 64 and of 8, then a multiple of 4 only and an odd size just below the latter.

    >>> neighbours(10_000)
    (10048, 10000, 9996, 9999)
    """
    eights = -(-size // 8) * 8
    return -(-size // 64) * 64, eights, eights - 4, eights - 1


def sweep(device: torch.device, dtypes: list[torch.dtype], shrink: int = 1) -> list[ShapeTiming]:
    """The article's product and its neighbours, an odd m, a small m, and convolutions.

    Args:
        device: where.
        dtypes: of the operands.
        shrink: divides the article's m and n, for slow devices.

    Returns:
        One timing for each shape. First come, for each type, the products over `neighbours` of k (outer)
        and n.
    """
    m, deep, wide = 16 * 36 // shrink, neighbours(1500), neighbours(10_000 // shrink)
    shapes = [(m, k, n) for k in deep for n in wide] + [(m - 1, deep[1], wide[1]), (8, deep[1], wide[1])]
    cases = [_product(device, *shape, dtype) for dtype in dtypes for shape in shapes]
    layouts = (torch.contiguous_format, torch.channels_last)
    cases += [
        _convolution(device, channels, 56 // shrink, dtype, layout)
        for dtype in dtypes for channels in (64, 63) for layout in layouts
    ]  # fmt: skip
    return _rows(device, cases)


class _Counter(TorchDispatchMode):
    """Counts the work of every operator, as if none of them were fused."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: list[Operator] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = {id(t): t for t in tree_iter((args, kwargs, outputs)) if isinstance(t, torch.Tensor)}
            moved = sum(t.numel() * t.element_size() for t in tensors.values())
            count = flop_registry.get(func.overloadpacket)
            flops = count(*args, **(kwargs or {}), out_val=outputs) if count else 0
            self.operators.append(Operator(flops, moved))
        return outputs


def work(harness: Harness) -> tuple[StepWork, list[Operator]]:
    """FLOPs of a step (products and convolutions), the bytes it moves if nothing is fused; its operators."""
    training = harness.training
    if training.recipe.compile:  # fusing changes the bytes, so they are counted without it
        return StepWork(None, None, "", "counted on the recipe without compile"), []
    with _Counter() as counter:
        training.step()
    amp = {"off": "float32", "bf16": "bfloat16", "fp16": "float16"}[training.recipe.amp]
    flops, moved = map(sum, zip(*counter.operators, strict=True))
    return StepWork(flops, moved, amp), counter.operators


def misaligned(model: nn.Module) -> list[MisalignedLayer]:
    """Layers with sizes that do not suit 16-bit matrix units, and what padding would cost."""
    layers = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            sizes = (module.in_features, module.out_features)
        elif isinstance(module, nn.Conv2d) and module.groups == 1:
            sizes = (module.in_channels, module.out_channels)
        else:
            continue
        if layer := misaligned_layer(name, type(module).__name__, sizes):
            layers.append(layer)
    return layers
