"""How long the history takes to open with 1,000 runs in the store, and with none of them indexed yet.

    python benchmarks/history.py

Target: the grid's rows are there in under 0.3 s. Needs no browser.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time

import msgspec

RUNS = 1000


def fill() -> None:
    """Stored runs like those of a recording."""
    from perfkit.results import recordings
    from perfkit.results.store import RunStore

    stages = [run for run in recordings.find("cpu-quick").runs if run.status == "ok"]
    measured = [run for run in stages if run.stage != "baseline_again"]  # which the history leaves out
    store = RunStore()
    for at in range(RUNS):
        run = measured[at % len(measured)]
        created = f"2026-11-{1 + at // 60:02d}T10:{at % 60:02d}:00+00:00"
        named = {"id": f"run-{at:04d}", "session": f"s{at // len(measured)}", "created": created}
        store.add(msgspec.structs.replace(run, **named))


def opened(rows: int) -> float:
    """Seconds until the grid has this number of rows; nothing is ticked, so that no picture is drawn."""
    from perfkit.notebook.history import RunHistory

    start = time.perf_counter()
    history = RunHistory(lambda: None, lambda text: None)
    history.show_stored("photos", lambda entry: False)
    while len(history.grid.rows) < rows:
        time.sleep(0.01)
    return time.perf_counter() - start


def main() -> None:
    """Prints the figures."""
    with tempfile.TemporaryDirectory(prefix="perfkit-bench-") as folder:
        os.environ["PERFKIT_DATA"] = folder
        from perfkit.results.store import RunStore

        start = time.perf_counter()
        fill()
        each = (time.perf_counter() - start) / RUNS
        opened(RUNS)  # imports
        seconds = [opened(RUNS) for _ in range(9)]
        RunStore().index.path.unlink()
        first, rest = opened(1), opened(RUNS)
        print(f"keeping a run, its line in the history included: {1e3 * each:.0f} ms")
        middle, best = statistics.median(seconds), min(seconds)
        print(f"a history of {RUNS:,} runs opens in {middle:.2f} s, best {best:.2f} s (target 0.3)")
        print(f"without its index: the first rows after {first:.2f} s, all of them {rest:.0f} s later")


if __name__ == "__main__":
    main()
