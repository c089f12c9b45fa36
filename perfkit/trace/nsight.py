"""The SQLite export of NVIDIA Nsight Systems, as a trace of the PyTorch profiler."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfkit.errors import TraceError
from perfkit.machine import write_atomically

_NEEDED = {"StringIds", "NVTX_EVENTS"}
_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
"""CUPTI's numbers of copy kinds."""
_MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device"}


def convert(file: Path, out: Path) -> Path:
    """Writes an nsys export as a trace of the PyTorch profiler.

    Args:
        file: what `nsys export --type sqlite` wrote.
        out: `*.json.gz`.

    Raises:
        TraceError: no such file, no such export, or a damaged one.
    """
    try:
        with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as base:
            base.row_factory = sqlite3.Row
            tables = {row[0] for row in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if missing := _NEEDED - tables:
                raise TraceError(f"{file} is not an nsys export: it lacks {', '.join(sorted(missing))}",
                                 "Export it with `nsys export --type sqlite`")  # fmt: skip
            events = list(_events(base, tables))
            devices = _devices(base, tables)
    except sqlite3.Error as problem:
        raise TraceError(
            f"{file} cannot be read: {problem}", "Export it with `nsys export --type sqlite`"
        ) from None
    document = {"schemaVersion": 1, "deviceProperties": devices, "traceEvents": events}
    write_atomically(out, gzip.compress(json.dumps(document).encode(), 1))
    return out


def _events(base: sqlite3.Connection, tables: set[str]) -> Iterator[dict[str, Any]]:
    names = {row["id"]: row["value"] for row in base.execute("SELECT id, value FROM StringIds")}
    steps = 0
    for row in base.execute(
        "SELECT start, end, text, textId, globalTid FROM NVTX_EVENTS WHERE end IS NOT NULL ORDER BY start"
    ):
        name = row["text"] or names.get(row["textId"], "")
        if name == "step":
            name, steps = f"ProfilerStep#{steps}", steps + 1
        yield _event("user_annotation", name, row, _thread(row))
    for row in _rows(base, tables, "RUNTIME"):
        name = str(names.get(row["nameId"], "cuda")).split("_v")[0]
        yield _event("cuda_runtime", name, row, _thread(row), correlation=row["correlationId"])
    for row in _rows(base, tables, "KERNEL"):
        grid, block = ([row[f"{kind}{axis}"] for axis in "XYZ"] for kind in ("grid", "block"))
        yield _on_device("kernel", names.get(row["demangledName"], "kernel"), row, grid=grid, block=block)
    for row in _rows(base, tables, "MEMCPY"):
        ends = f"{_MEMORY.get(row['srcKind'], '?')} -> {_MEMORY.get(row['dstKind'], '?')}"
        name = f"Memcpy {_KINDS.get(row['copyKind'], 'copy')} ({ends})"
        yield _on_device("gpu_memcpy", name, row, bytes=row["bytes"])
    for row in _rows(base, tables, "MEMSET"):
        yield _on_device("gpu_memset", "Memset (Device)", row, bytes=row["bytes"])


def _rows(base: sqlite3.Connection, tables: set[str], kind: str) -> Iterator[sqlite3.Row]:
    table = f"CUPTI_ACTIVITY_KIND_{kind}"
    return iter(base.execute(f"SELECT * FROM {table} ORDER BY start") if table in tables else ())


def _on_device(cat: str, name: str, row: sqlite3.Row, **args: Any) -> dict[str, Any]:
    known = {"correlation": row["correlationId"], "device": row["deviceId"], "stream": row["streamId"]}
    return _event(cat, name, row, (row["deviceId"], row["streamId"]), **known, **args)


def _thread(row: sqlite3.Row) -> tuple[int, int]:
    """Process and thread, as nsys packs them into one number."""
    packed = int(row["globalTid"] or 0)
    return (packed >> 24) & 0xFFFFFF, packed & 0xFFFFFF


def _event(cat: str, name: str, row: sqlite3.Row, where: tuple[int, int], **args: Any) -> dict[str, Any]:
    start, end = int(row["start"]), int(row["end"])
    return {"ph": "X", "cat": cat, "name": str(name), "pid": where[0], "tid": where[1], "ts": start / 1e3,
            "dur": (end - start) / 1e3, "args": args}  # fmt: skip


def _devices(base: sqlite3.Connection, tables: set[str]) -> list[dict[str, Any]]:
    if "TARGET_INFO_GPU" not in tables:
        return []
    rows = base.execute("SELECT * FROM TARGET_INFO_GPU")
    return [
        {"id": row["id"], "name": row["name"], "totalGlobalMem": row["totalMemory"], "numSms": row["smCount"]}
        for row in (dict(found) for found in rows)
        if {"id", "name", "totalMemory", "smCount"} <= set(row)
    ]
