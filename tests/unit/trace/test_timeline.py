"""Lanes of one step."""

import pytest

from perfkit.errors import TraceError
from perfkit.trace import lanes
from tests.unit.trace.recording import AUTOGRAD, Recording


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


def test_bars_know_the_line_of_the_users_code_that_led_to_them(tmp_path):
    stack = "/x/site-packages/torch/a.py(3): f;/home/me/loop.py(44): <module>"
    made = Recording().step(1, 1000, 100).op("aten::mm", 1005, 30, **{"Call stack": stack})
    made.launch("kernel", 1012, (1050, 9)).op("aten::add", 1060, 5)
    bars = {bar.name: bar.place for lane in lanes(made.load(tmp_path)).lanes for bar in lane.bars}
    line = "/home/me/loop.py:44"
    assert (bars["aten::mm"], bars["kernel"], bars["cudaLaunchKernel"]) == (line, line, line)
    assert bars["aten::add"] == ""
