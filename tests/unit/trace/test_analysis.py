"""The whole of an analysis."""

from perfkit.trace import analyse
from tests.unit.trace.recording import Recording


def test_without_an_accelerator_device_figures_are_none_and_say_why(tmp_path):
    found = analyse(Recording().step(1, 0, 10).op("aten::mm", 2, 5).load(tmp_path))
    assert [found.mean_us[part] for part in ("kernel", "memcpy", "memset", "runtime")] == [None] * 4
    assert (found.mean_us["cpu_op"], found.mean_us["other"]) == (5, 5)
    assert (
        found.gpu_utilization
        is found.est_sm_efficiency
        is found.est_achieved_occupancy
        is found.tensor_core
        is None
    )
    assert found.device["reason"] == "no accelerator in this trace"
    assert found.operators[0].device_total_us is None
