from __future__ import annotations

import pytest
from msgspec.json import encode
from msgspec.structs import replace

from perfkit.errors import StoreError
from perfkit.simulate import recorded
from perfkit.simulate.recorded import Entry, KernelRecording
from perfkit.simulate.step import Kernel, Operator, Step, Tensor

ATTRIBUTES = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}


def convolution(
    batch: int, channels: int = 8, layout: str = "contiguous", dtype: str = "float32"
) -> Operator:
    x = Tensor((batch, channels, 14, 14), dtype, layout)
    w = Tensor((channels, channels, 3, 3), dtype, layout)
    return Operator("aten.convolution", "forward", [x, w], [x], ATTRIBUTES)


def relu(size: int) -> Operator:
    tensor = Tensor((size,), "float32")
    return Operator("aten.relu", "forward", [tensor], [tensor])


def product(m: int, k: int, n: int) -> Operator:
    a, b, c = (Tensor(shape, "float16") for shape in ((m, k), (k, n), (m, n)))
    return Operator("aten.mm", "forward", [a, b], [c])


def entry(operator: Operator, seconds: float, **more: object) -> Entry:
    return Entry(
        operator.name, operator.inputs, operator.outputs, operator.attributes, seconds, 9, 0.0, **more
    )


def recording(*entries: Entry) -> KernelRecording:
    return KernelRecording(
        gpu="v100", name="Tesla V100-SXM2-16GB", driver="1", torch="2.15.0", cuda="13", cudnn="9",
        created="2026-11-23", clock_mhz=1530.0, overhead_s=1e-6, complete=True, entries=list(entries),
    )  # fmt: skip


def step(*operators: Operator, **more: object) -> Step:
    return Step(events=list(operators), samples=32, torch="2.15.0", **more)


def seconds(operator: Operator, *entries: Entry, **more: object) -> float | None:
    return recorded.Times(recording(*entries)).seconds(operator, step(operator, **more))


def test_what_was_recorded_is_taken_as_it_is() -> None:
    assert seconds(convolution(32), entry(convolution(32), 0.5), entry(convolution(64), 0.9)) == 0.5


def test_between_two_batches_the_time_follows_a_line_in_logarithms() -> None:
    # 16 is half-way between 8 and 32 in logarithms, so the time is the geometric mean.
    known = entry(convolution(8), 1e-3), entry(convolution(32), 4e-3)
    assert seconds(convolution(16), *known) == pytest.approx(2e-3)


@pytest.mark.parametrize("batch", [4, 64])
def test_beyond_what_was_recorded_nothing_is_guessed(batch: int) -> None:
    assert seconds(convolution(batch), entry(convolution(8), 1e-3), entry(convolution(32), 4e-3)) is None


def test_sizes_that_are_far_apart_say_nothing_of_those_between() -> None:
    assert seconds(convolution(64), entry(convolution(8), 1e-3), entry(convolution(512), 0.1)) is None


@pytest.mark.parametrize(
    "other", [convolution(16, layout="channels_last"), convolution(16, dtype="float16"), convolution(16, 9)]
)
def test_layout_type_and_every_other_size_must_be_the_same(other: Operator) -> None:
    assert seconds(other, entry(convolution(8), 1e-3), entry(convolution(32), 4e-3)) is None


def test_products_are_interpolated_along_one_of_their_sizes() -> None:
    known = entry(product(8, 64, 10), 1e-4), entry(product(32, 64, 10), 4e-4)
    assert seconds(product(16, 64, 10), *known) == pytest.approx(2e-4)
    assert seconds(product(16, 64, 11), *known) is None


def test_pointwise_operators_are_interpolated_by_their_bytes() -> None:
    assert seconds(relu(2000), entry(relu(1000), 1e-6), entry(relu(4000), 4e-6)) == pytest.approx(2e-6)


def test_float32_products_are_of_one_precision() -> None:
    known = entry(convolution(32), 0.5), entry(convolution(64), 0.1, precision="tf32")
    assert seconds(convolution(32), *known) == 0.5
    assert seconds(convolution(32), *known, fp32_precision="tf32") is None
    without_tf32 = seconds(convolution(32), known[0], fp32_precision="tf32")
    assert without_tf32 == 0.5, "a GPU that has no TF32 computes it in float32"
    found = seconds(convolution(32), entry(convolution(32), 0.5, precision="tf32"), fp32_precision="tf32")
    assert found == 0.5
    half = convolution(32, dtype="float16")
    assert seconds(half, entry(half, 0.1), fp32_precision="tf32") == 0.1


def test_a_search_for_algorithms_is_another_time() -> None:
    assert seconds(convolution(32), entry(convolution(32), 0.5), cudnn_benchmark=True) is None
    assert seconds(relu(9), entry(relu(9), 0.5), cudnn_benchmark=True) == 0.5


def test_a_batch_norm_of_cudnn_is_that_of_a_plan() -> None:
    image, vector = Tensor((8, 4, 2, 2), "float32"), Tensor((4,), "float32")
    planned = Operator(
        "aten.native_batch_norm", "forward", [image, *[vector] * 4], [image], {"training": True}
    )
    on_gpu = replace(planned, name="aten.cudnn_batch_norm", inputs=[image, vector], attributes={})
    assert seconds(planned, entry(on_gpu, 0.5)) == 0.5


@pytest.fixture
def stored(tmp_path, monkeypatch):
    monkeypatch.setenv("PERFKIT_DATA", str(tmp_path))
    recorded.folder().mkdir(parents=True)

    def store(content: bytes) -> None:
        (recorded.folder() / "v100.json").write_bytes(content)

    return store


def test_kernels_share_the_recorded_time_and_say_where_it_is_from(stored) -> None:
    stored(encode(recording(entry(convolution(32), 6e-3))))
    one, two = Kernel("layout", "layout", 1e-3, 0), Kernel("conv", "conv", 3e-3, 0)
    kernels = [one, two, Kernel("relu", "pointwise", 1e-3, 1)]
    both = recorded.with_recorded(kernels, step(convolution(32), relu(5)), "v100")
    assert [kernel.seconds for kernel in both] == pytest.approx([1.5e-3, 4.5e-3, 1e-3])
    assert [kernel.source for kernel in both] == ["recorded", "recorded", "modelled"]
    assert recorded.recorded_share(both) == pytest.approx(6 / 7)


def test_without_a_recording_everything_is_modelled(stored) -> None:
    kernels = [Kernel("conv", "conv", 3e-3, 0)]
    assert recorded.with_recorded(kernels, step(convolution(32)), "v100") == kernels
    assert recorded.find("v100") is None


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b'{"schema": "perfkit.kernels/2"}', b"\xff\xfe", b"[" * 100_000,
        encode(recording(entry(relu(9), 0.5))).replace(b"0.5", b"-1"),
        encode(recording(entry(relu(9), 0.5))).replace(b"0.5", b"1e999"),
        encode(recording(entry(relu(9), 0.5))).replace(b"float32", b"float33"),
        encode(recording(entry(relu(9), 0.5))).replace(b'"name":"aten', b'"extra":1,"name":"aten'),
        encode(recording(entry(relu(9), 0.5))).replace(b"[9]", b"[" + b"9223372036854775807," * 20 + b"9]"),
    ],
    ids=["empty", "list", "schema", "bytes", "nested", "negative", "infinite", "type", "field", "huge"],
)  # fmt: skip
def test_a_file_that_is_none_is_refused_in_one_sentence(stored, content: bytes) -> None:
    stored(content)
    with pytest.raises(StoreError, match="not a recording of kernels.*record-kernels"):
        recorded.find("v100")
