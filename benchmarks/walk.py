"""A walk through chapters 00 to 08 as a learner takes it, headless, with noise on the machine if you like.

    python -m benchmarks.walk [--beside "python noise.py 7200"] [--runs 3]

Each chapter is executed at its usual preset. Before a cell that compares `my_train.py`, the chapter's line
goes into the file; a line that is not kept is taken out again. The command of --beside runs all the while.
For each chapter it prints the seconds and how far the file has climbed. Then the first file and the last are
run bare, in turn, still beside that command: one epoch each, with the start of Python and any compiling.
"""

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jupytext
from nbclient import NotebookClient

from docs.learner import Learner
from perfkit.additions.my_train import steps

ROOT = Path(__file__).parents[1]
CHAPTERS = ("00", "01", "02", "03", "04", "05", "06", "07", "08")
EPOCHS = "range(10)"
"""Of the course's file: ten minutes on two cores, so one epoch has to do."""


def walked(chapter: str, folder: Path) -> float:
    """Executes a chapter in a folder, and makes its edits: the seconds that it took."""
    (source,) = (ROOT / "notebooks" / "src").glob(f"{chapter}_*.py")
    notebook, learner, start = jupytext.read(source), Learner(folder, chapter), time.monotonic()
    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        notebook, timeout=1800, store_widget_state=False, resources=where, on_cell_execute=learner.before
    )
    client.execute(env={**os.environ, "PYTHONPATH": str(ROOT)})
    seconds = time.monotonic() - start
    learner.finish(notebook)
    return seconds


def climbed(folder: Path) -> str:
    """How far the file has climbed, by the comparisons of its versions."""
    versions, total = steps.load(folder / steps.NAME), 1.0
    for version in versions:
        total *= version.gain.ratio if version.gain else 1.0
    return f"{total:.2f} times as fast as the plain loop, {max(0, len(versions) - 1)} lines kept"


def bare(folder: Path, runs: int) -> str:
    """The first file and the last, each run by Python alone, in turn."""
    versions = steps.load(folder / steps.NAME)
    first, last = versions[0], versions[-1]
    seconds: dict[str, list[float]] = {"first": [], "last": []}
    for _ in range(runs):
        for name, version in (("first", first), ("last", last)):
            file, environment = folder / f"{name}.py", dict(os.environ)
            assert EPOCHS in version.text, "the file has other epochs than the course's"
            file.write_text(version.text.replace(EPOCHS, "range(1)"), encoding="utf-8")
            if version.switches.get("wait_policy") == "passive":
                environment["OMP_WAIT_POLICY"] = "PASSIVE"
            environment["PYTHONPATH"] = str(ROOT)
            start = time.monotonic()
            subprocess.run([sys.executable, file.name], cwd=folder, env=environment, check=True)
            seconds[name].append(time.monotonic() - start)
    middle = {name: statistics.median(each) for name, each in seconds.items()}
    ratio = middle["first"] / middle["last"]
    return f"bare: first {middle['first']:.1f} s, last {middle['last']:.1f} s, {ratio:.2f} times as fast"


def main() -> None:
    """Walks through the chapters, and prints a line for each."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--beside", help="a command that runs meanwhile, such as one that takes a core")
    parser.add_argument("--runs", type=int, default=3, help="bare runs of each file")
    chosen = parser.parse_args()
    os.environ.pop("PERFKIT_PRESET", None)
    with tempfile.TemporaryDirectory(prefix="perfkit-walk-") as data:
        os.environ["PERFKIT_DATA"] = data
        folder, total = Path(data) / "notebooks", 0.0
        folder.mkdir()
        beside = subprocess.Popen(shlex.split(chosen.beside)) if chosen.beside else None
        try:
            for chapter in CHAPTERS:
                seconds = walked(chapter, folder)
                total += seconds
                print(f"{chapter}  {seconds:6.0f} s  {climbed(folder)}", flush=True)
                if beside and beside.poll() is not None:
                    print("    the command beside it has ended: what follows is without it", flush=True)
            print(f"all {total:6.0f} s without reading")
            print(bare(folder, chosen.runs))
        finally:
            if beside:
                beside.terminate()
                beside.wait()


if __name__ == "__main__":
    main()
