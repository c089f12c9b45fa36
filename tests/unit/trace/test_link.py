"""Kernels find their operators and lines of code."""

import pytest

from perfkit.trace import analyse
from tests.unit.trace.recording import AUTOGRAD, Recording


def test_a_stray_time_stamp_does_not_upset_the_others(tmp_path):
    made = (
        Recording()
        .op("first", -4e15, 1)
        .op("far", 3.9e15, 1, tid=1)
        .op("x", 0, 1, tid=2)
        .op("mm", 1_700_000_000_000_000, 9)
    )
    made.launch("k", 1_700_000_000_000_001, (1_700_000_000_000_003, 2))
    (row,) = analyse(made.load(tmp_path)).kernels
    assert row.operator == "mm"


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
