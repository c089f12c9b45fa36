"""Findings come from evidence, with a bound; a healthy step gets none."""

import json

import pytest

from perfkit.trace import analyse
from perfkit.trace.diagnosis import diagnose
from tests.unit.trace.recording import Recording


def found(made, folder):
    return {finding.bottleneck: finding for finding in diagnose(analyse(made.load(folder)))}


def test_data_bound_with_amdahl(tmp_path):
    made = (
        Recording()
        .step(1, 0, 100)
        .op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 50)
        .launch("k", 50, (52, 46))
    )
    finding = found(made, tmp_path)["data-bound"]
    assert (finding.exposed_us, finding.share_of_step) == (50, 0.5)
    assert finding.gain_at_most == pytest.approx(2.0)
    assert finding.try_next[0] == "workers"
    assert finding.evidence["loader_in_main_process"]


def test_host_bound_when_the_device_waits_for_launches(tmp_path):
    made = Recording().step(1, 0, 100)
    for at in range(0, 100, 10):
        made.launch("k", at + 4, (at + 7, 1))
    assert list(found(made, tmp_path)) == ["host-bound"]


def test_device_bound_asks_for_tensor_cores_only_where_there_are_some(tmp_path):
    made = Recording().step(1, 0, 100).launch("ampere_sgemm_128x64", 0, (2, 95))
    assert "amp" not in found(made, tmp_path)["device-bound"].try_next
    made.head["deviceProperties"] = [
        {"id": 0, "name": "A100", "computeMajor": 8, "computeMinor": 0, "numSms": 108}
    ]
    assert found(made, tmp_path)["device-bound"].try_next[:2] == ["amp", "fp32_precision"]


def test_copy_sync_memory_and_communication(tmp_path):
    copy = (
        Recording()
        .step(1, 0, 100)
        .launch("Memcpy HtoD (Pageable -> Device)", 0, (2, 40), cat="gpu_memcpy", bytes=4000)
    )
    assert found(copy.launch("k", 41, (42, 58)), tmp_path)["copy-bound"].try_next[0] == "pin_memory"
    sync = (
        Recording()
        .step(1, 0, 100)
        .launch("k", 0, (2, 40))
        .add("cuda_runtime", "cudaStreamSynchronize", 42, 20)
    )
    assert found(sync.launch("k", 62, (63, 35)), tmp_path)["sync-bound"].exposed_us == 20
    narrow = Recording().step(1, 0, 100).launch("vectorized_elementwise_kernel", 0, (2, 97))
    assert found(narrow, tmp_path)["memory-bound"].try_next[0] == "compile"
    talk = (
        Recording().step(1, 0, 100).launch("gemm", 0, (2, 50)).launch("ncclDevKernel", 1, (40, 58), stream=9)
    )
    assert found(talk, tmp_path)["communication-bound"].exposed_us == 46


def test_nothing_stands_out_and_a_sick_trace_gets_no_advice(tmp_path):
    fine = Recording().step(1, 0, 100)
    for at in range(0, 100, 10):
        fine.launch("gemm_mystery", at / 10, (at + 2, 7.5), cost=0.5)
    assert found(fine, tmp_path) == {}
    sick = Recording().step(1, 0, 100).add("cuda_runtime", "cudaLaunchKernel", 50, 2, correlation=99)
    assert found(sick, tmp_path) == {}


def test_on_a_cpu_the_cpu_is_the_device(tmp_path):
    assert list(found(Recording().step(1, 0, 100).op("aten::mm", 2, 96), tmp_path)) == ["device-bound"]
    assert list(found(Recording().step(1, 0, 100).op("aten::mm", 2, 50), tmp_path)) == ["host-bound"]


def test_findings_go_into_the_document(tmp_path):
    analysis = analyse(Recording().step(1, 0, 100).op("aten::mm", 2, 96).load(tmp_path))
    document = json.loads(analysis.to_json(diagnose(analysis)))
    assert document["diagnosis"][0]["bottleneck"] == "device-bound"
