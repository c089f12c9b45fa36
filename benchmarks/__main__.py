"""All benchmarks in their short form, and one table of what they measured: `make bench`.

    python -m benchmarks [NAME ...]

The figures are those of this machine, now: beside other programs they say little. Ends within ten minutes on
two cores and leaves no file behind. A benchmark that takes longer is listed with the command that runs it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
TRACE = "data/recordings/traces/photos-baseline.pt.trace.json.gz"


@dataclass(frozen=True)
class Benchmark:
    """One script: the arguments of its short form, or why there is none."""

    name: str
    arguments: tuple[str, ...] = ()
    limit_s: float = 120.0
    lines: int = 1
    """Lines at the end of its output that hold figures."""
    instead: str = ""
    """What to run by hand, where no short form would mean anything."""


BENCHMARKS = (
    Benchmark("startup", lines=2),
    Benchmark("trace_fuzz", ("--count", "1000"), limit_s=90),
    Benchmark("trace_speed", (TRACE, "--rounds", "3"), lines=2),
    Benchmark("trace_growth", (TRACE, "--largest", "300000"), limit_s=90),
    Benchmark("harness_overhead", ("--rounds", "6"), limit_s=150, lines=3),
    Benchmark("watch_overhead", ("--pairs", "2"), limit_s=90),
    Benchmark("scripts", limit_s=150, lines=3),
    Benchmark("notebook_speed", limit_s=120, lines=5),
    Benchmark("cpu_speedup", instead="python benchmarks/cpu_speedup.py (about 10 minutes)"),
    Benchmark(
        "aa_and_power",
        instead="python benchmarks/aa_and_power.py --file groups.jsonl (about 1 hour; can be resumed)",
    ),
    Benchmark("replay_time", instead="python -m benchmarks.replay_time (on a quiet machine)"),
    Benchmark("fetch_cost", instead="python -m benchmarks.fetch_cost (on a quiet machine)"),
    Benchmark("fit_simulation", instead="python -m benchmarks.fit_simulation --help (an hour; needs timm)"),
    Benchmark("effects", instead="python -m benchmarks.effects (about an hour on a quiet machine)"),
    Benchmark("frameworks", instead="python -m benchmarks.frameworks (about 10 minutes on a quiet machine)"),
)
HELPERS = {"simulation_fit", "simulation_operators", "simulation_volta", "slowed"}
"""Modules here that are no benchmarks."""


def measure(benchmark: Benchmark) -> Iterator[str]:
    """Runs the short form in a process and a folder of its own; yields its last lines, or what went wrong."""
    with tempfile.TemporaryDirectory(prefix="perfkit-bench-") as folder:
        environ = {**os.environ, "PERFKIT_DATA": folder, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(ROOT / "benchmarks" / f"{benchmark.name}.py"), *benchmark.arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, cwd=ROOT, env=environ,
                timeout=benchmark.limit_s,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            yield f"n/a: not finished after {benchmark.limit_s:.0f} s"
            return
    if done.returncode:
        yield f"failed (exit status {done.returncode}): {(done.stderr or done.stdout).strip()[-300:]}"
        return
    yield from done.stdout.strip().splitlines()[-benchmark.lines :]


def main(names: list[str]) -> int:
    """Measures, prints the table; 1 if a benchmark failed."""
    known = {benchmark.name for benchmark in BENCHMARKS}
    if unknown := set(names) - known:
        print(f"no benchmark {', '.join(sorted(unknown))}. Allowed: {', '.join(sorted(known))}")
        return 2
    console, failed = Console(highlight=False), False
    table = Table(title="perfkit's own speed", title_justify="left")
    for column in ("benchmark", "figures", "took"):
        table.add_column(column, overflow="fold")
    for benchmark in BENCHMARKS:
        if benchmark.instead or (names and benchmark.name not in names):
            continue
        console.print(f"{benchmark.name} …", style="dim")
        start = time.monotonic()
        lines = list(measure(benchmark))
        failed |= lines[0].startswith("failed")
        table.add_row(benchmark.name, "\n".join(lines), f"{time.monotonic() - start:.0f} s")
    console.print(table, markup=False)
    for benchmark in BENCHMARKS:
        if benchmark.instead:
            console.print(f"left out, {benchmark.name}: {benchmark.instead}", markup=False)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
