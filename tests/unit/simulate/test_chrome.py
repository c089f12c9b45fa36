"""A simulated step, written by hand, read back as a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfkit import trace
from perfkit.simulate import chrome
from perfkit.simulate.gpus import GPUS
from perfkit.simulate.queue import HostCosts, Link, Queue, VirtualClock, actions
from perfkit.simulate.step import Allocate, Copy, Event, Fetch, Kernel, Operator, Step, Tensor, Wait

X = Tensor((8, 4), "float16")
FACTS = {"label": "a test"}
US = 1e-6


def operator(name: str, phase: Any, **more: Any) -> Operator:
    return Operator(name, phase, [X], [X], site="/home/me/train.py:12", module="layer1", **more)


EVENTS: list[Event] = [
    Fetch(),
    Copy(12_000, pinned=False, site="/home/me/train.py:10"),
    operator("aten.convolution", "forward"),
    Allocate(1024, "activations", 1),
    operator("aten.relu", "forward"),
    operator("aten.convolution_backward", "backward"),
    Allocate(512, "gradients", 2),
    Allocate(-1024, "activations", 1),
    operator("aten._foreach_add_", "optimizer"),
    Allocate(-512, "gradients", 2),
    Wait(".item()", site="/home/me/train.py:20"),
]
KERNELS = [
    Kernel("implicit gemm", "conv", 100 * US, 2, flops=1e9, tensor_cores=True),
    Kernel("relu", "pointwise", 10 * US, 4),
    Kernel("dgrad", "conv", 100 * US, 5, tensor_cores=True),
    Kernel("wgrad", "conv", 50 * US, 5, tensor_cores=True),
    Kernel("foreach add", "optimizer", 20 * US, 8),
]
COSTS = HostCosts(operator_s=5 * US, launch_s=3 * US)


def written(folder: Path, events: list[Event] = EVENTS, steps: int = 3, **more: Any) -> trace.Analysis:
    """Steps whose loader takes 40 µs, on a link of 12 GB/s (pinned) and 2 (pageable)."""
    step = Step(events=events, resident=[Allocate(4096, "parameters", 0)], samples=8, torch="2.15.0", **more)
    queue = Queue(VirtualClock(), Link(12e9, 2e9))
    queue.bars = []
    for _ in range(steps):
        for action in actions(step, KERNELS, COSTS):
            if isinstance(action, Fetch):
                start = queue.clock.now()
                queue.clock.wait_until(start + 40 * US)
                queue.note("fetch", start)
            else:
                queue.issue(action)
    path = folder / "simulated.pt.trace.json.gz"
    chrome.write(path, step, KERNELS, GPUS["v100"], queue.bars, FACTS, "_MultiProcessingDataLoaderIter")
    return trace.analyse(path)


def test_steps_and_their_parts_are_those_of_the_queue(tmp_path: Path) -> None:
    found = written(tmp_path)
    assert [step.name for step in found.steps] == [f"ProfilerStep#{number}" for number in range(3)]
    # Fetch 40, pageable copy 6 (nothing is in the way), 8 until the first kernel starts, 280 µs of kernels.
    assert [step.duration_us for step in found.steps] == pytest.approx([334.0] * 3, abs=0.01)
    parts = found.mean_us
    assert parts["kernel"] == pytest.approx(280.0, abs=0.01)
    assert parts["memcpy"] == pytest.approx(6.0, abs=0.01)
    assert parts["dataloader"] == pytest.approx(40.0, abs=0.01)
    assert sum(value or 0.0 for value in parts.values()) == pytest.approx(334.0, abs=0.1)
    assert found.gpu_utilization == pytest.approx(280 / 334, rel=1e-3)


def test_it_says_that_it_is_simulated(tmp_path: Path) -> None:
    found = written(tmp_path)
    assert found.device["name"] == "simulated Tesla V100-SXM2-16GB"
    assert found.device["simulated"] == {"gpu": "Tesla V100-SXM2-16GB", **FACTS}
    assert all(kernel.name.startswith("simulated ") for kernel in found.kernels)
    assert [banner.code for banner in found.health] == ["simulated"]


def test_kernels_have_class_source_operator_and_line(tmp_path: Path) -> None:
    found = {kernel.name: kernel for kernel in written(tmp_path).kernels}
    gradient = found["simulated conv: dgrad (Tensor Cores)"]
    assert (gradient.calls, gradient.tensor_core) == (3, "yes")
    assert (gradient.operator, gradient.frame) == ("aten::convolution_backward", "/home/me/train.py:12")
    assert found["simulated pointwise: relu"].tensor_core == "no"
    assert gradient.occupancy is None and gradient.blocks_per_sm is None


def test_copies_waits_and_memory_are_read(tmp_path: Path) -> None:
    found = written(tmp_path)
    (copy,) = found.transfers
    assert (copy.direction, copy.host_memory, copy.bytes, copy.calls) == ("HtoD", "pageable", 36_000, 3)
    assert copy.gb_per_s == pytest.approx(2.0, rel=1e-3)
    assert copy.frame == "/home/me/train.py:10"
    waits = {sync.call: sync for sync in found.syncs}
    assert waits["aten::item"].calls_per_step == 1
    assert waits["cudaStreamSynchronize"].frame == "/home/me/train.py:20"
    (device,) = found.memory["devices"]
    assert (device["device"], device["peak_allocated_bytes"]) == ("cuda:0", 4096 + 1024 + 512)
    assert {owner["operator"] for owner in device["owners_at_peak"]} == {
        "aten::convolution", "aten::convolution_backward",
    }  # fmt: skip


def test_what_stands_out_is_diagnosed_as_in_a_real_trace(tmp_path: Path) -> None:
    kinds = {finding.bottleneck for finding in trace.diagnose(written(tmp_path))}
    assert {"data-bound", "device-bound"} <= kinds


def test_a_graph_is_one_launch(tmp_path: Path) -> None:
    found = written(tmp_path, graph=True)
    assert found.mean_us["kernel"] == pytest.approx(280.0, abs=0.01)
    graphs = [row for row in found.operators if row.name == "cudaGraph"]
    assert sum(row.calls for row in graphs) == 3
    assert found.device["launch"]["kernels"] == 15


def test_a_copy_on_a_second_stream_overlaps(tmp_path: Path) -> None:
    copy = Copy(600_000, pinned=True, non_blocking=True, stream=1)
    found = written(tmp_path, [EVENTS[0], copy, *EVENTS[2:-1], Wait("stream", (0, 1))])
    (row,) = found.transfers
    assert row.us_per_step == pytest.approx(50.0, abs=0.1)
    # Only in the first of three steps are there no kernels to hide it, for the 8 µs until one starts.
    assert found.mean_us["memcpy"] == pytest.approx(8 / 3, abs=0.01)
    assert row.host_memory == "pinned"


def test_the_timeline_has_rows_for_threads_streams_and_copies(tmp_path: Path) -> None:
    written(tmp_path)
    window = trace.lanes(trace.load(tmp_path / "simulated.pt.trace.json.gz"), 1)
    labels = [(lane.kind, lane.label) for lane in window.lanes]
    assert ("thread", "simulated main thread") in labels
    assert {kind for kind, _ in labels} == {"thread", "stream", "copies"}
    assert all("simulated" in label for _, label in labels)
    assert [bar.name for bar in window.phases] == ["forward", "backward", "optimizer"]
