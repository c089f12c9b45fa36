"""What a step on a simulated GPU is made of, from its plan: memory, kernels, copies and waits."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, cast

from perfkit.simulate import costs
from perfkit.simulate import memory as plan_memory
from perfkit.simulate.gpus import Gpu
from perfkit.simulate.prediction import Prediction
from perfkit.simulate.step import Allocate, Copy, Event, Kernel, Operator, Step, Tensor, Wait
from perfkit.worker import roofline
from perfkit.worker.reports import (
    ITEM_REMEDY,
    TO_HOST_REMEDY,
    KernelReport,
    MemoryReport,
    MisalignedLayer,
    Place,
    ShapeTiming,
    StepWork,
    SyncReport,
    copy_remedy,
)

_KINDS = {
    "parameters": "weights", "gradients": "gradients", "optimizer": "optimizer", "inputs": "batch",
    "activations": "activations", "temporary": "workspace",
}  # fmt: skip
"""What an account of memory calls the kinds of a plan."""
_LASTING = ("weights", "gradients", "optimizer")
_BIG = 1 << 30
"""Bytes of a copy within the device that shows its bandwidth."""
_SIZES = ((1024, 1024, 1024), (4096, 4096, 4096), (8192, 8192, 8192), (576, 1504, 10_000), (8, 1504, 10_000))
_PRODUCTS = ("conv", "gemm", "attention")


def label(gpu: Gpu, error: float) -> str:
    """The sentence beside numbers of a simulated GPU."""
    return f"Simulated {gpu.name}: no kernel ran. These values are predicted, ±{error:.0%}"


# ---------------------------------------------------------------- memory


def peak(prediction: Prediction) -> int:
    """The most bytes that tensors hold."""
    return plan_memory.peak(prediction.step)


def memory(prediction: Prediction) -> MemoryReport:
    """What holds device memory in a step."""
    step = prediction.step
    live = {block.block: (block.nbytes, _KINDS[block.kind], _KINDS[block.kind]) for block in step.resident}
    now = most = sum(block.nbytes for block in step.resident)
    at_peak, peak_phase, phase, where = dict(live), "data", "data", "data"
    phases: dict[str, int] = defaultdict(int)
    for event in step.events:
        if isinstance(event, Operator):
            phase = "data" if event.phase in ("copy", "prepare") else event.phase
            where = event.module or event.phase
        elif isinstance(event, Copy):
            phase = where = "data"
        elif isinstance(event, Allocate):
            now += event.nbytes
            if event.nbytes > 0:
                live[event.block] = (event.nbytes, _KINDS[event.kind], where)
            else:
                live.pop(event.block, None)
        phases[phase] = max(phases[phase], now)
        if now > most:
            at_peak, most, peak_phase = dict(live), now, phase
    parts, places = dict.fromkeys(_KINDS.values(), 0), Counter[tuple[str, str]]()
    for size, kind, place in at_peak.values():
        parts[kind] += size
        places[place, kind] += size
    largest = [(*place, size) for place, size in places.most_common()]
    return MemoryReport(
        peak=most, peak_phase=peak_phase, parts=parts, phases=dict(phases),
        places=[place for place in largest if place[1] not in _LASTING][:8]
        + [place for place in largest if place[1] in _LASTING][:6],
        allocated=peak(prediction), reserved=None, recipe=prediction.recipe.describe(),
        simulated=label(prediction.gpu, plan_memory.band(step)),
    )  # fmt: skip


# ---------------------------------------------------------------- copies and waits


def syncs(prediction: Prediction, steps: int) -> SyncReport:
    """Lines that copy or wait between host and device, in so many steps."""
    places: dict[tuple[str, str], Place] = {}
    for event in prediction.step.events:
        place = _place(event)
        if place is not None:
            known = places.setdefault((place.call, place.where), place)
            known.count += steps
            known.bytes += place.bytes * (steps - (known is place))
    ordered = sorted(places.values(), key=lambda place: (-place.count, place.where))
    note = f"Simulated {prediction.gpu.name}: these are the copies and waits of the step's plan; nothing ran"
    return SyncReport(ordered, steps, "cuda", note)


def _place(event: Event) -> Place | None:
    if isinstance(event, Wait) and event.streams is None:
        return Place(event.what, _line(event.site) or "the training loop", "wait", ITEM_REMEDY)
    if not isinstance(event, Copy):
        return None
    where = _line(event.site) or "the training loop"
    if event.to == "host":
        return Place("cpu", where, "device to host", TO_HOST_REMEDY, bytes=event.nbytes)
    kind = "pinned" if event.pinned else "pageable"
    fix = copy_remedy(kind, event.non_blocking)
    return Place("to", where, "host to device", fix, kind, bytes=event.nbytes)


def _line(site: str) -> str:
    return site.replace("\\", "/").rpartition("/")[2]


# ---------------------------------------------------------------- kernels


def kernels(prediction: Prediction, step_s: float) -> KernelReport:
    """What the modelled GPU can do, by shape and type, and the step's share of it.

    Types without published figures on this GPU are left out, and so are odd sizes: they are not modelled.
    """
    gpu, step = prediction.gpu, prediction.step
    dtypes = ["float32"] * bool({"float32", "tf32"} & set(gpu.anchored)) + ["float16"]
    rows = [row for dtype in dtypes for row in (*_products(gpu, dtype), *_convolutions(gpu, dtype))]
    peaks = {d: max(row.flops_per_s for row in rows if row.dtype == d) for d in dtypes}
    big = Tensor((_BIG,), "uint8")
    bytes_per_s = 2 * _BIG / _seconds(gpu, Operator("aten.clone", "forward", [big], [big]))
    operators = _work(prediction.kernels)
    if step.compiled:
        work = StepWork(None, None, "", "counted on the recipe without compile")
    else:
        flops, moved = map(sum, zip(*operators, strict=True)) if operators else (0, 0)
        work = StepWork(flops, moved, "float32" if prediction.recipe.amp == "off" else "float16")
    mfu, light_share = roofline.shares(work, operators, step_s, peaks, bytes_per_s)
    return KernelReport(
        peaks=peaks, bytes_per_s=bytes_per_s, rows=rows, work=work, misaligned=_misaligned(step), mfu=mfu,
        step_s=step_s, light_share=light_share, recipe=prediction.recipe.describe(),
        device=f"simulated {gpu.name}", simulated=label(gpu, prediction.band(step_s)),
    )  # fmt: skip


def _work(kernels: Iterable[Kernel]) -> list[roofline.Operator]:
    """What all kernels of each operator compute and move."""
    work: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for kernel in kernels:
        work[kernel.operator][0] += kernel.flops if kernel.kind in _PRODUCTS else 0.0
        work[kernel.operator][1] += kernel.nbytes
    return [roofline.Operator(int(flops), int(nbytes)) for flops, nbytes in work.values()]


def _seconds(gpu: Gpu, operator: Operator) -> float:
    step = Step(events=[operator], samples=1, torch="", conv_precision="tf32")
    return sum(kernel.seconds for kernel in costs.kernels(step, gpu))


def _products(gpu: Gpu, dtype: str) -> list[ShapeTiming]:
    rows = []
    for m, k, n in _SIZES:
        a, b, c = (Tensor(shape, dtype) for shape in ((m, k), (k, n), (m, n)))
        operator = Operator("aten.mm", "forward", [a, b], [c])
        rows.append(_timing(gpu, operator, f"{m} x {k} x {n}", "matmul", 2 * m * k * n))
    return rows


def _convolutions(gpu: Gpu, dtype: str) -> list[ShapeTiming]:
    rows = []
    batch, side = 16, 56
    for channels in (64, 256):
        for layout, name in (("contiguous", "NCHW"), ("channels_last", "NHWC")):
            x = Tensor((batch, channels, side, side), dtype, cast(Any, layout))
            w = Tensor((channels, channels, 3, 3), dtype, cast(Any, layout))
            flops = 2 * batch * channels * channels * 9 * side * side
            operator = Operator("aten.convolution", "forward", [x, w], [x], {"stride": [1, 1], "groups": 1})
            rows.append(_timing(gpu, operator, f"{channels} channels, {name}", "convolution", flops))
    return rows


def _timing(gpu: Gpu, operator: Operator, shape: str, kind: str, flops: int) -> ShapeTiming:
    seconds = _seconds(gpu, operator)
    moved = sum(tensor.nbytes for tensor in (*operator.inputs, *operator.outputs))
    return ShapeTiming(
        shape=shape, kind=kind, dtype=operator.inputs[0].dtype, seconds=seconds, flops_per_s=flops / seconds,
        flops_per_byte=flops / moved,
    )  # fmt: skip


def _misaligned(step: Step) -> list[MisalignedLayer]:
    """Layers of the forward pass with sizes that do not suit 16-bit matrix units."""
    layers: dict[str, MisalignedLayer | None] = {}
    for operator in step.operators:
        if operator.phase != "forward" or not operator.module or operator.module in layers:
            continue
        if operator.name == "aten.convolution" and operator.attributes.get("groups", 1) == 1:
            wide, deep = operator.inputs[1].shape[:2]
            layers[operator.module] = roofline.misaligned_layer(operator.module, "Conv2d", (deep, wide))
        elif operator.name in ("aten.addmm", "aten.mm") and len(operator.inputs[-1].shape) == 2:
            deep, wide = operator.inputs[-1].shape
            layers[operator.module] = roofline.misaligned_layer(operator.module, "Linear", (deep, wide))
    return [layer for layer in layers.values() if layer]
