"""NVIDIA Nsight Systems: the command for a recipe, and its SQLite export read as a trace like any other."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfkit.errors import PerfkitError, TraceError
from perfkit.process.child import child_environment

FIRST, LAST = 20, 30
"""The capture window, in steps: the article's."""


def command(program: list[str], out: Path, on_gpu: bool = True) -> list[str]:
    """`nsys profile` around a program that opens and closes the capture window itself.

    Args:
        program: what is run.
        out: the report, without its ending; `.sqlite` lies beside it afterwards.
        on_gpu: only there has a window a switch; else all is recorded.
    """
    window = ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"] if on_gpu else []
    return [
        "nsys", "profile", "--trace=cuda,nvtx,osrt,cudnn,cublas", *window, "--sample=none", "--export=sqlite",
        "--force-overwrite=true", f"--output={out}", *program,
    ]  # fmt: skip


def program(
    workload: str, options: Mapping[str, Any], recipe: Mapping[str, Any], device: str, seed: int
) -> list[str]:
    """What nsys is to run: this module, which trains to the end of the window."""
    told = {
        "workload": workload,
        "options": dict(options),
        "recipe": dict(recipe),
        "device": device,
        "seed": seed,
    }
    return [sys.executable, "-m", "perfkit.process.nsys", json.dumps(told)]


def record(asked: list[str], out: Path) -> Path:
    """Runs the command; the path of the SQLite file.

    Raises:
        PerfkitError: nsys is not installed, or failed.
    """
    if shutil.which(asked[0]) is None:
        raise PerfkitError(
            "nsys is not installed here",
            "Install NVIDIA Nsight Systems; the command it would run is shown above",
        )
    done = subprocess.run(asked, env=child_environment(), capture_output=True, text=True, check=False)
    file = out.with_suffix(".sqlite")
    if done.returncode or not file.exists():
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "it said nothing")
        raise PerfkitError(f"nsys failed: {last}", "Run the command by itself to see all it says")
    return file


def main() -> None:
    """Trains with named ranges; the CUDA profiler is on from step 20 to 30."""
    import torch

    from perfkit import workloads
    from perfkit.program import train
    from perfkit.program.recipe import Recipe

    told = json.loads(sys.argv[1])
    recipe = Recipe.from_dict(told["recipe"]).replace(nvtx_ranges=True)
    workload = workloads.load(told["workload"], told["options"])
    training = train.Training(workload, recipe, torch.device(told["device"]), told["seed"])
    batches = training.batches(train.epochs(training.loader))
    on_gpu = training.device.type == "cuda"
    for step in range(LAST):
        if step == FIRST and on_gpu:
            torch.cuda.profiler.start()
        training.step(batches)
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


# ---------------------------------------------------------------- reading


_NEEDED = {"StringIds", "NVTX_EVENTS"}
_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
"""CUPTI's numbers of copy kinds."""
_MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device"}


def convert(file: Path, out: Path) -> Path:
    """Writes an nsys SQLite export as a PyTorch-profiler trace, which all tables and views then read.

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
                raise TraceError(f"{file} is no nsys export: it lacks {', '.join(sorted(missing))}",
                                 "Export it with `nsys export --type sqlite`")  # fmt: skip
            events = list(_events(base, tables))
            devices = _devices(base, tables)
    except sqlite3.Error as problem:
        raise TraceError(
            f"{file} cannot be read: {problem}", "Export it with `nsys export --type sqlite`"
        ) from None
    document = {"schemaVersion": 1, "deviceProperties": devices, "traceEvents": events}
    part = out.with_name(f"{out.name}.part")
    part.write_bytes(gzip.compress(json.dumps(document).encode(), 1))
    part.replace(out)
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


if __name__ == "__main__":
    main()
