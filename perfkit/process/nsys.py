"""NVIDIA Nsight Systems: the command that records a recipe. `trace.nsight` reads what it wrote."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perfkit.errors import PerfkitError
from perfkit.process.child import child_environment

FIRST, LAST = 20, 30
"""The capture window, in steps: the article's."""


def command(program: list[str], out: Path, on_gpu: bool = True) -> list[str]:
    """`nsys profile` around a program that opens and closes the capture window itself.

    Args:
        program: what is run.
        out: the report, without its extension; a `.sqlite` file is written beside it.
        on_gpu: whether the capture window can be opened and closed; else everything is recorded.
    """
    window = ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"] if on_gpu else []
    return [
        "nsys", "profile", "--trace=cuda,nvtx,osrt,cudnn,cublas", *window, "--sample=none", "--export=sqlite",
        "--force-overwrite=true", f"--output={out}", *program,
    ]  # fmt: skip


def program(
    workload: str, options: Mapping[str, Any], recipe: Mapping[str, Any], device: str, seed: int
) -> list[str]:
    """What nsys is to run: this module, which trains to the end of the window."""
    training = {
        "workload": workload, "options": dict(options), "recipe": dict(recipe), "device": device, "seed": seed
    }  # fmt: skip
    return [sys.executable, "-m", "perfkit.process.nsys", json.dumps(training)]


def record(command: list[str], out: Path) -> Path:
    """Runs the command; the path of the SQLite file.

    Raises:
        PerfkitError: nsys is not installed, or failed.
    """
    if shutil.which(command[0]) is None:
        raise PerfkitError(
            "nsys is not installed here",
            "Install NVIDIA Nsight Systems; the command it would run is shown above",
        )
    run = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=False)
    file = out.with_suffix(".sqlite")
    if run.returncode or not file.exists():
        last = next((line for line in reversed(run.stderr.splitlines()) if line.strip()), "without a message")
        raise PerfkitError(f"nsys failed: {last}", "Run the command by itself to see all of its output")
    return file


def main() -> None:
    """Trains with named ranges; the CUDA profiler is on from step 20 to 30."""
    import torch

    from perfkit import train, workloads
    from perfkit.recipe import Recipe

    spec = json.loads(sys.argv[1])
    recipe = Recipe.from_dict(spec["recipe"]).replace(nvtx_ranges=True)
    workload = workloads.load(spec["workload"], spec["options"])
    training = train.Training(workload, recipe, torch.device(spec["device"]), spec["seed"])
    batches = training.batches(train.epochs(training.loader))
    on_gpu = training.device.type == "cuda"
    for step in range(LAST):
        if step == FIRST and on_gpu:
            torch.cuda.profiler.start()
        training.step(batches)
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    main()
