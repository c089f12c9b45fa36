"""Runs scripts in processes that are forked from one that has imported torch: seconds less for each."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_IMPORTED = ["torch", "torchvision.io", "torchvision.models", "torchvision.transforms.v2"]


def run(file: Path) -> str:
    """What a script prints, as `python file` in its folder does; perfkit's own folder is not on its path."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(_IMPORTED)
    process = forks.Process(target=_run, args=(file,))
    process.start()
    process.join()
    assert process.exitcode == 0, file.with_suffix(".err").read_text()
    return file.with_suffix(".out").read_text()


def _run(file: Path) -> None:
    for stream, suffix in ((1, ".out"), (2, ".err")):
        with file.with_suffix(suffix).open("w") as output:
            os.dup2(output.fileno(), stream)
    os.chdir(file.parent)
    multiprocessing.set_start_method("fork", force=True)  # of loader workers: they find the script in memory
    sys.argv = [file.name]
    sys.path[:] = [str(file.parent), *(path for path in sys.path if path not in ("", str(ROOT)))]
    runpy.run_path(file.name, run_name="__main__")
