"""Predicted kernels: never faster than the data sheet, ordered as on real GPUs; and fused ones."""

import itertools

import pytest

from perfkit.errors import InvalidValue
from perfkit.simulate import costs
from perfkit.simulate.fusion import fused
from perfkit.simulate.gpus import GPUS, gpu
from perfkit.simulate.step import Allocate, Operator, Step, Tensor
from tests.unit.simulate.plans import planned

SIDES = (64, 1000, 4096, 16384)


def product(sheet, side, dtype, precision="ieee"):
    matrix = Tensor((side, side), dtype)
    return seconds(sheet, Operator("aten.mm", "forward", [matrix, matrix], [matrix]), precision)


def seconds(sheet, operator, precision="ieee"):
    step = Step(events=[operator], samples=1, conv_precision=precision, matmul_precision=precision)
    return sum(kernel.seconds for kernel in costs.kernels(step, sheet))


@pytest.mark.parametrize("key", sorted(GPUS))
def test_no_product_beats_the_data_sheet(key):
    sheet = GPUS[key]
    peaks = {("float32", "ieee"): sheet.float32_tflops, ("float16", "ieee"): sheet.half_tflops}
    if sheet.tf32_tflops:
        peaks["float32", "tf32"] = sheet.tf32_tflops
    for side, ((dtype, precision), peak) in itertools.product(SIDES, peaks.items()):
        assert 2 * side**3 / product(sheet, side, dtype, precision) <= peak * 1e12


@pytest.mark.parametrize("key", sorted(GPUS))
def test_no_convolution_beats_the_data_sheet_except_by_winograds_fewer_multiplications(key):
    sheet = GPUS[key]
    for dtype, taps, layout in itertools.product(
        ("float32", "float16"), (1, 3), ("contiguous", "channels_last")
    ):
        x = Tensor((256, 256, 56, 56), dtype, layout)
        w = Tensor((256, 256, taps, taps), dtype, layout)
        operator = Operator("aten.convolution", "forward", [x, w], [x], {"stride": [1, 1], "groups": 1})
        saved = 4.0 if dtype == "float32" and taps == 3 else 1.0
        peak = sheet.half_tflops if dtype == "float16" else sheet.float32_tflops
        flops = 2 * 256 * 56 * 56 * 256 * 256 * taps**2
        assert flops / seconds(sheet, operator) <= saved * peak * 1e12


@pytest.mark.parametrize("key", sorted(GPUS))
def test_nothing_moves_bytes_faster_than_the_memory(key):
    sheet, big = GPUS[key], Tensor((1 << 30,), "uint8")
    for name in ("aten.add", "aten.sum", "aten._softmax", "aten.cat", "aten.max_pool2d_with_indices"):
        moved = seconds(sheet, Operator(name, "forward", [big], [big]))
        assert 2 * big.nbytes / moved <= sheet.bandwidth_gbs * 1e9


@pytest.mark.parametrize("key", sorted(GPUS))
def test_products_take_longer_the_larger_and_the_wider_they_are(key):
    precision = "tf32" if GPUS[key].tf32_tflops else "ieee"
    assert product(GPUS[key], 8192, "float32", precision) > 1.5 * product(GPUS[key], 8192, "float16")
    times = [product(GPUS[key], side, "float16") for side in SIDES]
    assert times == sorted(times)


def test_gpus_without_enough_figures_are_refused_with_what_would_bring_them():
    with pytest.raises(
        InvalidValue, match="only ResNet-50 is published.*a table of many models trained on it"
    ):
        gpu("h100")
    with pytest.raises(InvalidValue, match="v100"):
        gpu("gtx9")


def test_compiling_joins_neighbours_and_keeps_products():
    eager, compiled = planned(batch_size=64), planned(batch_size=64, compile=True)
    kept = [op.name for op in compiled.operators if op.phase != "optimizer" and op.name != "fused"]
    assert sorted(kept) == sorted(
        op.name for op in eager.operators if "conv" in op.name or op.name in ("aten.mm", "aten.addmm")
    )
    [step] = {op.inputs[0].layout for op in compiled.operators if op.name == "aten.convolution"}
    assert step == "channels_last", "the compiler's choice"

    def light(step):
        kernels = costs.kernels(step, GPUS["v100"])
        return sum(kernel.nbytes for kernel in kernels if kernel.kind not in ("conv", "gemm", "optimizer"))

    assert light(compiled) < light(eager)


def test_what_only_one_kernel_uses_is_not_written():
    a, b, c = (Tensor((1000,), "float32", block=number) for number in (1, 2, 3))
    events = [
        Allocate(4000, "temporary", 2), Operator("aten.mul", "forward", [a], [b]),
        Allocate(4000, "activations", 3), Operator("aten.exp", "forward", [b], [c]),
        Allocate(-4000, "temporary", 2),
    ]  # fmt: skip
    step = fused(Step(events=events, samples=1))
    [kernel] = step.operators
    assert (kernel.name, kernel.inputs, kernel.outputs) == ("fused", [a], [c])
    assert [event.block for event in step.events if isinstance(event, Allocate)] == [3]
