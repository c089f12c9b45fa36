"""Exports of Nsight Systems are read into the same tables as traces of the profiler."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from perfkit import trace
from perfkit.errors import TraceError
from perfkit.trace import nsight

SCHEMA = """
CREATE TABLE StringIds (id INTEGER, value TEXT);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER, globalTid INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME
  (start INTEGER, end INTEGER, nameId INTEGER, correlationId INTEGER, globalTid INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL
  (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER,
   demangledName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER,
   blockX INTEGER, blockY INTEGER, blockZ INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY
  (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, bytes INTEGER,
   copyKind INTEGER, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, totalMemory INTEGER, smCount INTEGER);
INSERT INTO StringIds VALUES
  (1, 'sgemm<kernel>'), (2, 'cudaLaunchKernel_v7000'), (3, 'cudaMemcpyAsync_v3020');
INSERT INTO TARGET_INFO_GPU VALUES (0, 'Fake GPU', 1000, 10);
"""


THREAD = (7 << 24) | 42


def export(path: Path) -> Path:
    """Two steps of 1 ms: a pageable copy of 0.2 ms, then a kernel of 0.5 ms."""
    with sqlite3.connect(path) as base:
        base.executescript(SCHEMA)
        for step in (0, 1):
            at = 10_000_000 + step * 1_000_000
            base.execute(
                "INSERT INTO NVTX_EVENTS VALUES (?, ?, 'step', NULL, ?)", (at, at + 1_000_000, THREAD)
            )
            for name, start, end in ((3, 50_000, 260_000), (2, 270_000, 280_000)):
                row = (at + start, at + end, name, 10 * step + name, THREAD)
                base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)", row)
            copy = (at + 60_000, at + 260_000, 0, 7, 10 * step + 3, 4096, 1, 0, 2)
            base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?,?,?,?,?,?,?,?,?)", copy)
            kernel = (at + 300_000, at + 800_000, 0, 7, 10 * step + 2, 1, 8, 1, 1, 128, 1, 1)
            base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,?,?,?,?,?,?,?,?,?)", kernel)
    return path


def test_an_nsys_export_is_read_into_the_same_tables(tmp_path: Path) -> None:
    made = nsight.convert(export(tmp_path / "x.sqlite"), tmp_path / "x.json.gz")
    found = trace.analyse(made)
    assert found.device["name"] == "Fake GPU"
    assert len(found.steps) == 2
    (kernel,) = found.kernels
    assert (kernel.name, kernel.calls, kernel.total_us) == ("sgemm<kernel>", 2, pytest.approx(1000))
    (copy,) = found.transfers
    assert (copy.direction, copy.bytes) == ("HtoD", 8192)
    assert found.gpu_utilization == pytest.approx(0.5, abs=0.01)
    assert [path.name for path in tmp_path.glob("*.part")] == []


@pytest.mark.parametrize("content", [b"", b"no database", None])
def test_what_is_no_export_is_refused_in_words(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "x.sqlite"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(TraceError, match="nsys"):
        nsight.convert(file, tmp_path / "x.json.gz")
    assert not (tmp_path / "x.json.gz").exists()
