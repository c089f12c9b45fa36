"""Grows a trace to millions of events, then reads it: time and peak memory beside gunzip and one JSON decode.

python -m benchmarks.trace_size TRACE.pt.trace.json.gz [--events 2750000]
"""

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

MEASURED = r"""
import gzip, json, re, sys, time
from pathlib import Path
import msgspec
from perfkit.additions.trace.table import Trace
from perfkit.additions.trace.analysis import analyse
peak = lambda: 1024 * int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
before, began = peak(), time.perf_counter()
{work}
print(json.dumps({{"seconds": time.perf_counter() - began, "bytes": peak() - before}}))
"""
DECODE = "msgspec.json.decode(gzip.open(sys.argv[1]).read())"
ANALYSE = "loaded = Trace(sys.argv[1]); analyse(loaded)"


def grown(source: dict[str, Any], events: int) -> Iterator[bytes]:
    """The trace's text, its events repeated with later times, new correlation ids and step numbers."""
    timed = [event for event in source["traceEvents"] if event.get("ph") != "M"]
    begin = min(event["ts"] for event in timed if event["ph"] == "X")
    length = max(event["ts"] + event.get("dur", 0) for event in timed if event["ph"] == "X") - begin + 1000
    head = {name: value for name, value in source.items() if name != "traceEvents"}
    head["traceEvents"] = [event for event in source["traceEvents"] if event.get("ph") == "M"]  # at the end
    yield msgspec.json.encode(head).removesuffix(b"]}")
    for copy in range(-(-events // len(timed))):
        for event in timed:
            again = {**event, "ts": event["ts"] + copy * length}
            if event["name"].startswith("ProfilerStep#"):
                again["name"] = f"ProfilerStep#{int(event['name'][13:]) + 1000 * copy}"
            ids = {
                key: value + (copy << 24)
                for key, value in event.get("args", {}).items()
                if key.lower() in ("correlation", "external id") and isinstance(value, int) and value >= 0
            }
            yield b"," + msgspec.json.encode({**again, "args": {**event.get("args", {}), **ids}})
    yield b"]}"


def measured(work: str, path: Path) -> tuple[float, float]:
    """Seconds and bytes above the interpreter's own, in a process of its own."""
    code = MEASURED.format(work=work)
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout)
    return figures["seconds"], figures["bytes"]


def main() -> None:
    """Prints a line for the trace as it is, and one for the grown trace."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--events", type=int, default=2_750_000)
    options = parser.parse_args()
    source = msgspec.json.decode(gzip.decompress(options.trace.read_bytes()))
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder) / "grown.pt.trace.json.gz"
        with gzip.open(large, "wb", compresslevel=3) as file:
            for text in grown(source, options.events):
                file.write(text)
        for path, count in ((options.trace, len(source["traceEvents"])), (large, options.events)):
            print(f"{count:,} events, {path.stat().st_size / 1e6:.0f} MB")
            for name, work in (("gunzip + decode", DECODE), ("perfkit", ANALYSE)):
                seconds, size = measured(work, path)
                print(
                    f"  {name:16}{seconds:7.1f} s {size / 1e9:7.2f} GB {size / count / 1e3:6.2f} KB an event"
                )


if __name__ == "__main__":
    main()
