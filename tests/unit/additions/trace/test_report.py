"""What is shown of a trace: findings, tables, figures, the timeline."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from perfkit.additions.trace import timeline
from perfkit.additions.trace.analysis import analyse
from perfkit.additions.trace.formats import TraceError
from perfkit.additions.trace.profile import Profile
from perfkit.additions.trace.table import Trace
from perfkit.additions.trace.timeline import Lane, Lanes, interactive, lanes
from perfkit.show import document, html, terminal
from perfkit.show.style import Figure
from tests.unit.additions.trace.recording import AUTOGRAD, LOADER, MAIN, Recording, bars, step

RECORDED = Path(__file__).parents[4] / "data" / "recordings" / "traces"
ABOUT = {"duration": 2, "step": 0, "steps": ([0], [2], ["<step>"])}


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
    assert (window.steps, window.duration) == (([0], [100_000], ["step 1"]), 100_000)
    main, place = {bar.name: bar for bar in bars(window, 0)}, "/home/me/loop.py:44"
    assert main["aten::mm"] == ("aten::mm", "cpu_op", place, 0, 5_000, 30_000, 0, 1)
    assert main["aten::inner"].depth == 1
    (kernel,) = bars(window, 2)
    assert (kernel.part, kernel.place) == ("communication", place)
    with pytest.raises(TraceError):
        lanes(loaded, 5)


def test_a_timeline_of_many_events_has_few_bars_and_all_of_the_time(tmp_path):
    recording = Recording()
    for at in range(0, 4000, 1000):
        recording.step(at, at, 1000).op("long", at, 600)
        for inner in range(at, at + 500, 10):
            recording.op(f"short{inner % 7}", inner, 2 + inner % 7)
            recording.launch("k", inner + 1, (inner + 5, 4), cost=1)
    loaded = recording.load(tmp_path)
    complete, window, shown = lanes(loaded, 2), lanes(loaded, 2, most=400), 0
    for at in range(len(window.lanes)):
        few, every = bars(window, at), bars(complete, at)
        shown += len(few)
        assert sum(bar.events for bar in few) == len(every)
        assert sum(bar.busy or bar.duration for bar in few) == sum(bar.duration for bar in every)
        assert all(a.depth < b.depth or a.start + a.duration <= b.start for a, b in pairwise(few))
        seen = [[bar for bar in some if 2e6 <= bar.start < 3e6] for some in (few, every)]
        assert seen[0] == seen[1], "its step has all events"
    assert shown < 400
    assert [bar.events for bar in bars(window, 0) if bar.name == "long"] == [1] * 4


def test_names_from_outside_cannot_leave_the_timeline():
    evil = "</script><script>alert(1)</script>"
    page = html.page("x", [interactive(Lanes(lanes=[], texts=[evil], **ABOUT))])
    assert "alert(1)</script>" not in page and page.count("<script") == 2
    text = page.split('id="pk-timeline-data">')[1].split("</script>")[0]
    assert json.loads(text)["texts"] == [evil]


def test_the_page_of_a_full_timeline_stays_below_5_mb():
    texts = [f"aten::operator{at}" for at in range(900)]
    columns = [[value] * timeline.MOST for value in (10**11, 20_456, 15_789, 12, 555, 1, 777)]
    lane = Lane(label="main", kind="thread", rows=[columns])
    window = Lanes(lanes=[lane], texts=texts, **ABOUT)
    assert 2e6 < len(html.page("x", [interactive(window)])) < 5e6
