"""Where the time of a step goes, how well the device is used, and the tables."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfkit.additions.shared.intervals import merge, partition
from perfkit.additions.trace.analysis import analyse
from perfkit.additions.trace.names import tensor_core
from perfkit.additions.trace.table import PARTS, Trace
from tests.unit.additions.trace.recording import AUTOGRAD, LOADER, Recording, step

NS = st.integers(0, 400_000).map(lambda ns: ns / 1000)
KINDS = st.sampled_from(["cpu_op", "user_annotation"])
NAMES = st.sampled_from(["aten::mm", LOADER, "nccl:all_reduce", "mine"])
HOST = st.tuples(KINDS, NAMES, NS, NS, st.sampled_from([100, AUTOGRAD]))
RUNS = [
    ("kernel", "k"), ("kernel", "ncclDevKernel"), ("gpu_memcpy", "Memcpy HtoD"), ("gpu_memset", "Memset"),
]  # fmt: skip
CALLS = st.sampled_from(["cudaLaunchKernel", "cuLaunchKernel", "hipLaunchKernel"])
DEVICE = st.tuples(st.sampled_from(RUNS), NS, st.tuples(NS, NS), CALLS, st.integers(7, 9))


@st.composite
def recordings(draw):
    trace, at = Recording(), draw(NS)
    for number in range(draw(st.integers(0, 4))):
        length = draw(NS)
        trace.step(number, at, length)
        at = round(at + length + draw(st.sampled_from([0, 0, 1.5, 40])), 3)  # touching, or apart
    for event in draw(st.lists(HOST, max_size=6)):
        trace.add(*event)
    for (category, name), call_at, run, call, stream in draw(st.lists(DEVICE, max_size=8)):
        trace.launch(name, call_at, run, call, category, stream)
    if draw(st.booleans()):
        trace.add("kernel", "busy all the time", 0, 2000, 7, 0, correlation=0)
    trace.add("gpu_user_annotation", "ProfilerStep#0", draw(NS), draw(NS), 7, 0)
    return trace.add("cpu_op", "last", 1, 1)


@pytest.mark.integration
@settings(max_examples=200, deadline=None)
@given(recordings())
def test_parts_sum_to_the_step_and_causes_to_the_idle_time(recording):
    with tempfile.TemporaryDirectory() as folder:
        trace = Trace(recording.save(Path(folder)))
    steps = trace.steps
    parts = partition(trace.layers, steps.start, steps.end)
    assert (parts >= 0).all()
    assert parts.sum(axis=0).tolist() == (steps.end - steps.start).tolist()
    assert merge(steps.start, steps.end).total == steps.total, "steps are disjoint"
    marks = {event["name"] for event in recording.events if event["cat"] == "user_annotation"}
    assert {name for name in steps.names if name != "whole trace"} <= marks, "no step from the GPU's side"
    analysis = analyse(trace)
    if analysis.has_accelerator and not any(problem.spoils for problem in analysis.health):
        idle = steps.total - steps.common(trace.union(trace.device))
        assert round(sum(row.total_us for row in analysis.idle) * 1000) == idle
        assert 0 <= (analysis.gpu_utilization or 0) <= 1
    assert all(row.host_self_us <= row.host_total_us for row in analysis.operators)


def test_a_step_lasts_until_the_device_work_launched_in_it_is_done(tmp_path):
    trace = step().step(2, 100, 100).launch("k", 90, (150, 30)).launch("k", 150, (190, 20))
    analysis = trace.analyse(tmp_path)
    assert [(each.start_us, each.duration_us) for each in analysis.steps] == [(0, 180), (180, 30)]
    assert analysis.steps[0].breakdown_us["kernel"] == 30
    assert analysis.gpu_utilization == 50 / 210


def test_repeated_steps_are_left_out_and_said(tmp_path):
    analysis = step(10).step(1, 0, 9).step(2, 10, 10).op("a", 1, 1).analyse(tmp_path)
    assert [each.duration_us for each in analysis.steps] == [10, 10]
    assert [problem.code for problem in analysis.health] == ["duplicate_steps"]


def test_each_moment_goes_to_the_first_part_that_claims_it(tmp_path):
    trace = step().op("aten::mm", 0, 60).op(LOADER, 50, 40).launch("gemm", 10, (20, 20))
    trace.launch("Memcpy HtoD (Pinned -> Device)", 30, (35, 10), cat="gpu_memcpy")
    analysis = trace.analyse(tmp_path)
    assert analysis.mean_us == dict(zip(PARTS, (20, 5, 0, 0, 2, 40, 23, 10), strict=True))


def test_launches_without_a_kernel_spoil_the_device_figures(tmp_path):
    def lost(trace):
        trace.add("cuda_runtime", "cudaLaunchKernel", 50, 2, correlation=99)
        analysis = trace.analyse(tmp_path)
        assert analysis.gpu_utilization is None
        assert set(analysis.mean_us.values()) == set(analysis.steps[0].breakdown_us.values()) == {None}
        assert analysis.idle == []
        return analysis.health[-1].code

    assert lost(step().launch("k", 0, (5, 20))) == "dropped_kernels"
    assert lost(step()) == "no_gpu_events"


def test_tensor_cores_are_weighted_by_time(tmp_path):
    trace = step().launch("mystery", 2, (60, 10))
    trace.launch("sm90_xmma_gemm", 0, (0, 30)).launch("elementwise_kernel", 1, (40, 10))
    assert trace.analyse(tmp_path).tensor_core == pytest.approx({"yes": 0.6, "no": 0.2, "unknown": 0.2})


TENSOR_CORES = {
    "yes": """
        volta_fp16_s884cudnn_fp16_128x128_ldg8_relu_f2f_exp_small_nhwc2nchw_tn_v1
        ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32
        nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT cutlass3x_sm100_tensorop_gemm pytorch_flash::flash_fwd_kernel<...>
        sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_tensor16x8x8 triton_tem_fused_mm_0
        Cijk_Alik_Bljk_SB_MT64x16x32_MI16x16x1_SN
    """,
    "no": """
        at::native::vectorized_elementwise_kernel<4,at::native::FillFunctor<float>> ampere_sgemm_32x128_nt
        triton_poi_fused_add_cos_sin_0 ncclDevKernel_AllReduce_Sum_f32_RING_LL cudnn::bn_fw_tr_1C11_kernel_NCHW<float>
    """,
    "unknown": "my_matmul_kernel triton_matmul_user ampere_gcgemm_64x64_nt kernel_0",
}


@pytest.mark.parametrize("answer", TENSOR_CORES)
def test_tensor_cores_by_name(answer):
    names = TENSOR_CORES[answer].split()
    assert [tensor_core(name) for name in names] == [answer] * len(names)


def test_the_union_of_spans_fills_small_gaps():
    start, end = np.array([5, 0, 1, 9]), np.array([6, 2, 3, 9])
    assert merge(start, end).pairs() == [(0, 3), (5, 6)]
    assert merge(start, end, least=2).pairs() == [(0, 6)]


def test_idle_time_is_divided_by_what_the_host_did(tmp_path):
    trace = step().op(LOADER, 0, 20).launch("a", 25, (30, 10)).launch("b", 31, (41, 9))
    analysis = trace.add("cuda_runtime", "cudaMalloc", 50, 10).launch("c", 64, (70, 10)).analyse(tmp_path)
    expected = {"data": 20, "launch": 13, "queued": 8, "allocator": 10, "end_of_step": 20}
    assert {row.cause: row.total_us for row in analysis.idle} == expected


def test_communication_is_exposed_where_no_other_kernel_runs(tmp_path):
    trace = step(distributedInfo={"backend": "nccl", "rank": 1, "world_size": 2}).launch("gemm", 0, (0, 20))
    analysis = trace.launch("ncclDevKernel_AllReduce", 5, (10, 50), stream=20).analyse(tmp_path)
    assert (analysis.steps[0].rank, analysis.mean_us["kernel"]) == (1, 20)
    talk = {"backend": "nccl", "total_us_per_step": 50, "exposed_us_per_step": 40}
    assert analysis.communication == talk


def test_a_kernel_belongs_to_the_innermost_operator_around_its_launch(tmp_path):
    trace = step().op("aten::linear", 0, 50)
    trace.op("aten::addmm", 10, 20).op("aten::addmm", 12, 5, tid=AUTOGRAD).op("far", 3.9e15, 1, tid=1)
    trace.launch("gemm", 15, (60, 10)).launch("bias", 40, (71, 4)).launch("gemm", 13, (80, 6), tid=AUTOGRAD)
    analysis = trace.analyse(tmp_path)
    rows = {row.name: row for row in analysis.operators}
    outer, inner = rows["aten::linear"], rows["aten::addmm"]
    assert (outer.device_self_us, outer.host_self_us) == (4, 30)
    assert (inner.calls, inner.device_self_us, inner.host_total_us) == (2, 16, 25)
    kernels = {row.name: (row.operator, row.calls, row.mean_us) for row in analysis.kernels}
    assert kernels == {"gemm": ("aten::addmm", 2, 8), "bias": ("aten::linear", 1, 4)}


def test_operators_that_overlap_without_nesting_do_no_harm(tmp_path):
    trace = Recording().op("a", 0, 10).op("b", 5, 10).op("c", 12, 2).launch("in c", 13, (20, 1), cost=0.5)
    analysis = trace.launch("after a", 14.5, (30, 1)).analyse(tmp_path)
    assert {row.name: row.host_total_us for row in analysis.operators} == {"a": 10, "b": 10, "c": 2}
    kernels = {row.name: row.operator for row in analysis.kernels}
    assert (kernels["in c"], kernels["after a"] == "a") == ("c", False)


def test_lines_come_from_the_users_python_frames(tmp_path):
    trace = step().add("python_function", "train.py(12): main", 0, 90)
    trace.add("python_function", "torch/nn/modules/conv.py(5): forward", 1, 50).op("aten::mm", 5, 9)
    trace.launch("k", 6, (20, 5)).op("aten::copy_", 60, 20).add("python_function", "loop.py(4): f", 55, 30)
    trace.launch("Memcpy HtoD (Pageable -> Device)", 61, (70, 5), cat="gpu_memcpy", bytes=10_000)
    analysis = trace.analyse(tmp_path)
    assert analysis.kernels[0].frame == "train.py:12"
    (copy,) = analysis.transfers
    assert (copy.frame, copy.operator) == ("loop.py:4", "aten::copy_")
    assert (copy.direction, copy.host_memory, copy.bytes, copy.gb_per_s) == ("HtoD", "pageable", 10_000, 2.0)


def test_waits_are_calls_of_the_runtime_with_their_operator(tmp_path):
    trace = step().op("aten::item", 10, 20).op("aten::_local_scalar_dense", 11, 18).launch("k", 0, (5, 20))
    trace.add("cuda_runtime", "cudaStreamSynchronize", 12, 15)
    rows = [(row.call, row.operator, row.us_per_step) for row in trace.analyse(tmp_path).syncs]
    assert rows == [("cudaStreamSynchronize", "aten::_local_scalar_dense", 15)]


def test_copies_outside_of_the_steps_are_none_of_theirs(tmp_path):
    trace = step().launch("k", 6, (20, 5))
    for at in (50, 300):
        trace.launch("Memcpy HtoD (Pinned -> Device)", at, (at + 5, 5), cat="gpu_memcpy")
    (copy,) = trace.analyse(tmp_path).transfers
    assert (copy.calls, copy.calls_per_step) == (1, 1)


def test_simulated_kernels_say_themselves_whether_they_use_tensor_cores():
    assert tensor_core("simulated conv.wgrad.nhwc float16 (convolution_backward) (Tensor Cores)") == "yes"
    assert tensor_core("simulated conv.wgrad.nchw.fp32 float32 (convolution_backward)") == "no"
