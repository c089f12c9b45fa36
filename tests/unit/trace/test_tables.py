"""Rows of copies and waits."""

import pytest

from perfkit.trace import analyse
from tests.unit.trace.recording import Recording


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
