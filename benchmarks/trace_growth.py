"""How time and memory of a full analysis grow with the number of events: the growth exponent.

    python benchmarks/trace_growth.py TRACE.pt.trace.json.gz --largest 5000000

The steps of a real trace are repeated, shifted in time and with new correlation ids, to make larger
ones. Every size is analysed in a fresh process; the exponent is the slope of log processor time (other work
on the machine does not bend it) over log events.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import json, resource, sys, time
from perfkit.trace import analyse, load
began, clock = time.process_time(), time.perf_counter()
trace = load(sys.argv[1])
loaded = time.process_time() - began
found = analyse(trace)
took, wall = time.process_time() - began, time.perf_counter() - clock
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
if sys.platform == "linux":  # ru_maxrss begins with what the parent had
    peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
print(json.dumps([wall, took, loaded, peak, len(found.steps)]))
"""
TIME = re.compile(rb'"ts": (\d+)')
NUMBER = re.compile(rb'"(correlation|[Ee]xternal id|id)": (\d+)')


def repeat(text: bytes, times: int, path: Path) -> int:
    """Write the trace's events `times` times, one after the other, and return their number."""
    start = text.index(b"{", text.index(b'"traceEvents"'))
    end = text.rindex(b"}", 0, text.rindex(b"]")) + 1
    head, body, tail = text[:start], text[start:end], text[end:]
    stamps = [int(value) for value in TIME.findall(body)]
    span = max(stamps) - min(stamps) + 1_000_000
    ids = max(int(value) for _, value in NUMBER.findall(body)) + 1
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(head)
        for copy in range(times):
            shift, offset = copy * span, copy * ids
            moved = TIME.sub(lambda m, by=shift: b'"ts": %d' % (int(m[1]) + by), body)  # type: ignore[misc]
            moved = NUMBER.sub(lambda m, by=offset: b'"%s": %d' % (m[1], int(m[2]) + by), moved)  # type: ignore[misc]
            file.write((b",\n  " if copy else b"") + moved)
        file.write(tail)
    return len(stamps) * times


def main() -> None:
    """Measure sizes up to the largest, each about four times the one before."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path, help="a trace with whole microseconds")
    parser.add_argument("--largest", type=int, default=5_000_000, help="events")
    options = parser.parse_args()
    text = gzip.decompress(options.trace.read_bytes())
    events = len(TIME.findall(text))
    most = max(1, round(options.largest / events))
    sizes = sorted({1, *(round(most / 4**power) for power in range(8) if most / 4**power >= 2)})
    points: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for times in sizes:
            path = Path(folder) / "grown.pt.trace.json.gz"
            count = repeat(text, times, path)
            command = [sys.executable, "-c", PROGRAM, str(path)]
            best: list[float] = []
            for _ in range(3 if times < 8 else 1):
                done = subprocess.run(
                    command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1]
                )
                found = json.loads(done.stdout)
                best = min(best, found, key=lambda row: row[1]) if best else found
            wall, took, loaded, peak, steps = best
            points.append((math.log(count), math.log(took)))
            print(
                f"{count:>9,} events {int(steps):>4} steps: {took:6.2f} s of processor (load {loaded:.2f}), "
                f"{wall:.2f} s by the clock, peak {peak:,.0f} MiB",
                flush=True,
            )
    if len(points) > 1:
        mean_x, mean_y = (sum(axis) / len(points) for axis in zip(*points, strict=True))
        slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum(
            (x - mean_x) ** 2 for x, _ in points
        )
        print(f"growth exponent {slope:.3f} (target at most 1.1)")


if __name__ == "__main__":
    main()
