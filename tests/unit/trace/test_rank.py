"""Files that are no trace."""

import pytest

from perfkit.trace import TraceError, analyse, load
from tests.unit.trace.recording import written


@pytest.mark.parametrize(
    "data",
    [
        b"", b"   \n", b"null", b"{}", b"[]", b"[1, 2]", b"hello", b"\x00" * 100, b"\x1f\x8b", b"\x1f\x8b\x08\x00junk",  # noqa: E501
        b'{"traceEvents": 5}', b'{"traceEvents": []}', b'{"traceEvents": [{}]}', b'[{"a": 1}]', b"{", b'{"traceEvents": [',  # noqa: E501
        b"<html></html>", b"PK\x03\x04", b"[" * 10_000_000, b'{"a":' * 2_000_000, b'{"traceEvents": ' + b"[" * 10_000_000,  # noqa: E501
        b'{"traceEvents": [{"args": ' + b"[" * 10_000_000 + b"]" * 10_000_000 + b"}]}",
        b'[{"ph": "X", "cat": "Trace", "name": "t", "ts": 1, "dur": 2}]',
    ],
    ids=lambda data: f"{data[:24]!r}",
)  # fmt: skip
def test_what_is_no_trace_is_refused_with_a_remedy(tmp_path, data):
    with pytest.raises(TraceError) as caught:
        analyse(written(tmp_path, data))
    assert caught.value.remedy


def test_missing_files_and_folders_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(TraceError, match="cannot read"):
            load(path)
    with pytest.raises(TraceError, match="no trace file"):
        load([])
