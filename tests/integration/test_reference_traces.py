"""Real traces against the old plugin's figures (within 1%), and what must hold of every one of them."""

import json
import os
from pathlib import Path

import pytest

from perfkit.additions.shared.intervals import partition
from perfkit.additions.trace import reader
from perfkit.additions.trace.analysis import analyse
from perfkit.additions.trace.table import Trace

FOLDER = Path(os.environ.get("PERFKIT_TRACES", Path(__file__).parents[2] / "../shared/traces"))
EXACT = ("resnet50-v100-workers0", "ddp-v100-nanosecond")
NAMES = (
    *EXACT, "cpu-only-one-step", "ddp-a100-nccl", "minitoy-mi250-rocm", "no-steps-a100", "triton-launch-a100",
)  # fmt: skip
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no traces at {FOLDER} (set PERFKIT_TRACES)")


def path(name):
    return FOLDER / f"{name}.pt.trace.json.gz"


def pair(name):
    return analyse(path(name)), json.loads((FOLDER / "reference.json").read_text())[name]


@pytest.mark.parametrize("name", [*EXACT, "ddp-a100-nccl"])
def test_figures_are_those_of_the_plugin(name):
    analysis, expected = pair(name)
    assert analysis.mean_step_us == pytest.approx(expected["mean_step_us"], rel=0.01)
    assert analysis.gpu_utilization == pytest.approx(expected["gpu_utilization"], rel=0.01)
    if name in EXACT:
        assert [step.name.removeprefix("ProfilerStep#") for step in analysis.steps] == expected["steps"]
        parts = {part.replace("cpuop", "cpu_op"): value for part, value in expected["mean_us"].items()}
        parts["cpu_op"] += parts.pop("communication")  # the plugin counts the host's marks of collectives
        for part, value in parts.items():
            assert analysis.mean_us[part] == pytest.approx(value, rel=0.01, abs=0.1), part
    for operator, calls, own in expected["top_ops_self_device_us"]:
        rows = [row for row in analysis.operators if row.name == operator]
        assert sum(row.calls for row in rows) == calls
        assert sum(row.device_self_us for row in rows) == pytest.approx(own, rel=0.01)
    for start, (_, calls, total, mean, *_) in expected["top_kernels"]:
        (row,) = [row for row in analysis.kernels if row.name.startswith(start) and row.calls == calls]
        times = (row.total_us, row.mean_us)
        assert times == pytest.approx((total, mean), rel=0.01, abs=0.6)


def test_collective_kernels_are_communication_and_not_kernel():
    """The plugin looks for them by external id, finds none in this file and counts them as Kernel."""
    analysis, expected = pair("ddp-a100-nccl")
    parts = ("kernel", "memcpy", "memset", "communication")
    plugin = sum(expected["mean_us"][part] for part in parts)
    assert sum(analysis.mean_us[part] for part in parts) == pytest.approx(plugin, rel=0.01)
    exposed = analysis.communication["exposed_us_per_step"]
    assert analysis.mean_us["kernel"] + exposed == pytest.approx(expected["mean_us"]["kernel"], rel=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_what_holds_of_every_trace_read_in_pieces_of_any_size(name, monkeypatch):
    trace = Trace(path(name))
    analysis, steps = analyse(trace), trace.steps
    parts = partition(trace.layers, steps.start, steps.end)
    assert parts.sum(axis=0).tolist() == (steps.end - steps.start).tolist()
    if analysis.has_accelerator:
        idle = steps.total - steps.common(trace.union(trace.device))
        assert round(sum(row.total_us for row in analysis.idle) * 1000) == idle
    assert sum(row.calls for row in analysis.operators) == len(trace.ops)
    for size in (997, 5 << 20):
        monkeypatch.setattr(reader, "PIECE", size)
        assert analyse(path(name)) == analysis


def test_the_traces_without_a_device_steps_or_nvidia():
    names = ("cpu-only-one-step", "minitoy-mi250-rocm", "triton-launch-a100", "no-steps-a100")
    cpu, rocm, driver, marks = (analyse(path(name)) for name in names)
    assert (cpu.device["kind"], cpu.mean_us["kernel"], cpu.gpu_utilization) == ("unknown", None, None)
    assert [problem.code for problem in cpu.health] == ["operators_on_gpu"], "its collectives are NCCL's"
    assert rocm.device["kind"] == "rocm"
    assert [step.name for step in rocm.steps] == ["ProfilerStep#1", "ProfilerStep#2"]
    assert rocm.transfers[0].bytes == 5120
    (kernel,) = driver.kernels
    assert kernel.name == kernel.operator == "triton_poi_fused_add_cos_sin_0", "launched by the driver API"
    assert [problem.code for problem in marks.health] == ["no_steps"]
