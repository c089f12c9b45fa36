"""Full analysis of a trace, cold from its file: ours against HolisticTraceAnalysis, in one interleaved run.

    python benchmarks/trace_speed.py TRACE.pt.trace.json.gz --hta /path/to/python-with-hta

Every measurement is a fresh process that imports first and then works once; the two sides alternate.
Ours does everything of `analyse`; HTA does load, temporal and kernel breakdown. Without --hta: n/a.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

OURS = """
import json, resource, sys, time
from perfkit.trace.diagnosis import diagnose
from perfkit.trace.analysis import analyse, load
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.perf_counter()
found = analyse(load(sys.argv[1]))
found.to_json(diagnose(found))
"""
HTA = """
import contextlib, io, json, logging, resource, sys, time, warnings
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
logging.disable(logging.CRITICAL)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.perf_counter()
with contextlib.redirect_stdout(io.StringIO()):
    found = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
    found.get_temporal_breakdown(visualize=False)
    found.get_gpu_kernel_breakdown(visualize=False)
"""
RESULT = """
took = time.perf_counter() - began
print(json.dumps([took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, before]))
"""


def measure(python: str, program: str, trace: Path) -> tuple[float, float, float]:
    """One fresh process: seconds, peak MiB of the process, MiB before the work began."""
    command = [python, "-c", program + RESULT, str(trace)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    seconds, peak, before = json.loads(done.stdout.splitlines()[-1])
    return seconds, peak / 1024, before / 1024


def line(name: str, rows: list[tuple[float, float, float]]) -> str:
    """Median seconds with range, peak memory, and memory before the work."""
    seconds, peak, before = zip(*rows, strict=True)
    spread = f"({min(seconds):.3f}–{max(seconds):.3f}, n={len(rows)})"
    memory = f"peak {max(peak):.0f} MiB, {max(before):.0f} before"
    return f"{name:8} {statistics.median(seconds):.3f} s {spread}  {memory}"


def main() -> None:
    """Measure both sides in turns and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--hta", default="", help="a python that can import hta")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    trace = options.trace.resolve()
    ours: list[tuple[float, float, float]] = []
    theirs: list[tuple[float, float, float]] = []
    for _ in range(options.rounds):
        ours.append(measure(sys.executable, OURS, trace))
        if options.hta:
            theirs.append(measure(options.hta, HTA, trace))
    print(line("perfkit", ours))
    if not theirs:
        print("HTA      n/a (no --hta)")
        return
    print(line("HTA", theirs))
    ratio = statistics.median(row[0] for row in theirs) / statistics.median(row[0] for row in ours)
    memory = max(row[1] for row in ours) / max(row[1] for row in theirs)
    print(f"time: HTA / perfkit = {ratio:.1f} (target 6, stretch 10)")
    print(f"peak memory: perfkit / HTA = {memory:.2f} (target 0.5)")


if __name__ == "__main__":
    main()
