"""Predicted times: limits by arithmetic and by memory, checked by hand; classes, layouts and precisions."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perfkit.errors import InvalidValue
from perfkit.simulate.constants import constants
from perfkit.simulate.costs import kernels
from perfkit.simulate.gpus import GPUS, gpu
from perfkit.simulate.step import Operator, Step, Tensor


def _step(*operators: Operator, precision: str = "ieee") -> Step:
    return Step(events=list(operators), samples=1, torch="none", fp32_precision=precision)


def _convolution(dtype: str, layout: str, groups: int = 1) -> Operator:
    x = Tensor((64, 128, 28, 28), dtype, layout)  # type: ignore[arg-type]
    w = Tensor((128, 128 // groups, 3, 3), dtype, layout)  # type: ignore[arg-type]
    at = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": groups, "transposed": False}
    return Operator("aten.convolution", "forward", [x, w], [x], at)


def test_a_convolution_counts_its_multiplications_and_its_bytes() -> None:
    [kernel] = kernels(_step(_convolution("float16", "channels_last")), gpu("rtx3090"))
    assert kernel.flops == 2 * 64 * 28 * 28 * 128 * 128 * 9
    assert kernel.nbytes == 2 * (2 * 64 * 128 * 28 * 28 + 128 * 128 * 9)
    assert kernel.kind == "conv" and kernel.tensor_cores


@pytest.mark.parametrize("name", sorted(GPUS))
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_no_kernel_is_faster_than_the_data_sheet_allows(name: str, dtype: str) -> None:
    sheet = gpu(name)
    for layout in ("contiguous", "channels_last"):
        for kernel in kernels(_step(_convolution(dtype, layout)), sheet):
            peak = (
                sheet.half_tflops if dtype == "float16" else sheet.float32_tflops * 4
            )  # Winograd F(4x4, 3x3)
            assert kernel.seconds > kernel.flops / (peak * 1e12)
            assert kernel.seconds > 0


def test_tensor_cores_want_channels_last_and_convert_otherwise() -> None:
    contiguous = kernels(_step(_convolution("float16", "contiguous")), gpu("v100"))
    assert [kernel.kind for kernel in contiguous] == ["layout", "conv"]
    assert [kernel.kind for kernel in kernels(_step(_convolution("float32", "contiguous")), gpu("v100"))] == [
        "conv"
    ]


def test_tf32_uses_tensor_cores_where_the_gpu_has_it() -> None:
    step = _step(_convolution("float32", "channels_last"), precision="tf32")
    assert [kernel.tensor_cores for kernel in kernels(step, gpu("a100"))] == [True]


def test_a_depthwise_convolution_uses_no_tensor_cores() -> None:
    [kernel] = kernels(_step(_convolution("float16", "channels_last", groups=128)), gpu("a100"))
    assert not kernel.tensor_cores


def test_a_pointwise_operator_moves_each_operand_once() -> None:
    x = Tensor((1 << 24,), "float32")
    [kernel] = kernels(_step(Operator("aten.add", "forward", [x, x], [x])), gpu("v100"))
    assert kernel.nbytes == 3 * x.nbytes
    assert kernel.seconds > kernel.nbytes / 900e9


def test_kernels_of_a_multi_tensor_operator_are_launched_in_groups() -> None:
    weights = [Tensor((1000, n), "float32") for n in range(1, 101)]
    step = _step(Operator("aten._foreach_add_", "optimizer", weights * 2, [], {"inplace": True}))
    found = kernels(step, gpu("v100"))
    assert len(found) == 2
    assert sum(kernel.nbytes for kernel in found) == 3 * sum(tensor.nbytes for tensor in weights)


def test_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(InvalidValue, match="v100"):
        gpu("v1000")


def test_the_digest_changes_with_any_value() -> None:
    now = constants()
    other = type(now)(now.version, {**now.values, "kernel_us": 9.0}, now.sources)
    assert other.digest != now.digest


def test_a_gpu_without_tf32_computes_in_float32_whatever_is_allowed() -> None:
    x, w = Tensor((8, 64, 28, 28), "float32"), Tensor((64, 64, 3, 3), "float32")
    step = _step(Operator("aten.convolution", "forward", [x, w], [x], {"stride": [1, 1], "dilation": [1, 1]}))
    allowed = replace(step, fp32_precision="tf32")
    assert kernels(allowed, gpu("v100")) == kernels(replace(step, fp32_precision="ieee"), gpu("v100"))
    assert not any(kernel.tensor_cores for kernel in kernels(allowed, gpu("v100")))
    assert any(kernel.tensor_cores for kernel in kernels(allowed, gpu("a100")))
