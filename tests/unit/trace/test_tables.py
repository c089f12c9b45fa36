"""Who launched what, copies, waits, idle causes, memory, timeline, and the difference of two traces."""

import pytest

from perfkit.trace import TraceError, analyse, compare, lanes
from perfkit.trace.device import tensor_core
from tests.unit.trace.recording import AUTOGRAD, Recording


def test_a_kernel_belongs_to_the_innermost_operator_around_its_launch(tmp_path):
    made = (
        Recording()
        .step(1, 0, 100)
        .op("aten::linear", 0, 50, **{"Input Dims": [[2, 3]], "Input type": ["float"]})
    )
    made.op("aten::addmm", 10, 20).op("aten::addmm", 12, 5, tid=AUTOGRAD)
    made.launch("gemm", 15, (60, 10)).launch("bias", 40, (71, 4)).launch("gemm", 13, (80, 6), tid=AUTOGRAD)
    found = analyse(made.load(tmp_path))
    rows = {(row.name, row.input_shapes): row for row in found.operators}
    outer, inner = rows["aten::linear", "[[2, 3]]"], rows["aten::addmm", None]
    assert (outer.device_self_us, outer.device_total_us, outer.host_self_us) == (4, 14, 30)
    assert (inner.calls, inner.device_self_us, inner.host_total_us) == (2, 16, 25)
    assert (outer.input_dtypes, inner.input_dtypes) == ('["float"]', None)
    kernels = {row.name: row for row in found.kernels}
    assert (kernels["gemm"].operator, kernels["bias"].operator) == ("aten::addmm", "aten::linear")
    assert (kernels["gemm"].calls, kernels["gemm"].min_us, kernels["gemm"].max_us) == (2, 6, 10)


def test_where_the_thread_is_unknown_the_external_id_ties_kernel_and_operator(tmp_path):
    made = Recording().op("record_param_comms", 0, 5, **{"External id": 9})
    made.add("cuda_runtime", "cudaLaunchKernel", 20, 2, -5494, correlation=1, **{"External id": 9})
    made.add("kernel", "nccl", 30, 5, 7, 0, correlation=1)
    made.add("kernel", "lone", 40, 5, 7, 0, correlation=77, **{"External id": 9})
    assert {row.operator for row in analyse(made.load(tmp_path)).kernels} == {"record_param_comms"}


def test_operators_that_overlap_without_nesting_do_no_harm(tmp_path):
    made = Recording().op("a", 0, 10).op("b", 5, 10).op("c", 12, 2).op("d", 20, 0)
    rows = {row.name: row for row in analyse(made.load(tmp_path)).operators}
    assert sum(row.calls for row in rows.values()) == 4
    assert rows["a"].host_total_us == 10


def test_lines_come_from_python_frames_or_call_stacks(tmp_path):
    made = Recording().step(1, 0, 100).add("python_function", "train.py(12): main", 0, 90)
    made.add("python_function", "torch/nn/modules/conv.py(5): forward", 1, 50).op("aten::mm", 5, 9).launch(
        "k", 6, (20, 5)
    )
    stack = "/x/site-packages/torch/a.py(3): f;/home/me/loop.py(44): <module>"
    made.op("aten::copy_", 200, 20, **{"Call stack": stack})
    made.launch("Memcpy HtoD (Pageable -> Device)", 205, (210, 5), cat="gpu_memcpy", bytes=10_000)
    found = analyse(made.load(tmp_path))
    assert found.kernels[0].frame == "train.py:12"
    (copy,) = found.transfers
    assert (copy.frame, copy.operator, copy.direction, copy.host_memory) == (
        "/home/me/loop.py:44",
        "aten::copy_",
        "HtoD",
        "pageable",
    )
    assert (copy.bytes, copy.gb_per_s) == (10_000, pytest.approx(2.0))


def test_what_rocm_says_at_the_launch_is_used(tmp_path):
    made = Recording().add(
        "cuda_runtime", "hipMemcpyWithStream", 0, 9, correlation=3, size="2560", stream="0x0"
    )
    made.add("gpu_memcpy", "Memcpy HtoD (Host -> Device)", 2, 4, 0, 2, correlation=3, device=2)
    found = analyse(made.load(tmp_path))
    assert (found.transfers[0].bytes, found.transfers[0].host_memory, found.device["kind"]) == (
        2560,
        None,
        "rocm",
    )
    assert found.syncs[0].call == "hipMemcpyWithStream"


def test_waits_are_found_by_call_and_by_operator(tmp_path):
    made = (
        Recording()
        .step(1, 0, 100)
        .op("aten::item", 10, 20)
        .op("aten::_local_scalar_dense", 11, 18)
        .launch("k", 0, (5, 20))
    )
    made.add("cuda_runtime", "cudaStreamSynchronize", 12, 15)
    rows = {(row.call, row.operator): row for row in analyse(made.load(tmp_path)).syncs}
    assert rows["cudaStreamSynchronize", "aten::_local_scalar_dense"].ms_per_step == pytest.approx(0.015)
    assert set(rows) == {
        ("cudaStreamSynchronize", "aten::_local_scalar_dense"),
        ("aten::_local_scalar_dense", "aten::item"),
        ("aten::item", None),
    }


def test_idle_time_is_classed_by_what_the_host_did(tmp_path):
    made = (
        Recording().step(1, 0, 100).op("enumerate(DataLoader)#_S.__next__", 0, 20).launch("a", 25, (30, 10))
    )
    made.launch("b", 31, (41, 9)).add("cuda_runtime", "cudaMalloc", 50, 10).launch("c", 64, (70, 10))
    found = {row.cause: row for row in analyse(made.load(tmp_path)).idle}
    expected = {"data": 20, "launch": 20, "queued": 1, "allocator": 10, "end_of_step": 20}
    assert {cause: row.total_us for cause, row in found.items()} == expected
    assert found["queued"].gaps == 1


def test_launches_without_a_kernel_spoil_the_device_figures(tmp_path):
    made = (
        Recording()
        .step(1, 0, 100)
        .launch("k", 0, (5, 20))
        .add("cuda_runtime", "cudaLaunchKernel", 50, 2, correlation=99)
    )
    found = analyse(made.load(tmp_path))
    assert [banner.code for banner in found.health] == ["dropped_kernels"]
    assert found.gpu_utilization is None
    assert set(found.mean_us.values()) == {None}
    assert found.idle == []
    lost = Recording().step(1, 0, 100).add("cuda_runtime", "cudaLaunchKernel", 50, 2, correlation=99)
    assert [b.code for b in analyse(lost.load(tmp_path)).health] == ["no_gpu_events"]


def test_memory_has_a_curve_a_peak_and_owners(tmp_path):
    made = Recording().op("aten::empty", 0, 10).op("aten::relu", 20, 10)
    total = {"Total Reserved": 900}
    made.memory(1, 100, 1, **{"Total Allocated": 100}, **total).memory(
        21, 300, 2, **{"Total Allocated": 400}, **total
    )
    made.memory(40, -300, 2, **{"Total Allocated": 100}, **total)
    (found,) = analyse(made.load(tmp_path)).memory["devices"]
    assert (found["peak_allocated_bytes"], found["peak_reserved_bytes"], found["peak_at_us"]) == (
        400,
        900,
        21,
    )
    assert [(row["operator"], row["bytes"]) for row in found["owners_at_peak"]] == [
        ("aten::relu", 300),
        ("aten::empty", 100),
    ]
    old = Recording().op("a", 0, 1).memory(1, 50).memory(2, 20).memory(3, -70)
    (found,) = analyse(old.load(tmp_path)).memory["devices"]
    assert (found["relative"], found["peak_allocated_bytes"], found["peak_increase_bytes"]) == (
        True,
        None,
        70,
    )


def test_lanes_have_threads_streams_and_copies_and_the_longest_events(tmp_path):
    made = Recording().step(1, 1000, 100).op("aten::mm", 1005, 30).op("aten::inner", 1010, 5)
    made.op("autograd::engine::evaluate_function: MmBackward0", 1040, 20, tid=AUTOGRAD).op(
        "Optimizer.step#SGD.step", 1070, 20
    )
    made.launch("ncclKernel", 1012, (1050, 9)).launch("Memcpy HtoD", 1001, (1002, 3), cat="gpu_memcpy")
    trace = made.load(tmp_path)
    found = lanes(trace, "ProfilerStep#1")
    assert [lane.kind for lane in found.lanes] == ["thread", "thread", "stream", "copies"]
    main = {bar.name: bar for bar in found.lanes[0].bars}
    assert (main["aten::mm"].start_us, main["aten::mm"].depth, main["aten::inner"].depth) == (5, 0, 1)
    assert found.lanes[2].bars[0].colour == "communication"
    phases = {bar.name: (bar.start_us, bar.duration_us) for bar in found.phases}
    assert phases == {"forward": (0, 40), "backward": (40, 20), "optimizer": (70, 20)}
    few = lanes(trace, 0, limit=1)
    assert ([bar.name for lane in few.lanes for bar in lane.bars], few.omitted) == (["aten::mm"], 7)
    for wrong in ({"step": "ProfilerStep#9"}, {"step": 5}, {"rank": 1}):
        with pytest.raises(TraceError):
            lanes(trace, **wrong)


def test_compare_says_what_appeared_vanished_grew_and_shrank(tmp_path):
    a = analyse(
        Recording()
        .step(1, 0, 100)
        .launch("x", 0, (5, 20))
        .launch("y", 1, (30, 10))
        .launch("w", 2, (50, 5))
        .load(tmp_path)
    )
    b = analyse(
        Recording()
        .step(1, 0, 100)
        .launch("x", 0, (5, 10))
        .launch("z", 1, (30, 10))
        .launch("w", 2, (50, 7))
        .load(tmp_path)
    )
    found = compare(a, b)
    assert {row.name: row.status for row in found.kernels} == {
        "x": "shrank",
        "y": "vanished",
        "z": "appeared",
        "w": "grew",
    }
    assert {row.status for row in compare(a, a).kernels} == {"same"}
    assert found.parts_us["kernel"] == (35, 27)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("volta_fp16_s884cudnn_fp16_128x128_ldg8_relu_f2f_exp_small_nhwc2nchw_tn_v1", "yes"),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", "yes"),
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32", "yes"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT", "yes"),
        ("cutlass3x_sm100_tensorop_gemm", "yes"),
        ("void pytorch_flash::flash_fwd_kernel<...>", "yes"),
        ("sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_tensor16x8x8", "yes"),
        ("Cijk_Alik_Bljk_SB_MT64x16x32_MI16x16x1_SN", "yes"),
        ("triton_tem_fused_mm_0", "yes"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>", "no"),
        ("ampere_sgemm_32x128_nt", "no"),
        ("triton_poi_fused_add_cos_sin_0", "no"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "no"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", "no"),
        ("my_matmul_kernel", "unknown"),
        ("triton_matmul_user", "unknown"),
        ("ampere_gcgemm_64x64_nt", "unknown"),
        ("kernel_0", "unknown"),
    ],
)
def test_tensor_cores_by_name(name, expected):
    assert tensor_core(name) == expected
