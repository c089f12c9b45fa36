"""Files that are damaged, hostile or written badly."""

import gzip

import pytest

from perfkit.trace import Limits, TraceError, analyse, load
from tests.unit.trace.recording import sample, written


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


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_what_windows_shells_write_is_read(tmp_path, encoding):
    assert analyse(written(tmp_path, sample().text().decode().encode(encoding))).mean_step_us == 100


def test_a_zip_bomb_ends_at_the_limit(tmp_path):
    bomb = gzip.compress(b'[{"ph": "' + b"X" * (200 << 20))
    with pytest.raises(TraceError, match="unpacks to more than"):
        load(written(tmp_path, bomb))
    with pytest.raises(TraceError, match="unpacks to more than 1,000 bytes"):
        load(sample().save(tmp_path, "b.json.gz"), Limits(max_bytes=1000))
    with pytest.raises(TraceError, match="has more than 1,000 bytes"):
        load(sample().save(tmp_path), Limits(max_bytes=1000))
