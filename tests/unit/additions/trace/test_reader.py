"""Reading files: the forms a trace comes in, odd values, and files that are damaged, hostile or no trace."""

import gzip
import json

import pytest

from perfkit.additions.trace.analysis import analyse
from perfkit.additions.trace.formats import TraceError
from perfkit.additions.trace.table import Trace
from perfkit.errors import InvalidValue
from tests.unit.additions.trace.recording import Recording, step


def sample():
    """Two steps with 40 operators and their kernels."""
    trace = Recording().step(1, 1000, 100).step(2, 1100, 100)
    for at in range(1001, 1161, 4):
        trace.op("aten::mm", at, 3).launch("gemm", at + 1, (at + 2, 2), cost=1)
    return trace


def read(folder, data, name="t.json"):
    path = folder / name
    path.write_bytes(data)
    return analyse(path)


def codes(analysis):
    return [problem.code for problem in analysis.health]


def test_objects_lists_gzip_and_what_windows_writes_give_the_same(tmp_path):
    trace = sample()
    texts = [trace.text(), json.dumps(trace.events).encode(), b"\xef\xbb\xbf" + trace.text()]
    analyses = [read(tmp_path, data) for text in texts for data in (text, gzip.compress(text))]
    assert all(analysis == analyses[0] for analysis in analyses)
    assert (analyses[0].mean_step_us, analyses[0].kernels[0].calls, codes(analyses[0])) == (100, 40, [])


def test_a_recorded_trace_that_is_not_there_lists_those_that_are():
    with pytest.raises(
        InvalidValue, match=r"unknown recorded trace 'photos'. .*photos-baseline, photos-data"
    ):
        analyse("recorded:photos")


def test_nanoseconds_survive_where_a_float_would_lose_them(tmp_path):
    text = b'[{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1712195495520824.518, "dur": 0.432}]'
    (tmp_path / "a.json").write_bytes(text)
    trace = Trace(tmp_path / "a.json")
    assert (trace.start, trace.table.end.item()) == (1712195495520824518, 432)


@pytest.mark.parametrize(
    "bad",
    [
        {"dur": -5}, {"ts": "x"}, {"dur": None}, {"ts": 1e300}, {"dur": 1e40}, {"name": 3}, {"ts": "nan"},
        {"args": 5}, {"args": {"correlation": 1e99}},
    ],
)  # fmt: skip
def test_events_with_impossible_values_are_dropped_and_counted(tmp_path, bad):
    trace = sample().add("kernel", "bad", 1, 1)
    trace.events[-1].update(bad)
    analysis = trace.op("fine", 1010, 2).analyse(tmp_path)
    assert {row.name for row in (*analysis.kernels, *analysis.operators)} == {"gemm", "aten::mm", "fine"}
    assert analysis.health[0].message.startswith("left out 1 ")


def test_a_truncated_file_is_read_as_far_as_it_goes_and_says_so(tmp_path):
    text, long = sample().text(), sample()
    for at in range(3000):
        long.op(f"aten::op{at * 7919 % 1000}", 5000 + at, 0.5)
    packed = bytearray(gzip.compress(long.text()))
    packed[len(packed) * 3 // 4] ^= 0xFF
    for data in (text[: len(text) // 2], gzip.compress(text)[:-200], gzip.compress(text)[:-4], bytes(packed)):
        analysis = read(tmp_path, data)
        assert codes(analysis)[0] == "truncated"
        assert analysis.mean_step_us is analysis.gpu_utilization is None
        assert set(analysis.mean_us.values()) == {None}
        assert analysis.kernels and analysis.has_accelerator


def test_windows_escapes_bare_nan_and_bad_bytes_are_repaired(tmp_path):
    text = sample().text()[:-2].replace(b"aten::mm", b"C:\\Users\\xavier\\mm \xff\xfe", 1)
    text += b', {"ph": "X", "cat": "kernel", "name": "n", "pid": 1, "tid": 1, "ts": NaN, "dur": 1}]}'
    analysis = read(tmp_path, text)
    assert codes(analysis) == ["bad_events"]
    assert any(row.name.startswith("C:\\Users\\xavier\\mm") for row in analysis.operators)


def test_missing_arguments_leave_figures_unknown_not_zero(tmp_path):
    trace = step().add("gpu_memcpy", "Memcpy HtoD", 20, 5, 7, 0, bytes=-3).add("kernel", "k", 5, 5)
    trace.events[-1]["args"] = None
    analysis = trace.analyse(tmp_path)
    (kernel,), (copy,) = analysis.kernels, analysis.transfers
    assert kernel.operator is copy.bytes is copy.gb_per_s is None


@pytest.mark.parametrize(
    "data",
    [
        b"", b"   \n", b"null", b"{}", b"[1, 2]", b"\x1f\x8b\x08\x00junk", b'{"traceEvents": 5}', b'{"traceEvents": [{}]}',
        b"[" * 10_000_000, b'{"a":' * 2_000_000, b'[{"ph": "X", "cat": "Trace", "name": "t", "ts": 1, "dur": 2}]',
    ],
    ids=lambda data: f"{data[:24]!r}",
)  # fmt: skip
def test_what_is_no_trace_is_refused_with_a_remedy(tmp_path, data):
    with pytest.raises(TraceError) as caught:
        read(tmp_path, data)
    assert caught.value.remedy


def test_a_read_says_how_far_it_is(tmp_path):
    said = []
    Trace(sample().save(tmp_path, "a.json.gz"), tell=lambda *now: said.append(now))
    assert said[-1] == ("reading a.json.gz", 1.0)
