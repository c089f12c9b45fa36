"""`make bench` runs every benchmark, or says how to run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_benchmark_escapes_the_table() -> None:
    script = (
        "from benchmarks.__main__ import BENCHMARKS, HELPERS; print(*(b.name for b in BENCHMARKS), *HELPERS)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = {file.stem for file in (ROOT / "benchmarks").glob("*.py")} - {"__main__"}
    assert len(files) >= 10
    assert set(done.stdout.split()) == files


def test_an_unknown_name_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "absent"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no benchmark absent" in done.stdout
