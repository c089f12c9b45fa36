"""Does each chapter's own panel show its effect on this machine? Measures it several times, counts verdicts.

    python -m benchmarks.effects [--times 10] [--limit 45] [--busy] [CHAPTER ...]

The panels are those of `notebooks/src`: every `name = pk.StagePanel(…)`, `LadderPanel` or `RecipePanel` that
does not play a recording. Each is measured at the preset `quick` in a new data folder, and its last stage
compared with the first. Target on two quiet cores without a GPU: `faster` or `slower` in at least 9 of 10, in
about a minute each. With `--busy`, a process that only loops takes one core: each verdict must be the quiet
machine's, or `disturbed`.
"""

import argparse
import ast
import collections
import dataclasses
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import perfkit
from perfkit import notebook as pk
from perfkit.studies.sources import Plan

SOURCES = Path(__file__).parents[1] / "notebooks" / "src"
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


def outcome(plan: Plan, limit_s: float, seed: int) -> tuple[str, float | None]:
    """The verdict of the last stage against the first, and its ratio; measured as in a first session."""
    preset = dataclasses.replace(plan.preset, limit_s=limit_s)
    with tempfile.TemporaryDirectory(prefix="perfkit-bench-") as folder:
        os.environ["PERFKIT_DATA"] = folder
        runs = perfkit.climb(dataclasses.replace(plan, preset=preset, seed=seed))
    last = [run for run in runs if not run.is_again][-1]
    ratio = last.speedup("baseline")
    return (ratio.verdict, ratio.ratio) if ratio else (f"{last.status}: {last.reason}", None)


def main() -> None:
    """Measures every panel of the chapters as often as asked, and prints a line for each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("chapters", nargs="*", default=("02", "04", "05", "06", "07", "08"))
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--limit", type=float, default=45.0, help="seconds after which a panel's rounds end")
    parser.add_argument("--busy", action="store_true", help="beside a process that loops on one core")
    options = parser.parse_args()
    os.environ["PERFKIT_PRESET"] = "quick"
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if options.busy else None
    try:
        for chapter in options.chapters:
            for name, plan in plans(next(SOURCES.glob(f"{chapter}_*.py"))):
                outcomes = [outcome(plan, options.limit, seed) for seed in range(options.times)]
                verdicts = collections.Counter(verdict for verdict, _ in outcomes)
                ratios = [ratio for _, ratio in outcomes if ratio]
                middle = f"median ratio {statistics.median(ratios):.2f}" if ratios else "no ratio"
                print(f"{chapter} {name}: {dict(verdicts)}, {middle}", flush=True)
    finally:
        if busy:
            busy.kill()
            busy.wait()


if __name__ == "__main__":
    main()
