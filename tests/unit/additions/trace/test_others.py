"""Traces of others: what a step is, what is said, and what is not, each with its right value."""

import gzip
import io
import json
import tarfile
import threading
import zipfile

import pytest

from perfkit.additions.trace import formats, profile, ranks, reader
from perfkit.additions.trace.analysis import analyse
from perfkit.additions.trace.formats import TraceError
from perfkit.additions.trace.profile import lateness, summary
from perfkit.additions.trace.table import Trace
from perfkit.errors import InvalidValue
from perfkit.show import terminal
from tests.unit.additions.trace.recording import LOADER, Recording, step

GPU = {"deviceProperties": [{"id": 0, "name": "NVIDIA A100", "computeMajor": 8, "computeMinor": 0}]}
NO_GPU = {"deviceProperties": []}


def read(path):
    return ranks.read(path, lambda what, share: None)


def codes(analysis):
    return [problem.code for problem in analysis.health]


def found(analysis):
    return {row.bottleneck: row for row in analysis.diagnosis}


def idle(analysis):
    return {row.cause: row.total_us for row in analysis.idle}


# ---------------------------------------------------------------- 1: what is the host's


def test_a_gap_is_the_hosts_until_the_launch_that_ends_it(tmp_path):
    trace = Recording(**GPU).op("aten::mm", 0, 100).launch("gemm", 10, (8000, 2000), cost=20)
    analysis = trace.analyse(tmp_path)
    assert idle(analysis) == {"launch": 30, "queued": 7970}
    assert list(found(analysis)) == ["late-start"]
    assert found(analysis)["late-start"].try_next == []


def test_calls_that_are_slow_once_are_named_and_no_part_of_what_steps_could_gain(tmp_path):
    trace = Recording(**GPU).op("aten::embedding", 0, 420_000).op("aten::mm", 420_100, 100)
    trace.launch("emb", 100, (420_000, 100), cost=419_000)
    analysis = trace.launch("ampere_sgemm", 420_110, (420_200, 500_000), cost=10).analyse(tmp_path)
    assert idle(analysis)["first_calls"] == 419_000
    rows = found(analysis)
    assert list(rows) == ["device-bound", "first-calls"]
    assert rows["first-calls"].gain_at_most is None
    assert rows["device-bound"].share_of_step == pytest.approx(500_100 / 501_200)
    assert rows["device-bound"].try_next == ["amp", "fp32_precision", "compile"], (
        "neither optimizer nor batch"
    )


def test_a_long_launch_of_a_kernel_that_ran_before_is_no_first_call(tmp_path):
    trace = Recording(**GPU).op("aten::mm", 0, 9000).launch("gemm", 0, (5, 1000))
    analysis = trace.launch("gemm", 2000, (8000, 1000), cost=5990).analyse(tmp_path)
    assert idle(analysis) == {"launch": 6987, "queued": 13}


def test_without_host_events_the_cause_is_unknown(tmp_path):
    trace = Recording(**GPU).add("kernel", "a", 0, 10, 7, 0).add("kernel", "b", 90, 10, 7, 0)
    analysis = trace.analyse(tmp_path)
    assert idle(analysis) == {"unknown": 80}
    assert codes(analysis) == ["no_steps", "no_host_events"]
    assert "record CPU activities too" in analysis.health[1].message
    assert "for an unknown reason" in found(analysis)["unknown"].message
    assert "host-bound" not in found(analysis)


@pytest.mark.parametrize(
    ("name", "call", "tried"),
    [
        ("aten::mm", "cudaLaunchKernel", ["compile"]),
        ("aten::mm", "cudaGraphLaunch", []),
        ("Torch-Compiled Region: 0/0", "cudaLaunchKernel", []),
        ("MmBackward0", "cudaLaunchKernel", ["compile", "batch_size"]),
        ("Optimizer.step#Adam.step", "cudaLaunchKernel", ["compile", "batch_size", "optimizer_impl"]),
    ],
)
def test_only_what_can_act_is_advised(tmp_path, name, call, tried):
    trace = step(**GPU).op(name, 0, 90).launch("a", 0, (2, 1), call).launch("a", 90, (93, 1), call)
    assert found(trace.analyse(tmp_path))["host-bound"].try_next == tried


# ---------------------------------------------------------------- 2: nothing


def test_nothing_recorded_is_said_and_not_diagnosed(tmp_path):
    trace = Recording(**GPU).add("Trace", "PyTorch Profiler (0)", 0, 5e6, "PyTorch Profiler")
    trace.add("cuda_runtime", "cudaGetDeviceCount", 4e6, 1000)
    analysis = trace.add("cuda_runtime", "cudaDeviceSynchronize", 4.1e6, 180_000).analyse(tmp_path)
    assert (analysis.diagnosis, analysis.device["kind"]) == ([], "unknown")
    assert codes(analysis)[-1] == "nothing_recorded"
    assert analysis.health[-1].message.startswith("5.00 s were recorded, but no operator and no kernel")
    assert analysis.mean_us["runtime"] == 181_000
    assert sum(time or 0 for time in analysis.mean_us.values()) == analysis.mean_step_us == 5e6
    assert summary(analysis) == "This recording is empty: 5.00 s without an operator or a kernel."


@pytest.mark.parametrize(
    ("head", "name", "code", "kind"),
    [
        (GPU, "aten::mm", "no_kernels", "unknown"),
        (GPU, "aten::mkldnn_convolution", "on_cpu_beside_gpu", "cpu"),
        (GPU, "aten::cudnn_convolution", "operators_on_gpu", "unknown"),
        ({}, "aten::record_stream", "operators_on_gpu", "unknown"),
        (NO_GPU, "aten::mm", "perhaps_mps", "unknown"),
        (NO_GPU, "aten::_mps_convolution", "on_mps", "unknown"),
        (NO_GPU, "aten::mkldnn_convolution", None, "cpu"),
        ({}, "aten::mm", None, "cpu"),
    ],
)
def test_without_kernels_it_is_said_why_and_the_cpu_is_blamed_only_where_it_is_seen(
    tmp_path, head, name, code, kind
):
    analysis = step(**head).op(name, 1, 98).analyse(tmp_path)
    assert (codes(analysis), analysis.device["kind"]) == ([code] if code else [], kind)
    assert list(found(analysis)) == (["device-bound"] if kind == "cpu" else [])
    assert sum(time or 0 for time in analysis.mean_us.values()) == 100


def test_nccl_runs_on_a_gpu_even_if_nothing_of_it_was_recorded(tmp_path):
    trace = step().op("aten::mm", 1, 49).add("user_annotation", "nccl:all_to_all", 50, 48)
    analysis = trace.analyse(tmp_path)
    assert (codes(analysis), analysis.device["kind"]) == (["operators_on_gpu"], "unknown")
    assert summary(analysis).startswith(
        "Forward passes without a backward pass, such as inference, on an unknown"
    )


def test_a_trace_of_perfkit_says_where_its_operators_ran(tmp_path):
    trace = step(**NO_GPU, trainedOn="cpu").op("aten::mm", 1, 98)
    assert list(found(trace.analyse(tmp_path))) == ["device-bound"]


# ---------------------------------------------------------------- 3: steps


def test_a_step_begins_when_earlier_device_work_is_done(tmp_path):
    trace = Recording(**GPU)
    for at in range(3):
        trace.step(at, at * 10_000, 10_000)
        trace.add("kernel", "of before", at * 10_000, 10_000, 7, 0, correlation=100 + at)
        trace.launch("mine", at * 10_000 + 5, (30_000 + at * 10_000, 10_000))
    analysis = trace.analyse(tmp_path)
    assert [each.duration_us for each in analysis.steps] == [10_000] * 3
    assert codes(analysis) == ["device_behind"]
    assert "30.0 ms behind" in analysis.health[0].message


def loop(updates=6, loads=6, start=50_000):
    """A loader and an optimizer, 1 ms a step: 0.4 ms of waiting, 0.3 ms of an update."""
    trace = Recording().op("aten::randn", 0, start).op("aten::mm", start + 6000, 9000)
    for at in range(start, start + 1000 * loads, 1000):
        trace.op(LOADER, at, 30_000 if at == 0 else 400)
    for at in range(start, start + 1000 * updates, 1000):
        trace.add("user_annotation", "Optimizer.step#SGD.step", at + 700, 300)
    return trace


def test_unmarked_steps_are_inferred_without_start_up_and_tail(tmp_path):
    analysis = loop().analyse(tmp_path)
    assert analysis.steps_are == "inferred"
    assert [(each.start_us, each.duration_us) for each in analysis.steps] == [
        (51_000 + 1000 * at, 1000) for at in range(5)
    ]
    assert analysis.mean_us["dataloader"] == 400
    assert found(analysis)["data-bound"].share_of_step == 0.4
    (problem,) = analysis.health
    assert (problem.code, "Optimizer.step" in problem.message) == ("inferred_steps", True)
    assert "51.0 ms" in problem.message and "9.00 ms" in problem.message


@pytest.mark.parametrize(
    ("updates", "loads", "steps"), [(0, 6, 4), (3, 6, 2), (12, 6, 4), (0, 3, 0), (2, 0, 0)]
)
def test_the_rarer_mark_is_the_step(tmp_path, updates, loads, steps):
    analysis = loop(updates, loads).analyse(tmp_path)
    assert analysis.steps_are == ("inferred" if steps else "whole recording")
    assert len(analysis.steps) == (steps or 1)


# ---------------------------------------------------------------- 4: ranks


def rank(number, own, waits, world=2):
    """Two steps; in each a rank computes for `own` µs, then its collective waits and transfers for 10 µs."""
    about = {"backend": "nccl", "rank": number, "world_size": world}
    trace = Recording(distributedInfo=about, **GPU)
    for at in (0, 200):
        trace.step(at, at, 200).op("MmBackward0", at, 5).launch("gemm", at, (at + 5, own))
        trace.launch("ncclDevKernel_AllReduce", at + 6, (at + 5 + own, waits + 10), stream=9)
    return trace


def several(folder, form):
    """Three ranks, of which 2 is late; as a folder, or in an archive."""
    texts = {
        f"job_rank{n}.pt.trace.json.gz": rank(n, own, 100 - own, 3) for n, own in enumerate((40, 50, 100))
    }
    if form == "folder":
        (folder / "ranks").mkdir()
        for name, trace in texts.items():
            trace.save(folder / "ranks", name)
        return folder / "ranks"
    path = folder / f"ranks.{form}"
    if form == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, trace in texts.items():
                archive.writestr(f"deep/{name}", gzip.compress(trace.text()))
        return path
    with tarfile.open(path, "w:gz" if form.endswith("gz") else "w") as archive:
        for name, trace in texts.items():
            data = gzip.compress(trace.text())
            about = tarfile.TarInfo(f"./{name}")
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
    return path


@pytest.mark.parametrize("form", ["folder", "tar", "tar.gz", "zip"])
def test_ranks_open_as_one_and_the_late_one_is_found(tmp_path, form):
    view = profile.Profile(read(several(tmp_path, form)))
    analysis = view.analysis
    figures = [(row.rank, row.computing_us, row.communication_us, row.waiting_us) for row in analysis.ranks]
    assert figures == [(0, 40, 70, 60), (1, 50, 60, 50), (2, 100, 10, 0)]
    assert (analysis.late_rank, analysis.device["ranks"], len(analysis.files)) == (2, [2, 0, 1], 3)
    assert lateness(analysis).startswith(
        "Rank 2 is late: in collectives, it waits 0 µs of a step, and the others 50"
    )
    assert "on 3 ranks" in summary(analysis) and " On rank 2, kernels run 55%" in summary(analysis)
    text = terminal.text(view.sections())
    assert "Rank 2 is late" in text and "waiting" in text


def test_ranks_that_are_no_ranks_of_one_run_are_refused(tmp_path):
    for name in ("a.json", "b.json"):
        step().op("aten::mm", 0, 9).save(tmp_path, name)
    with pytest.raises(TraceError, match="does not say its rank"):
        read(tmp_path)
    for name in ("a.json", "b.json"):
        rank(1, 40, 60).save(tmp_path, name)
    with pytest.raises(TraceError, match="rank 1"):
        read(tmp_path)
    (tmp_path / "b.json").unlink()
    assert read(tmp_path).ranks == [], "one trace in a folder"


def test_even_ranks_have_none_that_is_late(tmp_path):
    for number in (0, 1):
        rank(number, 50, 1).save(tmp_path, f"{number}.json")
    analysis = read(tmp_path)
    assert analysis.late_rank is None
    assert lateness(analysis).startswith("No rank is late")


def test_one_rank_says_that_collectives_wait(tmp_path):
    message = found(rank(0, 40, 60).analyse(tmp_path))["communication-bound"].message
    assert "NCCL time includes waiting for the slowest rank" in message


@pytest.mark.parametrize(
    "name",
    [
        "multimem_all_reduce_kernel<c10::BFloat16>", "void symm_mem::all_to_all_vdev", "ncclDevKernel_SendRecv",
        "two_shot_all_reduce_kernel", "void vllm::cross_device_reduce_1stage", "hcom_allGather_", "rcclKernel",
    ],
)  # fmt: skip
def test_collectives_by_name(tmp_path, name):
    trace = step().launch(name, 0, (10, 50)).launch("gemm", 1, (60, 10))
    analysis = trace.add("user_annotation", "nccl:all_reduce", 0, 90).analyse(tmp_path)
    assert (analysis.mean_us["communication"], analysis.mean_us["kernel"]) == (50, 10)
    assert analysis.communication["total_us_per_step"] == analysis.communication["exposed_us_per_step"] == 50


@pytest.mark.parametrize(
    "name", ["triton_poi_fused_all_reduce_0", "_scatter_gather_elementwise", "reduce_kernel"]
)
def test_what_only_sounds_like_a_collective(tmp_path, name):
    assert step().launch(name, 0, (10, 50)).analyse(tmp_path).mean_us["kernel"] == 50


# ---------------------------------------------------------------- 5: no traces

ZIP = io.BytesIO()
with zipfile.ZipFile(ZIP, "w") as saved:
    saved.writestr("archive/data.pkl", b"x")
TAR = io.BytesIO()
with tarfile.open(fileobj=TAR, mode="w") as tar:
    tar.addfile(tarfile.TarInfo("a.txt"))
XLA = b'{"displayTimeUnit":"ns","traceEvents":[{"ph":"M","name":"process_name","args":{"name":"/device:TPU:0"}}]}'
LEGACY = (
    b'[{"name": "aten::mm", "ph": "X", "ts": 1.0, "dur": 2.0, "tid": 1, "pid": "CPU functions", "args": {}}]'
)
NO_TRACES = {
    "a tar archive": TAR.getvalue(),
    "a zip archive": ZIP.getvalue(),
    "a gzip file in a gzip file": gzip.compress(gzip.compress(b"{}")),
    "a Python pickle": b"\x80\x04\x95\x00\x00",
    "SQLite": b"SQLite format 3\x00\x10\x00",
    "Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n",
    "UTF-16": '{"traceEvents": []}'.encode("utf-16"),
    "UTF-16 or": '{"traceEvents": []}'.encode("utf-16-le"),
    "is empty": b"",
    "speedscope": b'{"$schema": "https://www.speedscope.app/file-format-schema.json", "profiles": []}',
    "an execution trace": b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1, "ctrl_deps": 0}]}',
    "rocprof": b'{"rocprofiler-sdk-tool": [{"metadata": {}}]}',
    "XLA": XLA,
    "legacy": LEGACY,
    "a memory snapshot": b'{"segments": [], "device_traces": []}',
    "compressed": b"(\xb5/\xfd\x04",
    "a web page": b"<!DOCTYPE html><html>",
    "a picture": b"\x89PNG\r\n\x1a\n\x00",
    "TensorBoard": b"\x18\x00\x00\x00\x00\x00\x00\x00brain.Event:2",
    "a printed table": b"-------  -----\n   Name    Self CPU %      Self CPU\n",
    "flame graphs": b"train.py(1): main;aten::mm 1234\n",
    "a memory timeline": b"[[1, 2], [[0, 1], [1, 2]]]",
    "a JSON document in each line": b'{"ph": "X", "cat": "cpu_op"}\n{"ph": "X"}\n',
    "has no events": b'{"traceEvents": []}',
    "a browser": b'[{"cat": "devtools.timeline", "name": "RunTask", "ph": "X", "ts": 1, "dur": 2}]',
    "a notebook": b'{"cells": [{"cell_type": "code"}], "nbformat": 4}',
    "a different program": b'{"traceEvents": [{"ph": "X", "name": "x", "cat": "mine", "ts": 1, "dur": 2}]}',
    "JSON, but not": b'{"a": 1}',
    "text, but not": b"hello",
    "text, but not JSON": b'json.dump({"traceEvents": []}, file)  # see viztracer, "nodes": [',
    "binary data": b"\n\x00\x01\x02",
}


@pytest.mark.parametrize("name", NO_TRACES)
@pytest.mark.parametrize("packed", [False, True])
def test_what_is_no_trace_is_named_in_one_sentence(tmp_path, name, packed):
    path = tmp_path / "given"
    path.write_bytes(gzip.compress(NO_TRACES[name]) if packed else NO_TRACES[name])
    with pytest.raises(TraceError) as caught:
        read(path)
    assert isinstance(caught.value, InvalidValue), "exit code 2"
    assert caught.value.remedy
    expected = "a gzip file in a gzip file" if packed and "gzip" in name else name
    assert expected in caught.value.what


@pytest.mark.parametrize(
    ("name", "begin"),
    [("text, but not", b"a" + b"; 1" * 500_000), ("JSON, but not", b'{"a": [' + b'"nodes":[{"' * 100_000)],
)
def test_a_text_is_recognised_in_a_time_that_grows_no_faster_than_the_text(name, begin):
    """With the square of it, this would take hours; a file is recognised by its first 64 KiB, in seconds."""
    assert name in formats.refusal("given", begin).what


def test_a_long_name_of_a_call_is_no_launch_of_a_graph(tmp_path):
    """It was searched in a time that grows with the square of its length."""
    trace = step(**GPU).op("aten::mm", 0, 90).launch("gemm", 0, (2, 1), "Graph" * 400_000)
    assert "graphs" not in trace.analyse(tmp_path).shows
    trace = step(**GPU).op("aten::mm", 0, 90).launch("gemm", 0, (2, 1), "cudaGraphLaunch_ptsz")
    assert "graphs" in trace.analyse(tmp_path).shows


def test_an_archive_is_never_read_as_one_trace(tmp_path):
    with pytest.raises(TraceError, match="tar archive"):
        Trace(several(tmp_path, "tar.gz"))


def test_the_head_is_searched_once(tmp_path, monkeypatch):
    """Of 32 MiB without events, each byte is looked at once: counted, as time is no measure."""
    looked = []

    class Counting:
        def search(self, text, start=0):
            looked.append(len(text) - start)

    monkeypatch.setattr(reader, "_OPENING", Counting())
    (tmp_path / "a.json").write_bytes(b'{"a":[' + b"0," * (16 << 20) + b"0]}")
    with pytest.raises(TraceError):
        Trace(tmp_path / "a.json")
    assert sum(looked) < 33 << 20


# ---------------------------------------------------------------- 6: odd events


def test_events_without_a_time_or_far_from_all_others_are_left_out(tmp_path):
    trace = Recording(**GPU).launch("gemm", 5e11, (5e11 + 30, 2000), cost=20).op("aten::mm", 5, 5)
    del trace.events[-1]["ts"]
    analysis = (
        trace.add("kernel", "at zero", 0, 10, 7, 0)
        .add("kernel", "endless", 5e11, 9e11, 7, 0)
        .analyse(tmp_path)
    )
    assert analysis.mean_step_us == 2030
    assert [row.name for row in analysis.kernels] == ["gemm"]
    assert codes(analysis)[0] == "bad_events" and analysis.health[0].message.startswith("left out 3 ")


def test_the_same_event_twice_counts_once(tmp_path):
    trace = step(**GPU).op("aten::mm", 0, 9, **{"External id": 5}).launch("gemm", 1, (20, 30))
    trace.op("aten::mm", 0, 9, **{"External id": 6})
    once = trace.analyse(tmp_path)
    trace.events += trace.events
    twice = trace.analyse(tmp_path)
    assert codes(twice) == ["repeated_events"]
    assert (twice.kernels, twice.operators, twice.mean_us) == (once.kernels, once.operators, once.mean_us)
    assert once.operators[0].calls == 2, "two operators with the same times are two"


def test_the_same_correlation_gives_no_operator_rather_than_the_wrong_one(tmp_path):
    trace = Recording(**GPU).op("aten::mm", 0, 50).op("aten::relu", 100, 50)
    for at, kernel, run in ((10, "gemm", (60, 30)), (110, "relu_kernel", (160, 1000))):
        trace._next = 5
        trace.launch(kernel, at, run, cost=10)
    analysis = trace.analyse(tmp_path)
    assert "same_correlation" in codes(analysis)
    assert [row.operator for row in analysis.kernels] == [None, None]
    assert all(not row.device_self_us for row in analysis.operators)


def test_a_call_inside_another_with_its_number_is_no_second_launch(tmp_path):
    trace = step(**GPU).op("aten::mm", 0, 50).launch("gemm", 10, (60, 30), cost=10)
    analysis = trace.add("cuda_driver", "cuLaunchKernel", 12, 5, correlation=1).analyse(tmp_path)
    assert (analysis.kernels[0].operator, "same_correlation" in codes(analysis)) == ("aten::mm", False)


def test_two_documents_in_one_file(tmp_path):
    text = step(**GPU).launch("gemm", 1, (20, 30)).text()
    for more in (text, b"\n" + text, json.dumps(step().events).encode()):
        (tmp_path / "a.json").write_bytes(text + more)
        analysis = analyse(tmp_path / "a.json")
        assert (codes(analysis), analysis.kernels[0].calls) == (["several_documents"], 1)


def test_the_device_is_read_after_the_events_and_by_its_old_name(tmp_path):
    events = step().launch("gemm", 1, (20, 30)).events
    for name in ("deviceProperties", "computeProperties"):
        for document in (
            {"traceEvents": events, name: GPU["deviceProperties"]},
            {name: GPU["deviceProperties"], "traceEvents": events},
        ):
            (tmp_path / "a.json").write_text(json.dumps(document))
            analysis = analyse(tmp_path / "a.json")
            assert (analysis.device["name"], codes(analysis)) == ("NVIDIA A100", [])


@pytest.mark.parametrize("capability", [{"computeMajor": 7, "computeMinor": -1}, {"computeMajor": -7}])
def test_a_capability_that_no_gpu_has_is_not_known(tmp_path, capability):
    trace = step(deviceProperties=[{"computeMinor": 0, **capability}]).launch("gemm", 1, (20, 30))
    assert trace.analyse(tmp_path).device["compute_capability"] is None


def test_a_field_that_is_no_text_is_not_known(tmp_path):
    events = json.dumps(step().op("aten::mm", 0, 9).events)
    text = f'{{"traceEvents": {events}, "simulated": {{"gpu": "\\ud800"}}, "trainedOn": "\\ud800"}}'
    (tmp_path / "a.json").write_text(text)
    assert analyse(tmp_path / "a.json").device["simulated"] is None


@pytest.mark.parametrize(
    ("category", "call", "kind"),
    [
        ("cuda_runtime", "cudaLaunchKernel", "cuda"), ("cuda_runtime", "hipLaunchKernel", "rocm"),
        ("xpu_runtime", "urEnqueueKernelLaunch", "xpu"), ("privateuse1_runtime", "aclrtLaunchKernel", "npu"),
        ("privateuse1_runtime", "launch", "accelerator"), ("mtia_runtime", "runFunction", "mtia"),
    ],
)  # fmt: skip
def test_accelerators_are_not_all_cuda(tmp_path, category, call, kind):
    trace = step().add(category, call, 1, 2, correlation=1).add("kernel", "k", 5, 90, 7, 0, correlation=1)
    analysis = trace.analyse(tmp_path)
    assert (analysis.device["kind"], analysis.has_accelerator) == (kind, True)
    assert ("an unnamed" in summary(analysis)) is True


def test_python_frames_make_the_host_slower(tmp_path):
    trace = step(**GPU).add("python_function", "train.py(1): f", 0, 50).launch("k", 1, (20, 30))
    assert "slower than it is" in trace.analyse(tmp_path).health[0].message


def test_a_bomb_of_an_exponent_is_no_time(tmp_path):
    text = (
        b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1e999999999, "dur": 1}, {"ph": "X"'
    )
    (tmp_path / "a.json").write_bytes(text + b', "cat": "kernel", "name": "g", "ts": 5, "dur": 1}]}')
    assert [row.name for row in analyse(tmp_path / "a.json").kernels] == ["g"]


# ---------------------------------------------------------------- 7: the first sentence


def test_the_first_sentence_says_what_it_is(tmp_path):
    trace = rank(0, 40, 60, 8)
    assert summary(trace.analyse(tmp_path)).startswith(
        "Training on NVIDIA A100, rank 0 of 8: 2 steps of 200 µs on average in a recording of 400 µs. Kernels run 55%"
    )
    text = summary(Recording(**GPU).op("aten::mm", 0, 9).launch("k", 1, (5, 95)).analyse(tmp_path))
    assert text.startswith(
        "Forward passes without a backward pass, such as inference, on NVIDIA A100: 100 µs were"
    )
    assert ", inferred from what ran, in" in summary(loop().analyse(tmp_path))


def test_a_page_has_words_and_one_value_of_what_is_exposed(tmp_path):
    view = profile.Profile(rank(0, 40, 60).analyse(tmp_path))
    text = terminal.text(view.sections())
    for name in ("cpu_op", "end_of_step", "memcpy", "batch_size", "dataloader", "mean_us"):
        assert name not in text
    exposed = view.analysis.communication["exposed_us_per_step"]
    assert (
        exposed
        == view.analysis.mean_us["communication"]
        == found(view.analysis)["communication-bound"].exposed_us
    )


# ---------------------------------------------------------------- 8: the read


def test_a_stopped_read_leaves_no_thread_and_no_open_file(tmp_path):
    trace = Recording()
    for at in range(20_000):
        trace.op(f"aten::op{at}", at, 0.5)

    def stop(what, share):
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        Trace(trace.save(tmp_path, "a.json.gz"), tell=stop)
    assert set(threading.enumerate()) <= before


# ---------------------------------------------------------------- what a second look found


def test_the_allocator_and_the_garbage_collector_are_named(tmp_path):
    for name, call in (("allocation", "cudaMalloc"), ("garbage-collection", "Python GC")):
        category = "python_function" if "GC" in call else "cuda_runtime"
        trace = step(**GPU).op("aten::empty", 0, 70).add(category, call, 1, 60).launch("k", 70, (72, 28))
        row = found(trace.analyse(tmp_path))[name]
        assert (row.exposed_us, row.try_next) == (60, [])


def test_a_training_is_known_by_one_backward_operator(tmp_path):
    assert "training" in step().op("aten::convolution_backward", 0, 9).analyse(tmp_path).shows


def test_a_pause_of_minutes_is_part_of_a_recording(tmp_path):
    trace = Recording(**GPU)
    for at in (0, 15 * 60 * 10**6):
        trace.step(at, at, 100).launch("k", at, (at + 5, 90))
    analysis = trace.analyse(tmp_path)
    assert (codes(analysis), len(analysis.steps)) == ([], 2)


def test_several_devices_of_one_process_are_said(tmp_path):
    trace = step(**GPU).launch("k", 0, (5, 50)).add("kernel", "k", 40, 50, 7, 1)
    analysis = trace.analyse(tmp_path)
    assert analysis.gpu_utilization == 0.85
    assert "2 devices" in analysis.health[0].message


def test_one_is_written_as_one(tmp_path):
    trace = step(**GPU).launch("k", 1, (20, 30)).add("kernel", "bad", 1, -1)
    trace.add("python_function", "train.py(1): f", 0, 50)
    messages = [problem.message for problem in trace.analyse(tmp_path).health]
    assert messages[0].startswith("left out 1 event: ")
    assert messages[1].startswith("recording 1 Python frame took time")


def test_a_damaged_file_is_not_said_to_be_on_the_cpu_nor_of_inference(tmp_path):
    (tmp_path / "a.json").write_bytes(step(**GPU).op("aten::mm", 0, 9).op("a", 9, 9).text()[:-20])
    text = summary(analyse(tmp_path / "a.json"))
    assert text.startswith(
        "Work of an unknown kind on an unknown device: 1 step of unknown length, as something is"
    )


@pytest.mark.parametrize("cut", [12, 30, 60])
def test_a_packed_file_that_ends_early_is_damaged_and_not_empty(tmp_path, cut):
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(step().op("aten::mm", 0, 9).text())[:cut])
    with pytest.raises(TraceError, match="cut off or damaged"):
        read(tmp_path / "a.json.gz")


@pytest.mark.parametrize("form", ["tar", "tar.gz"])
def test_an_archive_that_ends_early_is_damaged(tmp_path, form):
    path = several(tmp_path, form)
    data = path.read_bytes()
    path.write_bytes(data[:700] if form == "tar" else data[: len(data) // 2])
    with pytest.raises(TraceError, match="this archive is cut off or damaged"):
        read(path)


def test_a_member_that_is_damaged_or_no_trace_is_left_out_and_named(tmp_path):
    path = several(tmp_path, "folder")
    (path / "config.json").write_text('{"lr": 0.1}')
    (path / "job_rank0.pt.trace.json.gz").write_bytes(b"\x1f\x8b\x08\x00junk")
    analysis = read(path)
    assert [row.rank for row in analysis.ranks] == [1, 2]
    (problem,) = [problem for problem in analysis.health if problem.code == "not_traces"]
    assert problem.message.endswith(": config.json, job_rank0.pt.trace.json.gz")
    (path / "job_rank1.pt.trace.json.gz").unlink()
    assert read(path).ranks == [], "one is left"


def test_a_zip_that_asks_for_a_newer_program_is_damaged(tmp_path):
    path = several(tmp_path, "zip")
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 6] = 169  # the version needed to unpack it: 16.9
    path.write_bytes(data)
    with pytest.raises(TraceError, match="this archive is cut off or damaged"):
        read(path)


def test_a_name_with_thousands_of_digits_has_no_rank_of_so_many(tmp_path):
    path = tmp_path / "ranks.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("rank0.json", f"rank{'9' * 5000}.json"):
            archive.writestr(name, step().op("aten::mm", 0, 9).text())
    assert [row.rank for row in read(path).ranks] == [0, 999_999_999]


def test_an_encrypted_archive_cannot_be_read(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.json", step().op("aten::mm", 0, 9).text())
    text = bytearray(path.read_bytes())
    text[6] |= 1
    text[text.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(text)
    with pytest.raises(InvalidValue, match="is encrypted"):
        read(path)


def test_a_damaged_rank_is_said_and_no_rank_is_called_late(tmp_path):
    rank(0, 40, 60).save(tmp_path, "0.json")
    (tmp_path / "1.json").write_bytes(rank(1, 90, 10).text()[:-700])
    analysis = read(tmp_path)
    assert [row.waiting_us for row in analysis.ranks] == [None, None]
    assert lateness(analysis).startswith("Nothing tells which rank is late")
    assert any(problem.message.startswith("rank 1: the file is cut off") for problem in analysis.health)


def test_ranks_with_different_numbers_of_steps_are_compared_per_step(tmp_path):
    rank(0, 40, 60).save(tmp_path, "0.json")
    late = rank(1, 100, 0)
    for event in list(late.events):
        late.events.append({**event, "ts": event["ts"] + 400, "name": event["name"].replace("#", "#1")})
        if "args" in event:
            late.events[-1]["args"] = {**event["args"], "correlation": event["args"]["correlation"] + 50}
    late.save(tmp_path, "1.json")
    analysis = read(tmp_path)
    assert [(row.rank, row.waiting_us) for row in analysis.ranks] == [(0, 60), (1, 0)]
    assert lateness(analysis).startswith(
        "Rank 1 is late: in collectives, it waits 0 µs of a step, and the other 60"
    )


def unmarked(number, own, waits, updates=3):
    """Updates without a mark: the first one only begins the first step that can be inferred."""
    about = {"backend": "nccl", "rank": number, "world_size": 2}
    trace = Recording(distributedInfo=about, **GPU)
    for at in range(0, 200 * updates, 200):
        trace.op("aten::mm", at, 5).launch("gemm", at, (at + 5, own))
        trace.launch("ncclDevKernel_AllReduce", at + 6, (at + 5 + own, waits + 10), stream=9)
        trace.add("user_annotation", "Optimizer.step#SGD.step", at + 150, 20)
    return trace


def test_a_collective_before_the_first_inferred_step_counts_in_no_step(tmp_path):
    unmarked(0, 40, 60).save(tmp_path, "0.json")
    unmarked(1, 100, 0).save(tmp_path, "1.json")
    analysis = read(tmp_path)
    assert analysis.steps_are == "inferred" and len(analysis.steps) == 2
    assert [(row.communication_us, row.waiting_us) for row in analysis.ranks] == [(70, 60), (10, 0)]


def test_copies_and_waits_before_the_first_inferred_step_count_in_no_step(tmp_path):
    trace = Recording(**GPU)
    for at in range(0, 600, 200):
        trace.op("aten::copy_", at, 9).launch(
            "Memcpy HtoD (Pageable -> Device)", at, (at + 5, 20), cat="gpu_memcpy"
        )
        trace.add("cuda_runtime", "cudaStreamSynchronize", at + 40, 10)
        trace.add("user_annotation", "Optimizer.step#SGD.step", at + 150, 20)
    analysis = trace.analyse(tmp_path)
    assert analysis.steps_are == "inferred" and len(analysis.steps) == 2
    assert [row.calls_per_step for row in (*analysis.transfers, *analysis.syncs)] == [1, 1]


def test_of_a_trace_without_some_kernels_no_time_of_collectives_is_said(tmp_path):
    for number, own in enumerate((40, 100)):
        trace = rank(number, own, 100 - own)
        for at in range(8):  # launches without a kernel
            trace.add("cuda_runtime", "cudaLaunchKernel", 20 + 4 * at, 2, correlation=900 + at)
        trace.save(tmp_path, f"{number}.json")
    analysis = read(tmp_path)
    assert "dropped_kernels" in codes(analysis)
    assert analysis.communication["total_us_per_step"] is None
    assert [row.waiting_us for row in analysis.ranks] == [None, None]
    assert lateness(analysis).startswith("Nothing tells which rank is late")
    assert "Collectives take" not in lateness(analysis) and "n/a" not in lateness(analysis)


def test_what_is_exposed_is_singular(tmp_path):
    rank(0, 40, 60).save(tmp_path, "0.json")
    assert "of it is exposed" in lateness(read(tmp_path))


def test_a_collective_of_the_host_is_communication(tmp_path):
    about = {"distributedInfo": {"backend": "gloo", "rank": 0, "world_size": 2}}
    gpu = step(**GPU, **about).launch("k", 0, (5, 35)).add("user_annotation", "gloo:all_reduce", 45, 50)
    cpu = step(**about).op("aten::mm", 0, 45).add("user_annotation", "gloo:all_reduce", 45, 50)
    for trace in (gpu, cpu):
        assert found(trace.analyse(tmp_path))["communication-bound"].exposed_us == 50


# ---------------------------------------------------------------- what a third look found


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "HtoD"), ("zeCommandListAppendMemoryCopy(M2D)", "HtoD"),
        ("zeCommandListAppendMemoryCopy(D2M)", "DtoH"), ("CopyHostToDevice", "HtoD"),
        ("MEMORY_COPY_DEVICE_TO_HOST", "DtoH"), ("Memcpy DtoD (Device -> Device)", "DtoD"), ("copy", "copy"),
    ],
)  # fmt: skip
def test_copies_of_other_accelerators_have_a_direction(tmp_path, name, direction):
    trace = step(**GPU).launch(name, 1, (5, 50), cat="gpu_memcpy").launch("gemm", 2, (60, 40))
    analysis = trace.analyse(tmp_path)
    assert [row.direction for row in analysis.transfers] == [direction]
    assert ("copy-bound" in found(analysis)) == (direction in ("HtoD", "DtoH"))


def test_the_joined_traces_of_several_processes_are_no_steps_of_one(tmp_path):
    trace = Recording(**GPU)
    for process, at in ((10, 0), (20, 7)):
        trace.add("user_annotation", "ProfilerStep#1", at, 100, pid=process).launch("gemm", at, (at + 5, 50))
    analysis = trace.analyse(tmp_path)
    assert codes(analysis)[0] == "several_processes"
    assert (analysis.mean_step_us, analysis.gpu_utilization, analysis.diagnosis) == (None, None, [])


def test_a_comma_after_the_last_event_is_no_damage(tmp_path):
    trace = step(**GPU).op("aten::mm", 0, 50).launch("gemm", 10, (20, 60))
    for text in (trace.text().replace(b"]}", b",]}"), trace.text().replace(b"]}", b" ,\r\n ] }")):
        (tmp_path / "a.json").write_bytes(text)
        analysis = analyse(tmp_path / "a.json")
        assert (codes(analysis), analysis.kernels[0].calls) == ([], 1)


def test_of_a_file_that_is_cut_off_nothing_is_said_of_what_may_be_in_the_rest(tmp_path):
    text = step(**GPU).op("aten::mm", 0, 50).launch("gemm", 10, (20, 60)).text()
    (tmp_path / "a.json").write_bytes(text[: text.index(b'{"ph": "X", "cat": "kernel"')])
    assert codes(analyse(tmp_path / "a.json")) == ["truncated"]


def test_a_rank_that_recorded_nothing_does_not_make_the_others_empty(tmp_path):
    rank(0, 40, 60).save(tmp_path, "0.json")
    about = {"backend": "nccl", "rank": 1, "world_size": 2}
    empty = Recording(distributedInfo=about, **GPU).add("Trace", "PyTorch Profiler (0)", 0, 500)
    empty.add("cuda_runtime", "cudaGetDeviceCount", 5, 10).save(tmp_path, "1.json")
    analysis = read(tmp_path)
    assert summary(analysis).startswith("Training on 2 ranks")
    assert [problem.message[:7] for problem in analysis.health if problem.code == "other_rank"] == ["rank 1:"]


def test_what_the_host_did_is_unknown_where_it_was_not_recorded(tmp_path):
    trace = Recording(**GPU).add("kernel", "a", 0, 10, 7, 0).add("kernel", "b", 90, 10, 7, 0)
    analysis = trace.analyse(tmp_path)
    assert {part for part, time in analysis.mean_us.items() if time is None} == {
        "runtime",
        "dataloader",
        "cpu_op",
    }
    text = terminal.text(profile.Profile(analysis).sections())
    assert "The operators' time on the host was not recorded" in " ".join(text.split())


def test_traces_of_stages_are_not_taken_for_ranks(tmp_path):
    with zipfile.ZipFile(tmp_path / "gpu.zip", "w") as archive:
        for stage in ("baseline", "amp"):
            text = step(**GPU).op("aten::mm", 0, 50).launch("gemm", 10, (20, 60)).text()
            archive.writestr(f"gpu/trace-{stage}.pt.trace.json.gz", gzip.compress(text))
        archive.writestr("gpu/ladder.json", '{"runs": []}')
    with pytest.raises(TraceError, match="holds 2 traces, but not one of each rank") as caught:
        read(tmp_path / "gpu.zip")
    assert "Give one of them by itself: trace-amp" in str(caught.value)


def test_folders_and_what_macos_adds_are_no_ranks(tmp_path):
    path = several(tmp_path, "folder")
    (path / "more.json").mkdir()
    (path / "._job_rank0.pt.trace.json").write_bytes(b"\x00\x05\x16\x07Mac OS X")
    analysis = read(path)
    assert (len(analysis.ranks), codes(analysis)) == (3, ["several_ranks"])
