"""Reading files: the forms a trace comes in, odd values, and files that are damaged, hostile or no trace."""

import gzip
import json

import pytest

from perfkit.errors import TraceError
from perfkit.trace import analyse, load
from tests.unit.trace.recording import Recording, sample, written


def test_object_list_and_gzip_give_the_same(tmp_path):
    made = sample()
    plain = analyse(made.save(tmp_path))
    packed = analyse(made.save(tmp_path, "b.json.gz"))
    listed = analyse(written(tmp_path, json.dumps(made.events).encode()))
    misnamed = analyse(written(tmp_path, gzip.compress(made.text()), "c.json"))
    for other in (packed, listed, misnamed):
        assert (other.mean_us, other.kernels, other.operators) == (
            plain.mean_us,
            plain.kernels,
            plain.operators,
        )
    document = json.loads(plain.to_json())
    assert list(document) == [
        "schema", "files", "device", "health", "steps", "mean_step_us", "mean_us", "exposed_and_hidden_us",
        "gpu_utilization", "est_sm_efficiency", "est_achieved_occupancy", "tensor_core", "operators", "kernels",
        "transfers", "syncs", "idle", "communication", "memory", "diagnosis",
    ]  # fmt: skip


def test_nanoseconds_survive_where_a_float_would_lose_them(tmp_path):
    text = b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1712195495520824.518, "dur": 0.432}]}'
    columns = load(written(tmp_path, text)).ranks[0].columns
    assert (int(columns.start[0]), int(columns.end[0])) == (1712195495520824518, 1712195495520824950)


def test_events_with_impossible_values_are_dropped_and_counted(tmp_path):
    made = sample()
    for bad in (
        {"dur": -5},
        {"ts": "x"},
        {"dur": None},
        {"ts": 1e300},
        {"dur": 1e40},
        {"name": 3},
        {"dur": float("nan")},
    ):
        made.events.append(
            {"ph": "X", "cat": "kernel", "name": "bad", "pid": 1, "tid": 1, "ts": 1, "dur": 1, **bad}
        )
    made.events += [
        5,
        None,
        "x",
        [],
        {"ph": "X", "cat": "cpu_op", "name": "fine", "pid": "7", "tid": "x", "ts": "1010", "dur": "2"},
    ]
    found = analyse(made.load(tmp_path))
    assert "bad" not in [row.name for row in found.kernels]
    assert "fine" in [row.name for row in found.operators]
    assert any(b.code == "bad_events" and b.message.startswith("left out 11 ") for b in found.health)


def test_a_truncated_file_is_read_as_far_as_it_goes_under_a_banner(tmp_path):
    text = sample().text()
    for data in (text[: len(text) // 2], gzip.compress(text)[:-200], gzip.compress(text)[:-4]):
        found = analyse(written(tmp_path, data))
        assert "truncated" in [banner.code for banner in found.health]
        assert found.mean_step_us is found.gpu_utilization is None
        assert set(found.mean_us.values()) == {None}
        assert found.kernels


def test_a_damaged_gzip_is_read_up_to_the_damage(tmp_path):
    made = sample()
    for number in range(3000):
        made.op(f"aten::op{number * 7919 % 1000}", 5000 + number, 0.5)
    data = bytearray(gzip.compress(made.text()))
    data[len(data) * 3 // 4] ^= 0xFF
    assert [b.code for b in analyse(written(tmp_path, bytes(data))).health][:1] == ["truncated"]


def test_windows_escapes_bare_nan_and_bad_bytes_are_repaired(tmp_path):
    text = sample().text()[:-2].replace(b"aten::mm", b"C:\\Users\\xavier\\mm \xff\xfe", 1)
    text += b', {"ph": "X", "cat": "kernel", "name": "n", "pid": 1, "tid": 1, "ts": NaN, "dur": 1}]}'
    found = analyse(written(tmp_path, text))
    assert [b.code for b in found.health][:2] == ["repaired", "bad_events"]
    assert any(row.name.startswith("C:\\Users\\xavier\\mm") for row in found.operators)
    assert found.mean_step_us == 100


@pytest.mark.parametrize("encoding", ["utf-8-sig"])
def test_what_windows_shells_write_is_read(tmp_path, encoding):
    assert analyse(written(tmp_path, sample().text().decode().encode(encoding))).mean_step_us == 100


def test_a_zip_bomb_ends_at_the_limit(tmp_path):
    bomb = gzip.compress(b'[{"ph": "' + b"X" * (200 << 20))
    with pytest.raises(TraceError, match="unpacks to more than"):
        load(written(tmp_path, bomb))


def test_missing_or_odd_arguments_leave_figures_unknown_not_zero(tmp_path):
    made = Recording().step(1, 0, 100)
    for args in (
        None,
        5,
        [],
        {"correlation": "x", "blocks per SM": "many", "bytes": -3, "device": {}},
        {"correlation": 1e99},
    ):
        made.events.append(
            {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 5, "dur": 5, "args": args}
        )
    made.add("gpu_memcpy", "Memcpy HtoD", 20, 5, 7, 0)
    found = analyse(made.load(tmp_path))
    assert found.est_sm_efficiency is found.est_achieved_occupancy is None
    assert (found.kernels[0].blocks_per_sm, found.kernels[0].operator) == (None, None)
    assert (found.transfers[0].bytes, found.transfers[0].gb_per_s) == (None, None)


def test_huge_names_are_cut_and_html_stays_text(tmp_path):
    name = "<script>alert(1)</script>"
    found = analyse(Recording().op("x" * 5_000_000, 0, 9).op(name, 1, 2).load(tmp_path))
    assert {len(row.name) for row in found.operators} == {4097, len(name)}
    assert name in [row.name for row in found.operators]


@pytest.mark.parametrize(
    "data",
    [
        b"", b"   \n", b"null", b"{}", b"[]", b"[1, 2]", b"hello", b"\x00" * 100, b"\x1f\x8b", b"\x1f\x8b\x08\x00junk",
        b'{"traceEvents": 5}', b'{"traceEvents": []}', b'{"traceEvents": [{}]}', b'[{"a": 1}]', b"{", b'{"traceEvents": [',
        b"<html></html>", b"PK\x03\x04", b"[" * 10_000_000, b'{"a":' * 2_000_000, b'{"traceEvents": ' + b"[" * 10_000_000,
        b'{"traceEvents": [{"args": ' + b"[" * 10_000_000 + b"]" * 10_000_000 + b"}]}",
        b'[{"ph": "X", "cat": "Trace", "name": "t", "ts": 1, "dur": 2}]',
    ],
    ids=lambda data: f"{data[:24]!r}",
)  # fmt: skip
def test_what_is_no_trace_is_refused_with_a_remedy(tmp_path, data):
    with pytest.raises(TraceError) as caught:
        analyse(written(tmp_path, data))
    assert caught.value.remedy


def test_missing_files_are_refused(tmp_path):
    with pytest.raises(TraceError, match="cannot read"):
        load(tmp_path / "none.json")
    for nothing in ([], tmp_path):
        with pytest.raises(TraceError, match="no trace file"):
            load(nothing)


def test_a_folder_is_read_as_the_ranks_of_one_run(tmp_path):
    for rank in (1, 0):
        sample().save(tmp_path, f"rank{rank}.json")
    assert [path[-6] for path in load(tmp_path).files] == ["0", "1"]


def test_a_damaged_gpu_trace_is_no_cpu_trace(tmp_path):
    text = sample().text()
    assert analyse(written(tmp_path, text[: len(text) // 2])).has_accelerator
