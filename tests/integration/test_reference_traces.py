"""Real traces against the old plugin's figures (within 1%), and what must hold of every one of them."""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest

from perfkit.trace import analyse, lanes, load, reader
from perfkit.trace.diagnosis import diagnose
from perfkit.trace.steps import breakdown

FOLDER = Path(os.environ.get("PERFKIT_TRACES", Path(__file__).parents[2] / "../shared/traces"))
NAMES = [
    "cpu-only-one-step", "ddp-a100-nccl", "ddp-v100-nanosecond", "minitoy-mi250-rocm", "no-steps-a100",
    "resnet50-v100-workers0", "triton-launch-a100",
]  # fmt: skip
EXACT = ["resnet50-v100-workers0", "ddp-v100-nanosecond"]
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason=f"no reference traces at {FOLDER} (set PERFKIT_TRACES)"
)


def path(name):
    return FOLDER / f"{name}.pt.trace.json.gz"


def reference(name):
    return json.loads((FOLDER / "reference.json").read_text())[name]


@pytest.mark.parametrize("name", EXACT)
def test_steps_and_parts_are_those_of_the_plugin(name):
    found, expected = analyse(path(name)), reference(name)
    assert [step.name.removeprefix("ProfilerStep#") for step in found.steps] == expected["steps"]
    assert found.mean_step_us == pytest.approx(expected["mean_step_us"], rel=0.01)
    for part, value in expected["mean_us"].items():
        assert found.mean_us[part.replace("cpuop", "cpu_op")] == pytest.approx(value, rel=0.01, abs=0.1), part


@pytest.mark.parametrize("name", [*EXACT, "ddp-a100-nccl"])
def test_device_figures_are_those_of_the_plugin(name):
    found, expected = analyse(path(name)), reference(name)
    assert found.mean_step_us == pytest.approx(expected["mean_step_us"], rel=0.01)
    assert found.gpu_utilization == pytest.approx(expected["gpu_utilization"], rel=0.01)
    assert found.est_sm_efficiency == pytest.approx(expected["est_sm_efficiency"], rel=0.01)
    assert found.est_achieved_occupancy == pytest.approx(
        expected["est_achieved_occupancy_percent"] / 100, rel=0.01
    )
    by_name = {}
    for row in found.operators:
        calls, own = by_name.get(row.name, (0, 0.0))
        by_name[row.name] = calls + row.calls, own + row.device_self_us
    for operator, calls, own in expected["top_ops_self_device_us"]:
        assert by_name[operator] == (calls, pytest.approx(own, rel=0.01))
    for start, (_, calls, total, mean, high, low, blocks, occupancy) in expected["top_kernels"]:
        (row,) = [row for row in found.kernels if row.name.startswith(start) and row.calls == calls]
        figures = (row.total_us, row.mean_us, row.max_us, row.min_us)
        assert figures == pytest.approx((total, mean, high, low), rel=0.01, abs=0.6)
        assert (row.blocks_per_sm, row.occupancy) == pytest.approx(
            (blocks, occupancy / 100), rel=0.01, abs=0.006
        )


def test_collective_kernels_are_communication_and_not_kernel():
    """The plugin looks for them by external id, finds none in this file and counts them as Kernel."""
    found, expected = analyse(path("ddp-a100-nccl")), reference("ddp-a100-nccl")
    device = sum(found.mean_us[part] for part in ("kernel", "memcpy", "memset", "communication"))
    plugin = sum(expected["mean_us"][part] for part in ("kernel", "memcpy", "memset", "communication"))
    assert device == pytest.approx(plugin, rel=0.01)
    talk = found.communication
    assert found.mean_us["kernel"] + talk["exposed_us_per_step"] == pytest.approx(
        expected["mean_us"]["kernel"], rel=0.01
    )
    assert talk["total_us_per_step"] == pytest.approx(
        talk["exposed_us_per_step"] + talk["overlapped_us_per_step"]
    )


@pytest.mark.parametrize("name", NAMES)
def test_what_holds_of_every_trace(name):
    trace = load(path(name))
    rank, found = trace.ranks[0], analyse(trace)
    parts, _ = breakdown(rank.steps, rank.activity.layers)
    assert parts.sum(axis=0).tolist() == (rank.steps.end - rank.steps.start).tolist()
    if found.has_accelerator:
        idle = rank.steps.total - rank.steps.length(rank.activity.device)
        assert round(sum(row.total_us for row in found.idle) * 1000) == idle
    assert sum(row.calls for row in found.operators) == len(rank.links.ops.rows)
    assert lanes(trace, 0).lanes
    assert set(json.loads(found.to_json(diagnose(found)))) >= {"schema", "health", "diagnosis"}


@pytest.mark.parametrize("name", NAMES)
def test_pieces_of_any_size_give_the_same_columns(name, monkeypatch):
    expected = load(path(name)).ranks[0].columns
    for size in (997, 1 << 40):
        monkeypatch.setattr(reader, "PIECE", size)
        columns = load(path(name)).ranks[0].columns
        for field in dataclasses.fields(columns):
            a, b = getattr(columns, field.name), getattr(expected, field.name)
            assert (
                np.array_equal(a, b, equal_nan=a.dtype.kind == "f") if isinstance(a, np.ndarray) else a == b
            ), field.name


def test_the_traces_without_a_device_steps_or_nvidia():
    cpu, rocm, driver = (
        analyse(path(n)) for n in ("cpu-only-one-step", "minitoy-mi250-rocm", "triton-launch-a100")
    )
    assert (cpu.device["kind"], cpu.mean_us["kernel"], cpu.gpu_utilization) == ("cpu", None, None)
    assert (rocm.device["kind"], rocm.est_sm_efficiency, rocm.est_achieved_occupancy) == ("rocm", None, None)
    assert [step.name for step in rocm.steps] == ["ProfilerStep#1", "ProfilerStep#2"]
    assert rocm.transfers[0].bytes == 5120
    (kernel,) = driver.kernels
    assert kernel.name == kernel.operator == "triton_poi_fused_add_cos_sin_0", "launched by the driver API"
    assert [b.code for b in analyse(path("no-steps-a100")).health] == ["no_steps"]


def test_the_data_bound_trace_is_found_to_be_so():
    findings = diagnose(analyse(path("resnet50-v100-workers0")))
    assert findings[0].bottleneck == "data-bound"
    assert findings[0].gain_at_most == pytest.approx(1.5, rel=0.01)
    assert findings[0].try_next[0] == "workers"
