"""Data sheets of the GPUs that can be simulated, and the precisions that a published measurement vouches for.

A GPU at a precision is simulated only if its predictions can be checked against at least one published
measurement of training or inference; otherwise it is refused, with the reason.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from perfkit.errors import one_of

Precision = Literal["float32", "tf32", "float16", "bfloat16"]
"""What the heavy operators work in: IEEE `float32` without Tensor Cores, `tf32`, or AMP in half precision."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as its data sheet describes it. Rates are dense peaks at boost clock, accumulating in float32."""

    key: str
    name: str
    architecture: Literal["volta", "ampere", "ada", "hopper"]
    float32_tflops: float
    tf32_tflops: float | None
    half_tflops: float
    """float16, and bfloat16 where it exists."""
    bandwidth_gbs: float
    """Of device memory, in 10^9 bytes/s."""
    memory_gib: float
    """What a process can allocate at most; a little less than the label on the box."""
    l2_mib: float
    multiprocessors: int
    link_gbs: float
    """Host to device from pinned memory, in 10^9 bytes/s: about 0.8 of the link's nominal rate."""
    anchored: dict[Precision, str]
    """Precisions whose predictions are checked, and against what."""
    source: str


_NVIDIA = "ResNet-50 training, NVIDIA DeepLearningExamples"
_LAMBDA = "ResNet-50 training, Lambda's deeplearning-benchmark 0551cb70"
_BOTH = f"{_NVIDIA}; {_LAMBDA}"
_TIMM_TRAINING = "training of 436 timm models, results of pytorch-image-models aa4b5850"
_TIMM_INFERENCE = "inference of 854 timm models, results of pytorch-image-models aa4b5850"

_SHEETS = [
    Gpu(
        key="v100", name="Tesla V100-SXM2-16GB", architecture="volta",
        float32_tflops=15.7, tf32_tflops=None, half_tflops=125.0, bandwidth_gbs=900, memory_gib=15.77,
        l2_mib=6, multiprocessors=80, link_gbs=12.0,
        anchored={"float32": f"{_BOTH}; a trace of ResNet-50 (pytorch/kineto)", "float16": _BOTH},
        source="NVIDIA V100 datasheet, January 2020; L2 from the Volta architecture white paper",
    ),
    Gpu(
        key="a100-40", name="A100-SXM4-40GB", architecture="ampere",
        float32_tflops=19.5, tf32_tflops=156, half_tflops=312, bandwidth_gbs=1555, memory_gib=39.4,
        l2_mib=40, multiprocessors=108, link_gbs=24.0,
        anchored={"tf32": "a trace of ResNet-50 (HolisticTraceAnalysis), less its communication"},
        source="NVIDIA A100 datasheet and Ampere architecture white paper",
    ),
    Gpu(
        key="a100", name="A100-SXM4-80GB", architecture="ampere",
        float32_tflops=19.5, tf32_tflops=156, half_tflops=312, bandwidth_gbs=2039, memory_gib=79.2,
        l2_mib=40, multiprocessors=108, link_gbs=24.0,
        anchored={"tf32": _BOTH, "float16": _BOTH},
        source="NVIDIA A100 datasheet and Ampere architecture white paper",
    ),
    Gpu(
        key="h100", name="H100-SXM5-80GB", architecture="hopper",
        float32_tflops=66.9, tf32_tflops=494.7, half_tflops=989.4, bandwidth_gbs=3352, memory_gib=79.1,
        l2_mib=50, multiprocessors=132, link_gbs=50.0,
        anchored={"tf32": _LAMBDA, "float16": _LAMBDA},
        source="NVIDIA H100 datasheet and Hopper architecture white paper",
    ),
    Gpu(
        key="rtx3090", name="GeForce RTX 3090", architecture="ampere",
        float32_tflops=35.6, tf32_tflops=35.6, half_tflops=71.0, bandwidth_gbs=936, memory_gib=23.7,
        l2_mib=6, multiprocessors=82, link_gbs=24.0,
        anchored={"tf32": _LAMBDA, "float16": _TIMM_TRAINING},
        source="NVIDIA GA102 architecture white paper, table 2 (half precision with float32 accumulation)",
    ),
    Gpu(
        key="rtx4090", name="GeForce RTX 4090", architecture="ada",
        float32_tflops=82.6, tf32_tflops=82.6, half_tflops=165.2, bandwidth_gbs=1008, memory_gib=23.5,
        l2_mib=72, multiprocessors=128, link_gbs=24.0,
        anchored={"tf32": _LAMBDA, "float16": f"{_TIMM_INFERENCE}; {_LAMBDA}"},
        source="NVIDIA Ada architecture white paper, table 2 (half precision with float32 accumulation)",
    ),
]  # fmt: skip

GPUS: dict[str, Gpu] = {sheet.key: sheet for sheet in _SHEETS}
"""By the name that follows `sim:`."""


def gpu(key: str) -> Gpu:
    """The data sheet of `v100`, `a100` … Raises InvalidValue for an unknown name."""
    if key not in GPUS:
        raise one_of(key, sorted(GPUS), "simulated GPU")
    return GPUS[key]


def gpu_of(device: str) -> Gpu | None:
    """The data sheet of a device's name, such as `sim:v100`; None for a device that is no simulated one.

    Raises:
        InvalidValue: an unknown simulated GPU.
    """
    kind, _, key = device.partition(":")
    return gpu(key) if kind == "sim" else None
