"""Does each chapter's own panel show its effect on this machine? Measures it several times, counts verdicts.

    python -m benchmarks.effects [--times 10] [--limit 45] [--busy] [CHAPTER ...]

The panels are those of `notebooks/src`: every `name = pk.StagePanel(…)`, `LadderPanel` or `RecipePanel` that
is not of a recording. Each one is measured at the preset `quick` in a new data folder, as in a first session.
The last stage is compared with the first; parity is not checked. Target on two quiet cores without a GPU:
`faster` or `slower` (or predicted so, on a simulated device) in at least 9 of 10, in about a minute each.
With `--busy`, a process that only loops takes one core meanwhile: each verdict must be the quiet machine's,
or `disturbed`.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import dataclasses
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from perfkit import notebook as pk
from perfkit.ladder.stages import AGAIN
from perfkit.studies.climb import climb
from perfkit.studies.sources import Plan

SOURCES = Path(__file__).parents[1] / "notebooks" / "src"
CHAPTERS = ("02", "04", "05", "06", "07", "14")
DECIDED = ("faster", "slower")
PANELS = ("StagePanel", "LadderPanel", "RecipePanel")


def plans(source: Path) -> Iterator[tuple[str, Plan]]:
    """The plans of a chapter's panels, by the panels' names; `workload=name` refers to a text before them."""
    names: dict[str, object] = {"pk": pk}
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
            continue
        name, value = node.targets[0].id, node.value
        if isinstance(value, ast.Constant):
            names[name] = value.value
        elif isinstance(value, ast.Call) and getattr(value.func, "attr", "") in PANELS:
            plan = eval(ast.unparse(value), names).plan
            if not plan.recorded:
                yield name, plan


def outcome(plan: Plan, limit_s: float) -> tuple[str, float | None]:
    """The verdict of the last stage against the first, and its ratio."""
    preset = dataclasses.replace(plan.preset, limit_s=limit_s)
    runs = [run for run in climb(dataclasses.replace(plan, preset=preset)) if run.stage != AGAIN]
    ratio = runs[-1].speedup("baseline")
    return (ratio.verdict, ratio.ratio) if ratio else (f"{runs[-1].status}: {runs[-1].reason}", None)


def main() -> None:
    """Reads the options and measures."""
    parser = argparse.ArgumentParser(description="Verdicts of the chapters' own panels, counted.")
    parser.add_argument("chapters", nargs="*", default=CHAPTERS)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--limit", type=float, default=45.0, help="seconds after which a panel's rounds end")
    parser.add_argument("--busy", action="store_true", help="beside a process that loops on one core")
    given = parser.parse_args()
    with busy_core() if given.busy else contextlib.nullcontext():
        measure(given)


@contextlib.contextmanager
def busy_core() -> Iterator[None]:
    """A process that takes one core while the block runs."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure(given: argparse.Namespace) -> None:
    """Measures every panel of the chapters as often as asked, and prints a line for each."""
    os.environ["PERFKIT_PRESET"] = "quick"
    for chapter in given.chapters:
        for name, plan in plans(next(SOURCES.glob(f"{chapter}_*.py"))):
            verdicts, ratios, start = collections.Counter[str](), [], time.monotonic()
            for seed in range(given.times):
                with tempfile.TemporaryDirectory(prefix="perfkit-effects-") as folder:
                    os.environ["PERFKIT_DATA"] = folder
                    verdict, ratio = outcome(dataclasses.replace(plan, seed=seed), given.limit)
                verdicts[verdict] += 1
                ratios += [] if ratio is None else [ratio]
            each_s = (time.monotonic() - start) / given.times
            decided = sum(count for verdict, count in verdicts.items() if verdict.endswith(DECIDED))
            shown = [f"{verdict} {count}" for verdict, count in verdicts.most_common()]
            if ratios:
                middle = statistics.median(ratios)
                shown.append(f"ratio {min(ratios):.2f} to {max(ratios):.2f}, median {middle:.2f}")
            figures = f"decided {decided} of {given.times}; {each_s:.0f} s each; {'; '.join(shown)}"
            print(f"{chapter} {name}: {figures}", flush=True)


if __name__ == "__main__":
    main()
