"""Predicted kernels: never faster than the data sheet, ordered as on real GPUs; and fused ones."""

import itertools

import msgspec
import pytest

from perfkit.additions.simulate import costs
from perfkit.additions.simulate.costs import GPUS, gpu
from perfkit.additions.simulate.fusion import fused
from perfkit.additions.simulate.step import Allocate, OperatorCall, StepEvents, Tensor
from perfkit.errors import InvalidValue
from tests.unit.additions.simulate.plans import of, operators, planned

each_gpu = pytest.mark.parametrize("sheet", GPUS.values(), ids=GPUS)


def seconds(sheet, name, inputs, output, precision="ieee", **attributes):
    operator = OperatorCall(f"aten.{name}", "forward", inputs, [output], attributes)
    step = StepEvents(events=[operator], conv_precision=precision, matmul_precision=precision)
    return sum(seconds for _, kernels in costs.actions(step, sheet) for _, seconds in kernels)


def product(sheet, side, dtype, precision="ieee"):
    matrix = Tensor((side, side), dtype)
    return seconds(sheet, "mm", [matrix, matrix], matrix, precision)


@each_gpu
def test_products_obey_the_data_sheet_and_grow_with_size_and_width(sheet):
    peaks = {("float32", "ieee"): sheet.float32_tflops, ("float16", "ieee"): sheet.half_tflops}
    if sheet.tf32_tflops:
        peaks["float32", "tf32"] = sheet.tf32_tflops
    for (dtype, precision), peak in peaks.items():
        times = [product(sheet, side, dtype, precision) for side in (64, 1000, 4096, 16384)]
        assert times == sorted(times)
        assert 2 * 16384**3 / times[-1] <= peak * 1e12
        if dtype == "float32":
            assert times[-1] > 1.5 * product(sheet, 16384, "float16")


@each_gpu
def test_no_convolution_beats_the_data_sheet_except_by_winograds_fewer_multiplications(sheet):
    kinds = itertools.product(("float32", "float16"), (1, 3), ("contiguous", "channels_last"))
    for dtype, taps, layout in kinds:
        x = Tensor((256, 256, 56, 56), dtype, layout)
        w = Tensor((256, 256, taps, taps), dtype, layout)
        about = {"stride": [1, 1], "dilation": [1, 1], "groups": 1, "transposed": False}
        saved = 4.0 if dtype == "float32" and taps == 3 else 1.0
        peak = sheet.half_tflops if dtype == "float16" else sheet.float32_tflops
        flops = 2 * 256 * 56 * 56 * 256 * 256 * taps**2
        assert flops / seconds(sheet, "convolution", [x, w], x, **about) <= saved * peak * 1e12


@each_gpu
def test_nothing_moves_bytes_faster_than_the_memory(sheet):
    big = Tensor((1 << 30,), "uint8")
    for name in ("add", "sum", "_softmax", "cat", "max_pool2d_with_indices"):
        assert 2 * big.nbytes / seconds(sheet, name, [big], big) <= sheet.bandwidth_gbs * 1e9


def test_what_multiprocessors_limit_is_as_much_faster_as_they_are_up_to_the_bandwidth():
    reference = gpu("rtx3090")
    shares = {"overlap": 8, "conv.memory": 0.2, "pointwise.memory": 0.9, "other.compute": 1}
    known = costs.Constants(2, shares, {})
    twice, half = (msgspec.structs.replace(reference, multiprocessors=count) for count in (2 * 82, 41))
    shares = [known.share(sheet, "conv.wgrad", "memory") for sheet in (reference, twice, half)]
    assert shares == [0.2, 0.4, 0.2]
    assert [known.share(sheet, "conv", "compute") for sheet in (reference, twice)] == [1, 1]
    assert known.share(twice, "pointwise", "memory") > 1, "which no kernel reaches"


@pytest.mark.parametrize(
    ("key", "words"), [("h100", "only ResNet-50 is published.*a table of many models"), ("gtx9", "v100")]
)
def test_other_gpus_are_refused_with_what_would_bring_them(key, words):
    with pytest.raises(InvalidValue, match=words):
        gpu(key)


def test_compiling_joins_neighbours_and_keeps_products():
    eager, compiled = planned(batch_size=64), planned(batch_size=64, compile=True)
    kept = [op.name for op in operators(compiled) if op.phase != "optimizer" and op.name != "fused"]
    products = (
        op.name for op in operators(eager) if "conv" in op.name or op.name in ("aten.mm", "aten.addmm")
    )
    assert sorted(kept) == sorted(products)
    [layout] = {op.inputs[0].layout for op in operators(compiled) if op.name == "aten.convolution"}
    assert layout == "channels_last", "the compiler's choice"


def test_what_only_one_kernel_uses_is_not_written():
    a, b, c = (Tensor((1000,), "float32", block=number) for number in (1, 2, 3))
    events = [
        Allocate(4000, "workspace", 2), OperatorCall("aten.mul", "forward", [a], [b]),
        Allocate(4000, "activations", 3), OperatorCall("aten.exp", "forward", [b], [c]),
        Allocate(-4000, "workspace", 2),
    ]  # fmt: skip
    step = fused(StepEvents(events=events))
    [kernel] = operators(step)
    assert (kernel.name, kernel.inputs, kernel.outputs) == ("fused", [a], [c])
    assert [block.block for block in of(step, Allocate)] == [3]
