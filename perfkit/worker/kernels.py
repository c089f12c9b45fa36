"""What a device can do and what a training asks of it: measured roofs, shapes, FLOPs and bytes of a step.

Peaks are measured, not taken from a data sheet: the best of some large products, a copy of a large tensor.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

from perfkit.worker.checks import shown
from perfkit.worker.device import synchronize
from perfkit.worker.messages import KernelReport, ShapeTiming, StepWork
from perfkit.worker.training import Training

REPEATS = 7
DEPTHS = (1536, 1504, 1500, 1503)
"""The k of the article's product (m × k × n) and its neighbours: multiples of 64, 8 and 4, and an odd one."""
WIDTHS_ON_GPU, WIDTHS_ON_CPU = (10_048, 10_000, 9_996, 9_999), (2_560, 2_504, 2_500, 2_503)
"""The same for n; on a CPU n and m are a quarter of the article's."""


def measure(training: Training, step_s: float) -> KernelReport:
    """Roofs of the device, a sweep of shapes, and the work of this training's step."""
    device = training.device
    big = device.type != "cpu"
    m, widths = (576, WIDTHS_ON_GPU) if big else (144, WIDTHS_ON_CPU)
    shapes = [(m, k, n) for k in DEPTHS for n in widths]
    shapes += [(each, DEPTHS[1], widths[1]) for each in (m - 1, 8)]  # an odd m, and a small one
    rows, peaks = list[ShapeTiming](), dict[str, float]()
    for dtype in (torch.float32, torch.bfloat16, *([torch.float16] if big else [])):
        timed = _products(device, dtype, shapes)
        squares = _products(device, dtype, [(n, n, n) for n in ((1024, 4096, 8192) if big else (512, 1024))])
        peaks[shown(dtype)] = max(row.flops_per_s for row in timed + squares)
        rows += timed
    source = torch.empty(1 << (30 if big else 26), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    bytes_per_s = 2 * source.nbytes / _least_s(device, [lambda: target.copy_(source)])[0]  # read and written
    step_work, operators = work(training)
    mfu, light_share = shares(step_work, operators, step_s, peaks, bytes_per_s)
    return KernelReport(
        peaks=peaks,
        bytes_per_s=bytes_per_s,
        rows=rows,
        work=step_work,
        step_s=step_s,
        mfu=mfu,
        light_share=light_share,
        recipe=training.recipe.describe(),
    )


# ---------------------------------------------------------------- shapes


def _least_s(device: torch.device, calls: Sequence[Callable[[], Any]]) -> list[float]:
    """The least seconds of each call; they alternate, so that drift affects all of them alike.

    Not the median: the question is what the device can do, and every disturbance adds time.
    """

    def seconds(call: Callable[[], Any]) -> float:
        synchronize(device)
        start = time.perf_counter()
        call()
        synchronize(device)
        return time.perf_counter() - start

    rounds = [[seconds(call) for call in calls] for _ in range(1 + REPEATS)]
    return [min(times) for times in zip(*rounds[1:], strict=True)]  # the first call plans and allocates


def _products(
    device: torch.device, dtype: torch.dtype, shapes: Sequence[tuple[int, int, int]]
) -> list[ShapeTiming]:
    """Times a product of two matrices for each m, k and n."""

    def product(m: int, k: int, n: int) -> Callable[[], Any]:
        a, b = (torch.randn(*size, device=device).to(dtype) for size in ((m, k), (k, n)))
        return lambda: a @ b

    rows = []
    timings = _least_s(device, [product(*shape) for shape in shapes])
    for (m, k, n), seconds in zip(shapes, timings, strict=True):
        flops, moved = 2 * m * k * n, (m * k + k * n + m * n) * dtype.itemsize
        rows.append(ShapeTiming(f"{m} x {k} x {n}", shown(dtype), seconds, flops / seconds, flops / moved))
    return rows


# ---------------------------------------------------------------- a step

Operator = tuple[int, int]
"""FLOPs of one call (0 if it is no product or convolution), and the bytes that it reads and writes."""


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
            self.operators.append((flops, sum(t.nbytes for t in tensors.values())))
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
