"""`import perfkit` and `perfkit --help`: seconds of a fresh process, best and median of several.

    python benchmarks/startup.py

Targets: under 0.2 s with torch not imported; under 0.5 s.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import perfkit": ["-c", "import perfkit, sys; assert 'torch' not in sys.modules"],
    "perfkit --help": ["-m", "perfkit", "--help"],
}


def main() -> None:
    """Times each command nine times."""
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(9):
        for name, arguments in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
            taken[name].append(time.perf_counter() - start)
    for name, seconds in taken.items():
        print(f"{name}: best {min(seconds):.3f} s, median {statistics.median(seconds):.3f} s")


if __name__ == "__main__":
    main()
