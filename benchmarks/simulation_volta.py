"""Operators of a recorded step of ResNet-50 on a V100, as cases for `benchmarks.fit_simulation`."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.simulation_fit import Case, case
from perfkit.simulate.step import Operator, Step, Tensor

SCALE = 93.63 / 98.59
"""The trace is of a V100-DGXS, the data sheet of a V100-SXM2: kernel time of the same step there (a trace of
HolisticTraceAnalysis) / that of the trace."""
WEIGHT = 0.35
"""Of an operator, against 3 of a whole step: single operators are predicted far worse than their sums."""
_BATCH_NORM = {"batch_norm": "native_batch_norm", "batch_norm_backward": "native_batch_norm_backward"}


def of_trace(path: Path) -> list[Case]:
    """The operators with four-dimensional inputs; the file has name, shapes, microseconds, calls, kernels."""
    found = []
    for name, shapes, microseconds, calls, kernels in json.loads(path.read_text()):
        operator = _operator(name.removeprefix("aten::").removeprefix("cudnn_"), shapes, " ".join(kernels))
        if operator:
            step = Step(events=[operator], samples=32, torch="")
            seconds = microseconds / calls * 1e-6 * SCALE
            title = f"{name} {shapes}"
            found.append(case(step, title, "trace", "v100", "operator", seconds, WEIGHT, host=False))
    return found


def _stride(cin: int, cout: int, kernel: int, side: int) -> int:
    """In ResNet-50, which follows from the shapes."""
    if kernel == 7:
        return 2
    if kernel == 3:
        return 2 if (cin, side) in {(128, 56), (256, 28), (512, 14)} else 1
    return 2 if cout == 2 * cin and cin >= 256 else 1


def _operator(name: str, shapes: list[list[int]], kernels: str) -> Operator | None:  # noqa: PLR0911
    def tensor(shape: list[int], dtype: str = "float32") -> Tensor:
        return Tensor(tuple(shape), dtype)

    if name == "convolution":
        x, w = shapes[:2]
        return _forward(x, w, _stride(x[1], w[0], w[2], x[2]))
    if name == "convolution_backward_input":
        y, w = shapes[1:3]
        stride = max(s for s in (1, 2) if s == 1 or _stride(w[1], w[0], w[2], 2 * y[2]) == 2)
        return _backward([y[0], w[1], stride * y[2], stride * y[3]], w, y, stride, [True, False, False])
    if name == "convolution_backward_weight":
        y, x = shapes[1:3]
        kernel = 7 if x[1] == 3 else 3 if x[1] == y[1] else 1
        if x[1] == y[1] == 64 and "wino" not in kernels:  # 1x1 or 3x3: both exist with these shapes
            return None
        return _backward(x, [y[1], x[1], kernel, kernel], y, x[2] // y[2], [False, True, False])
    if len(shapes[0]) != 4:
        return None
    x0 = tensor(shapes[0])
    if name in _BATCH_NORM:
        return Operator(f"aten.{_BATCH_NORM[name]}", "forward", [x0, x0], [x0])
    if name == "max_pool2d_with_indices_backward":
        x1 = tensor(shapes[1])
        return Operator(f"aten.{name}", "backward", [x0, x1, tensor(shapes[0], "int64")], [x1])
    if name in ("threshold_backward", "clamp_min", "add", "add_"):
        return Operator(f"aten.{name}", "forward", [x0] if name == "clamp_min" else [x0, x0], [x0])
    return None


def _forward(x: list[int], w: list[int], stride: int) -> Operator:
    y = [x[0], w[0], x[2] // stride, x[3] // stride]
    tensors = [Tensor(tuple(shape), "float32") for shape in (x, w, y)]
    attributes = {"stride": [stride, stride], "dilation": [1, 1], "groups": 1}
    return Operator("aten.convolution", "forward", tensors[:2], tensors[2:], attributes)


def _backward(x: list[int], w: list[int], y: list[int], stride: int, mask: list[bool]) -> Operator:
    tx, tw, ty = (Tensor(tuple(shape), "float32") for shape in (x, w, y))
    attributes = {"stride": [stride, stride], "dilation": [1, 1], "groups": 1, "output_mask": mask}
    return Operator("aten.convolution_backward", "backward", [ty, tx, tw], [tx, tw], attributes)
