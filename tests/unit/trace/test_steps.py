"""Where the time of a step goes."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from perfkit.trace import analyse
from perfkit.trace.idle import idle as idle_rows
from perfkit.trace.intervals import merge
from perfkit.trace.steps import PARTS, breakdown
from tests.unit.trace.recording import AUTOGRAD, Recording

NS = st.integers(0, 400_000).map(lambda ns: ns / 1000)


LAUNCHES = st.sampled_from(
    [
        ("cuda_runtime", "cudaLaunchKernel"),
        ("cuda_driver", "cuLaunchKernel"),
        ("cuda_runtime", "hipLaunchKernel"),
    ]
)


@st.composite
def recordings(draw):
    made = Recording()
    at = draw(NS)
    for number in range(draw(st.integers(0, 4))):
        length = draw(NS)
        made.step(number, at, length)
        at = round(at + length + draw(st.sampled_from([0, 0, 1.5, 40])), 3)  # touching, or apart
    for kind, tid in draw(
        st.lists(
            st.tuples(st.sampled_from(["cpu_op", "user_annotation"]), st.sampled_from([100, AUTOGRAD])),
            max_size=6,
        )
    ):
        name = draw(
            st.sampled_from(["aten::mm", "enumerate(DataLoader)#x.__next__", "nccl:all_reduce", "mine"])
        )
        made.add(kind, name, draw(NS), draw(NS), tid)
    for _ in range(draw(st.integers(0, 8))):
        cat, name = draw(
            st.sampled_from(
                [
                    ("kernel", "k"),
                    ("kernel", "ncclDevKernel"),
                    ("gpu_memcpy", "Memcpy HtoD"),
                    ("gpu_memset", "Memset"),
                ]
            )
        )
        made.launch(name, draw(NS), (draw(NS), draw(NS)), draw(LAUNCHES), cat, stream=draw(st.integers(7, 9)))
    if draw(st.booleans()):
        made.add("kernel", "busy all the time", 0, 2000, 7, 0, correlation=0)
    for _ in range(draw(st.integers(0, 2))):
        made.add("gpu_user_annotation", "ProfilerStep#0", draw(NS), draw(NS), 7, 0)
    return made.add("cpu_op", "last", 1, 1)


@settings(max_examples=300, deadline=None)
@given(recordings())
def test_parts_sum_to_the_step_and_idle_classes_to_the_idle_time(made):
    with tempfile.TemporaryDirectory() as folder:
        trace = made.load(Path(folder))
    rank = trace.ranks[0]
    parts, _ = breakdown(rank.steps, rank.activity.layers)
    lengths = rank.steps.end - rank.steps.start
    assert (parts >= 0).all()
    assert parts.sum(axis=0).tolist() == lengths.tolist()
    assert merge(rank.steps.start, rank.steps.end).total == rank.steps.total, "steps are disjoint"
    marks = {event["name"] for event in made.events if event["cat"] == "user_annotation"}
    assert {name for name in rank.steps.names if name != "whole trace"} <= marks, (
        "no step from the GPU's side"
    )
    found = analyse(trace)
    if found.has_accelerator:
        idle = rank.steps.total - rank.steps.length(rank.activity.device)
        assert round(sum(row.total_us for row in idle_rows(trace.ranks, 1)) * 1000) == idle
        assert 0 <= (found.gpu_utilization or 0) <= 1
        assert found.communication is None or (found.communication["exposed_us_per_step"] or 0) >= 0
    for row in found.operators:
        assert row.host_self_us <= row.host_total_us
    found.to_json()


def test_a_step_lasts_until_the_device_work_launched_in_it_is_done(tmp_path):
    made = (
        Recording().step(1, 0, 100).step(2, 100, 100).launch("k", 90, (150, 30)).launch("k", 150, (190, 20))
    )
    found = analyse(made.load(tmp_path))
    assert [(step.start_us, step.duration_us) for step in found.steps] == [(0, 180), (180, 30)]
    assert found.steps[0].breakdown_us["kernel"] == 30
    assert found.gpu_utilization == 50 / 210


def test_each_moment_goes_to_the_first_part_that_claims_it(tmp_path):
    made = Recording().step(1, 0, 100).op("aten::mm", 0, 60).op("enumerate(DataLoader)#_S.__next__", 50, 40)
    made.launch("gemm", 10, (20, 20)).launch("Memcpy HtoD (Pinned -> Device)", 30, (35, 10), cat="gpu_memcpy")
    found = analyse(made.load(tmp_path)).mean_us
    expected = {
        "kernel": 20,
        "memcpy": 5,
        "memset": 0,
        "communication": 0,
        "runtime": 2,
        "dataloader": 40,
        "cpu_op": 23,
        "other": 10,
    }
    assert found == expected
    assert tuple(found) == PARTS


def test_hidden_loading_is_not_exposed_but_is_there(tmp_path):
    made = Recording().step(1, 0, 100).op("enumerate(DataLoader)#_S.__next__", 10, 50).launch("k", 0, (5, 90))
    found = analyse(made.load(tmp_path))
    assert found.mean_us["dataloader"] == 0
    assert found.exposed_and_hidden_us["dataloader"] == 50


def test_without_steps_the_whole_trace_is_one_and_a_banner_says_so(tmp_path):
    found = analyse(Recording().op("aten::mm", 2, 8).load(tmp_path))
    assert [(step.name, step.duration_us) for step in found.steps] == [("whole trace", 8)]
    assert [banner.code for banner in found.health] == ["no_steps"]
