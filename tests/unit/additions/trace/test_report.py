"""What is shown of a trace: findings, tables, figures, the timeline."""

import json
from pathlib import Path

import pytest

from perfkit.additions.trace import timeline
from perfkit.additions.trace.analysis import analyse
from perfkit.additions.trace.formats import TraceError
from perfkit.additions.trace.profile import Profile
from perfkit.additions.trace.table import Trace
from perfkit.additions.trace.timeline import Lane, TimelineLanes, interactive, lanes
from perfkit.show import document, html, terminal
from perfkit.show.style import Figure
from tests.unit.additions.trace.recording import AUTOGRAD, LOADER, MAIN, Recording, bars, step

RECORDED = Path(__file__).parents[4] / "data" / "recordings" / "traces"
ABOUT = {"start": 0, "end": 2, "left_out": 0, "step": 0, "steps": ([0], [2], ["<step>"])}


def test_the_pages_of_a_cpu_and_of_a_simulated_gpu(golden):
    pages = []
    for name in ("photos-baseline", "sim-v100-data_loading"):
        loaded = Trace(RECORDED / f"{name}.pt.trace.json.gz")
        pages.append(Profile(loaded, analyse(loaded)).sections())
    golden("report", "\n".join(map(terminal.text, pages)))
    cpu, gpu = pages
    (axes,) = document.find(cpu, Figure, "breakdown").draw().axes
    assert len(axes.patches) == 3 * 4, "three steps and the mean: loader, operators, other"
    assert document.find(gpu, Figure, "breakdown").title == "Simulated: Where the time goes"
    assert "simulated GPU 0 stream 7" in html.page("x", gpu)


def launches(*kernels, **head):
    recording = step(**head)
    for name, at, run in kernels:
        cat = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        recording.launch(name, at, run, cat=cat, cost=0.5)
    return recording


def copy(host):
    return launches((f"Memcpy HtoD ({host} -> Device)", 0, (2, 40)), ("k", 41, (42, 58)))


A100 = {"deviceProperties": [{"id": 0, "name": "A100", "computeMajor": 8, "computeMinor": 0, "numSms": 108}]}
SLOW = launches(*(("k", at + 4, (at + 7, 1)) for at in range(0, 100, 10)))
WAITS = launches(("k", 0, (2, 40)), ("k", 62, (63, 35))).add("cuda_runtime", "cudaStreamSynchronize", 42, 20)
TALK = (
    step().op("MmBackward0", 0, 1).launch("gemm", 0, (2, 50)).launch("ncclDevKernel", 1, (40, 58), stream=9)
)
FINE = launches(*(("gemm_mystery", at / 10, (at + 2, 7.5)) for at in range(0, 100, 10)))
LOST = step().add("cuda_runtime", "cudaLaunchKernel", 50, 2, correlation=99)


@pytest.mark.parametrize(
    ("recording", "bottleneck", "exposed", "first"),
    [
        (step().op(LOADER, 0, 50).launch("k", 50, (52, 46)), "data-bound", 50, "workers"),
        (SLOW, "host-bound", 63, "compile"),
        (copy("Pageable"), "copy-bound", 40, "pin_memory"),
        (copy("Pinned"), "copy-bound", 40, "non_blocking"),
        (WAITS, "sync-bound", 20, None),
        (TALK, "communication-bound", 46, "accumulation"),
        (launches(("implicit_convolve_sgemm", 0, (2, 95))), "device-bound", 95, "channels_last"),
        (launches(("ampere_sgemm", 0, (2, 95)), **A100), "device-bound", 95, "amp"),
        (step().op("aten::mm", 2, 96), "device-bound", 96, "cpu_threads"),
        (step().op("aten::mm", 2, 50), "host-bound", 50, "compile"),
        (step().op("MmBackward0", 2, 50), "host-bound", 50, "batch_size"),
        (FINE, "late-start", 24, None),
        (LOST, None, 0, None),
    ],
)  # fmt: skip
def test_findings_have_their_time_a_bound_and_a_switch(tmp_path, recording, bottleneck, exposed, first):
    findings = {finding.bottleneck: finding for finding in recording.analyse(tmp_path).diagnosis}
    if bottleneck is None:
        assert findings == {}
        return
    finding = findings[bottleneck]
    assert finding.exposed_us == pytest.approx(exposed)
    is_bounded = exposed < 95 and bottleneck != "late-start"
    assert finding.gain_at_most == (pytest.approx(100 / (100 - exposed)) if is_bounded else None)
    assert next(iter(finding.try_next), None) == first


def test_lanes_have_threads_streams_and_copies_and_lines_of_code(tmp_path):
    recording = Recording().step(1, 1000, 100).op("aten::mm", 1005, 30)
    recording.add("python_function", "/home/me/loop.py(44): <module>", 1004, 90)
    recording.op("aten::inner", 1010, 5).op("evaluate_function: MmBackward0", 1040, 20, tid=AUTOGRAD)
    recording.launch("ncclKernel", 1016, (1050, 9)).launch("Memcpy HtoD", 1001, (1002, 3), cat="gpu_memcpy")
    for thread, name in ((MAIN, "thread 100 (main)"), (AUTOGRAD, "autograd")):
        about = {"ph": "M", "name": "thread_name", "pid": 7, "tid": thread, "args": {"name": name}}
        recording.events.insert(0, about)
    loaded = recording.load(tmp_path)
    window = lanes(loaded)
    assert [lane.label for lane in window.lanes[:2]] == ["thread 100 (main)", "autograd"]
    assert [lane.kind for lane in window.lanes] == ["thread", "thread", "stream", "copies"]
    assert (window.steps, window.end, window.left_out) == (([0], [100_000], ["step 1"]), 100_000, 0)
    main, place = {bar.name: bar for bar in bars(window, 0)}, "/home/me/loop.py:44"
    assert main["aten::mm"] == ("aten::mm", "cpu_op", place, 0, 5_000, 30_000)
    assert main["aten::inner"].depth == 1
    (kernel,) = bars(window, 2)
    assert (kernel.part, kernel.place) == ("communication", place)
    with pytest.raises(TraceError):
        lanes(loaded, 5)


def test_of_a_long_recording_the_timeline_has_what_is_near_the_step(tmp_path):
    recording = Recording()
    for at in range(0, 6000, 1000):
        recording.step(at, at, 1000).op("long", at, 600)
        for inner in range(at, at + 500, 10):
            recording.op("short", inner, 2).launch("k", inner + 1, (inner + 5, 4), cost=1)
    loaded = recording.load(tmp_path)
    every, near, few = lanes(loaded, 2), lanes(loaded, 2, most=200), lanes(loaded, 2, most=60)
    assert (every.start, every.end, every.left_out, every.steps[2][2]) == (0, 6_000_000, 0, "step 2000")
    assert (near.left_out, few.left_out) == (6 * 151 - 200, 6 * 151 - 60)
    assert (near.step, near.steps) == (0, ([2_000_000], [1_000_000], ["step 2000"]))
    assert near.start < 2_000_000 and near.end > 3_000_000
    for at in range(len(near.lanes)):
        shown, all_of_them = bars(near, at), bars(every, at)
        assert {*shown} <= {*all_of_them}
        assert {bar for bar in all_of_them if 2e6 <= bar.start < 3e6} <= {*shown}, "its step has all events"
    assert len(bars(few, 1)) == 50 and (few.start, few.end) == (2_000_000, 3_000_000), (
        "the device comes first"
    )
    assert "long" in {bar.name for bar in bars(few, 0)}


def test_names_from_outside_cannot_leave_the_timeline():
    evil = "</script><script>alert(1)</script>"
    page = html.page("x", [interactive(TimelineLanes(lanes=[], texts=[evil], **ABOUT))])
    assert "alert(1)</script>" not in page and page.count("<script") == 2
    text = page.split('id="pk-timeline-data">')[1].split("</script>")[0]
    assert json.loads(text)["texts"] == [evil]


def test_the_page_of_a_full_timeline_stays_below_4_mb():
    texts = [f"aten::operator{at}" for at in range(900)]
    columns = [[value] * timeline.MOST for value in (10**11, 20_456, 555, 1, 777)]
    lane = Lane(label="main", kind="thread", rows=[columns])
    window = TimelineLanes(lanes=[lane], texts=texts, **ABOUT)
    assert 1e6 < len(html.page("x", [interactive(window)])) < 4e6
