"""Runs scripts in processes that are forked from one that has imported torch: seconds less for each."""

import multiprocessing
import os
import runpy
import sys
from pathlib import Path

import msgspec

from perfkit.scripts.behaviour import Behaviour

ROOT = Path(__file__).parents[2]
_IMPORTED = ["torch", "torchvision.io", "torchvision.models", "torchvision.transforms.v2"]


def run(file):
    """What a script prints, as `python file` in its folder does; perfkit's own folder is not on its path."""
    _fork(_run, file)
    return file.with_suffix(".out").read_text()


def _fork(target, file, *more):
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(_IMPORTED)
    process = forks.Process(target=target, args=(file, *more))
    process.start()
    process.join()
    assert process.exitcode == 0, file.with_suffix(".err").read_text()


def _run(file):
    for stream, suffix in ((1, ".out"), (2, ".err")):
        with file.with_suffix(suffix).open("w") as output:
            os.dup2(output.fileno(), stream)
    os.chdir(file.parent)
    multiprocessing.set_start_method("fork", force=True)  # of loader workers: they find the script in memory
    sys.argv = [file.name]
    sys.path[:] = [str(file.parent), *(path for path in sys.path if path not in ("", str(ROOT)))]
    runpy.run_path(file.name, run_name="__main__")


def behaviour(file, steps=40):
    """What the first steps of a script do."""
    _fork(_observe, file, steps)
    return msgspec.json.decode(file.with_suffix(".json").read_bytes(), type=Behaviour)


def _observe(file, steps):
    from perfkit.scripts.outputs import Outputs
    from perfkit.scripts.questions import Questions
    from perfkit.scripts.script import Script

    class Observer:
        def on_steps(self, ended):
            if script.steps.count >= steps:
                file.with_suffix(".json").write_bytes(msgspec.json.encode(questions.behaviour()))
                sys.exit()

    settings = {"toggles": {}, "scratch": "", "seed": 0, "loaders": [], "losses": 64, "witness": True}
    script = Script(settings, Outputs(str(file.parent)))
    questions = Questions(script, print)
    script.parts.append(Observer())
    _run(file)
