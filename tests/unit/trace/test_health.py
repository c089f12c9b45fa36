"""Banners, and what they spoil."""

from perfkit.trace import analyse
from tests.unit.trace.recording import Recording


def test_repeated_steps_are_left_out_with_a_banner(tmp_path):
    found = analyse(Recording().step(1, 0, 10).step(1, 0, 10).step(2, 10, 10).op("a", 1, 1).load(tmp_path))
    assert [step.duration_us for step in found.steps] == [10, 10]
    assert "duplicate_steps" in [banner.code for banner in found.health]


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
