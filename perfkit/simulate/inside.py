"""What a step on a simulated GPU is made of, from its plan: a trace, memory, kernels, copies and waits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from perfkit.recipe import Recipe
from perfkit.results.simulated import THIS_MACHINE
from perfkit.simulate import bands, chrome, costs
from perfkit.simulate.gpus import Gpu
from perfkit.simulate.prediction import Prediction
from perfkit.simulate.queue import Bar
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
"""What a plan calls kinds of memory, and what an account of it does."""
_PHASES = {"copy": "data", "prepare": "data"}
_LASTING = ("weights", "gradients", "optimizer")
_BIG = 1 << 30
"""Bytes of a copy within the device that shows its bandwidth."""
_SIZES = ((1024, 1024, 1024), (4096, 4096, 4096), (8192, 8192, 8192), (576, 1504, 10_000), (8, 1504, 10_000))
_PRODUCTS = ("conv", "gemm", "attention")


def label(gpu: Gpu, error: float) -> str:
    """What numbers of a simulated GPU are, in a sentence."""
    return f"Simulated {gpu.name}: no kernel ran. These values are predicted, ±{error:.0%}"


# ---------------------------------------------------------------- a trace


def write_trace(path: Path, prediction: Prediction, bars: list[Bar], host: str, step_s: float) -> None:
    """The steps that a queue issued, as a Chrome trace that says what it is."""
    known = prediction.simulated(host, step_s)
    facts = {
        "host": "real: loader, copies and launches took their time here" if host == THIS_MACHINE else host,
        "model": f"version {known.model}, constants {known.constants}",
        "error of samples/s to expect": f"±{known.band:.0%}",
    }
    chrome.write(
        path, prediction.step, prediction.kernels, prediction.gpu, bars, facts, _loader(prediction.recipe)
    )


def _loader(recipe: Recipe) -> str:
    return f"_{'Multi' if recipe.workers else 'Single'}ProcessDataLoaderIter"


# ---------------------------------------------------------------- memory


def memory(prediction: Prediction) -> MemoryReport:
    """What holds device memory in a step, from the plan's allocations."""
    step, gpu = prediction.step, prediction.gpu
    live = {block.block: (block.nbytes, _KINDS[block.kind], _KINDS[block.kind]) for block in step.resident}
    now = peak = step.resident_bytes
    at_peak, peak_phase, phase, where = dict(live), "data", "data", "data"
    phases: dict[str, int] = defaultdict(int)
    for event in step.events:
        if isinstance(event, Operator):
            phase, where = _PHASES.get(event.phase, event.phase), _where(event)
        elif isinstance(event, Copy):
            phase, where = "data", _line(event.site) or "data"
        elif isinstance(event, Allocate):
            now += event.nbytes
            if event.nbytes > 0:
                live[event.block] = (event.nbytes, _KINDS[event.kind], where)
            else:
                live.pop(event.block, None)
        phases[phase] = max(phases[phase], now)
        if now > peak:
            at_peak, peak, peak_phase = dict(live), now, phase
    parts, places = dict.fromkeys(_KINDS.values(), 0), Counter[tuple[str, str]]()
    for size, kind, place in at_peak.values():
        parts[kind] += size
        places[place, kind] += size
    largest = [(*place, size) for place, size in places.most_common()]
    return MemoryReport(
        peak=peak, peak_phase=peak_phase, parts=parts, phases=dict(phases),
        places=[one for one in largest if one[1] not in _LASTING][:8]
        + [one for one in largest if one[1] in _LASTING][:6],
        allocated=prediction.planned.peak_bytes, reserved=prediction.planned.reserved_bytes,
        recipe=prediction.recipe.describe(), simulated=label(gpu, bands.MEMORY_BAND),
    )  # fmt: skip


def _where(operator: Operator) -> str:
    line = _line(operator.site)
    return f"{operator.module or operator.phase}{f' ({line})' if line else ''}"


def _line(site: str) -> str:
    return site.replace("\\", "/").rpartition("/")[2]


# ---------------------------------------------------------------- copies and waits


def syncs(prediction: Prediction, steps: int) -> SyncReport:
    """Lines that copy or wait between host and device, in this number of steps."""
    places: dict[tuple[str, str], Place] = {}
    for event in prediction.step.events:
        place = _place(event)
        if place is not None:
            known = places.setdefault((place.call, place.where), place)
            known.count += max(1, steps // event.every) if isinstance(event, Wait) else steps
            known.bytes += place.bytes * (steps - (known is place))
    found = sorted(places.values(), key=lambda place: (-place.count, place.where))
    gpu = prediction.gpu
    note = f"Simulated {gpu.name}: these are the copies and waits of the step's plan; nothing ran"
    return SyncReport(found, steps, "cuda", note)


def _place(event: Event) -> Place | None:
    if isinstance(event, Wait) and event.streams is None:
        return Place(event.what, _line(event.site) or "the training loop", "wait", ITEM_REMEDY)
    if not isinstance(event, Copy):
        return None
    if event.to == "host":
        return Place("to", _line(event.site), "device to host", TO_HOST_REMEDY, bytes=event.nbytes)
    kind = "pinned" if event.pinned else "pageable"
    fix = copy_remedy(kind, event.non_blocking)
    return Place("to", _line(event.site), "host to device", fix, kind, bytes=event.nbytes)


# ---------------------------------------------------------------- kernels


def kernels(prediction: Prediction, step_s: float) -> KernelReport:
    """What the modelled device can do, by shape and type, and the step's share of it.

    Only types that a published measurement vouches for on this GPU, and only sizes that suit it: what odd
    sizes cost is not modelled.
    """
    gpu, step = prediction.gpu, prediction.step
    dtypes = [
        dtype for dtype, anchors in (
            ("float32", {"float32", "tf32"}), ("bfloat16", {"bfloat16"}), ("float16", {"float16"}),
        ) if anchors & set(gpu.anchored)
    ]  # fmt: skip
    rows = [row for dtype in dtypes for row in (*_products(gpu, dtype), *_convolutions(gpu, dtype))]
    peaks = {d: max(row.flops_per_s for row in rows if row.dtype == d) for d in dtypes}
    big = Tensor((_BIG,), "uint8")
    bytes_per_s = 2 * _BIG / _seconds(gpu, Operator("aten.clone", "forward", [big], [big]))
    used = {"off": "float32", "bf16": "bfloat16", "fp16": "float16"}[prediction.recipe.amp]
    operators = _work(prediction.kernels)
    flops, moved = map(sum, zip(*operators, strict=True)) if operators else (0, 0)
    work = (
        StepWork(None, None, "", "counted on the recipe without compile") if step.compiled
        else StepWork(flops, moved, used)
    )  # fmt: skip
    mfu, light_share = roofline.shares(work, operators, step_s, peaks, bytes_per_s)
    return KernelReport(
        peaks=peaks, bytes_per_s=bytes_per_s, rows=rows, work=work, misaligned=_misaligned(step), mfu=mfu,
        step_s=step_s, light_share=light_share, recipe=prediction.recipe.describe(),
        device=f"simulated {gpu.name}", simulated=label(gpu, prediction.band(step_s)),
    )  # fmt: skip


def _work(kernels: Iterable[Kernel]) -> list[roofline.Operator]:
    """What all kernels of each operator compute and move."""
    work = defaultdict[int, list[float]](lambda: [0.0, 0.0])
    for one in kernels:
        work[one.operator][0] += one.flops if one.kind in _PRODUCTS else 0.0
        work[one.operator][1] += one.nbytes
    return [roofline.Operator(int(flops), int(nbytes)) for flops, nbytes in work.values()]


def _seconds(gpu: Gpu, operator: Operator) -> float:
    step = Step(events=[operator], samples=1, torch="", fp32_precision="tf32",
                matmul_precision="ieee")  # fmt: skip
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
    for channels in (64, 256):
        for layout, name in (("contiguous", "NCHW"), ("channels_last", "NHWC")):
            batch, size = 16, 56
            x = Tensor((batch, channels, size, size), dtype, layout)  # type: ignore[arg-type]
            w = Tensor((channels, channels, 3, 3), dtype, layout)  # type: ignore[arg-type]
            how = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1, "transposed": False}
            flops = 2 * batch * channels * channels * 9 * size * size
            operator = Operator("aten.convolution", "forward", [x, w], [x], how)
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
