"""Read mutated trace files and count what becomes of them: an analysis, a clear error, or a defect.

    python benchmarks/trace_fuzz.py --count 100000 --seed 1

Exits with 1 if a file led to anything but an analysis or a TraceError, took longer than two seconds,
or gave a breakdown that does not sum to its steps.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from perfkit.trace import TraceError, analyse, lanes, load
from perfkit.trace.diagnosis import diagnose
from perfkit.trace.steps import breakdown

SLOW_S = 2.0
ODD: list[Any] = [
    None, True, -1, 0, 1e300, -5.5, 2**63, 2**70, "", "x", "NaN", "9" * 30, [], {}, [[]], [1, -2],
    float("nan"), float("inf"), "<script>", "\u0000", "\ud800", "x" * 5000, 1712195495520824.518,
]  # fmt: skip
TOKENS = [
    b"NaN",
    b"Infinity",
    b"\\U",
    b"\\x",
    b"\x00",
    b"\xff",
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"1e999",
    b"-",
    b"[[[[[" * 400,
]


def seed_trace() -> dict[str, Any]:
    """A small trace with an event of every kind."""
    made: list[dict[str, Any]] = []

    def add(cat: str, name: str, ts: float, dur: float, tid: Any = 1, pid: Any = 7, **args: Any) -> None:
        made.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )

    for step in range(2):
        at = 1000 + 100 * step
        add("user_annotation", f"ProfilerStep#{step}", at, 100)
        add("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at, 8)
        shapes = {
            "Input Dims": [[2, 3], []],
            "Input type": ["float", "int"],
            "Call stack": "a.py(3): f;b.py(4): g",
        }
        add("cpu_op", "aten::mm", at + 10, 30, **{"External id": 5, **shapes})
        add("cuda_runtime", "cudaLaunchKernel", at + 12, 2, correlation=step + 1, **{"External id": 5})
        sizes: dict[str, Any] = {"blocks per SM": 0.7, "est. achieved occupancy %": 40, "grid": [1, 1, 1]}
        add("kernel", "ampere_sgemm", at + 20, 30, 7, 0, correlation=step + 1, device=0, stream=7, **sizes)
        add("cuda_runtime", "cudaMemcpyAsync", at + 40, 3, correlation=step + 11)
        add(
            "gpu_memcpy",
            "Memcpy HtoD (Pageable -> Device)",
            at + 45,
            9,
            7,
            0,
            correlation=step + 11,
            bytes=4096,
        )
        add("cuda_driver", "cuLaunchKernel", at + 55, 1, 2, correlation=step + 21)
        add("kernel", "ncclDevKernel_AllReduce", at + 60, 9, 20, 0, correlation=step + 21, stream=20)
        add("cuda_runtime", "cudaStreamSynchronize", at + 70, 5)
        add("gpu_memset", "Memset (Device)", at + 80, 1, 7, 0)
        add("python_function", "train.py(5): main", at, 99)
        memory = {"Device Type": 1, "Device Id": 0, "Bytes": 64, "Addr": 99, "Total Allocated": 640}
        made.append({"ph": "i", "name": "[memory]", "pid": 7, "tid": 1, "ts": at + 11, "args": memory})
    made.append({"ph": "M", "name": "thread_name", "pid": 7, "tid": 1, "ts": 0, "args": {"name": "main"}})
    properties = [
        {"id": 0, "name": "GPU", "numSms": 80, "computeMajor": 8, "computeMinor": 0, "totalGlobalMem": 1}
    ]
    world = {"backend": "nccl", "rank": 0, "world_size": 2}
    return {"schemaVersion": 1, "deviceProperties": properties, "distributedInfo": world, "traceEvents": made}


def mutate_values(rng: random.Random, trace: dict[str, Any]) -> bytes:
    """Swap values for odd ones, drop keys, repeat, shuffle and remove events."""
    document = json.loads(json.dumps(trace))
    for _ in range(rng.randint(1, 6)):
        events = document.get("traceEvents")
        target = (
            rng.choice(events) if isinstance(events, list) and events and rng.random() < 0.9 else document
        )
        if isinstance(target, dict) and isinstance(target.get("args"), dict) and rng.random() < 0.4:
            target = target["args"]
        if not isinstance(target, dict) or not target:
            continue
        key = rng.choice(list(target))
        action = rng.random()
        if action < 0.6:
            target[key] = rng.choice(ODD) if rng.random() < 0.7 else rng.randint(-2000, 2000) / 7
        elif action < 0.75:
            del target[key]
        elif action < 0.85 and isinstance(events, list) and events:
            events.insert(rng.randrange(len(events) + 1), json.loads(json.dumps(rng.choice(events))))
        elif action < 0.95 and isinstance(events, list) and events:
            del events[rng.randrange(len(events))]
        elif isinstance(events, list):
            rng.shuffle(events)
    chosen = document.get("traceEvents") if rng.random() < 0.1 else document
    layout = rng.choice([None, 1])  # 1: events are set apart as the profiler does it, so read in pieces
    text = json.dumps(chosen, ensure_ascii=rng.random() < 0.9, indent=layout)
    return text.encode(errors="surrogatepass")


def mutate_bytes(rng: random.Random, text: bytes) -> bytes:
    """Flip, insert, cut, repeat bytes anywhere."""
    data = bytearray(text)
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        at = rng.randrange(len(data) + 1)
        action = rng.random()
        if action < 0.35 and at < len(data):
            data[at] = rng.randrange(256)
        elif action < 0.7:
            data[at:at] = rng.choice(TOKENS)
        elif action < 0.85:
            del data[at : at + rng.randint(1, 200)]
        else:
            del data[at:]
        if not data:
            break
    return bytes(data)


def mutant(rng: random.Random, trace: dict[str, Any]) -> bytes:
    """One mutated file: values, bytes or both, some of them packed, some packed and then damaged."""
    text = mutate_values(rng, trace) if rng.random() < 0.6 else json.dumps(trace).encode()
    if rng.random() < 0.5:
        text = mutate_bytes(rng, text)
    if rng.random() < 0.25:
        text = gzip.compress(text, 1)
        text = mutate_bytes(rng, text) if rng.random() < 0.6 else text
    return text


def outcome(path: Path) -> str:
    """Read one file as a user would: "analysis", "banner" or "error"; anything else raises."""
    try:
        trace = load(path)
    except TraceError as error:
        if not error.remedy:
            raise RuntimeError("an error without a remedy") from error
        return "error"
    found = analyse(trace)
    found.to_json(diagnose(found))
    rank = trace.ranks[0]
    parts, _ = breakdown(rank.steps, rank.activity.layers)
    assert parts.sum(axis=0).tolist() == (rank.steps.end - rank.steps.start).tolist(), (
        "parts do not sum to the step"
    )
    if rank.steps.names:
        lanes(trace, 0)
    return "banner" if found.health else "analysis"


def main() -> int:
    """Run the fuzz and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="files to read")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng, trace, counts, worst = random.Random(options.seed), seed_trace(), Counter[str](), 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz.pt.trace.json"
        for number in range(options.count):
            data = mutant(rng, trace)
            path.write_bytes(data)
            began = time.perf_counter()
            try:
                counts[outcome(path)] += 1
            except Exception:
                counts["defect"] += 1
                kept = Path(tempfile.gettempdir()) / f"fuzz-{options.seed}-{number}.json"
                kept.write_bytes(data)
                if counts["defect"] <= 10:
                    print(f"file {number} (kept as {kept})\n{traceback.format_exc(limit=-4)}")
            took = time.perf_counter() - began
            counts["slow"] += took > SLOW_S
            worst = max(worst, took)
    print(f"{options.count} files, seed {options.seed}: {dict(counts)}; slowest {worst:.3f} s")
    return int(counts["defect"] + counts["slow"] > 0)


if __name__ == "__main__":
    sys.exit(main())
