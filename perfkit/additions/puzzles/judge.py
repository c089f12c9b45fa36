"""Judges a learner's answer in a child process: runs it, then the puzzle's checks; returns a sentence.

The answer is the learner's own code, so nothing is forbidden. But an answer that only looks fast is refused:
the checks compare it with plain training (`bench`), and read their own clocks.
"""

import contextlib
import functools
import importlib
import io
import linecache
import sys
import traceback
import types
from collections.abc import Callable

import torch

from perfkit.additions.puzzles import PuzzleVerdict, folder
from perfkit.errors import InvalidValue
from perfkit.show.units import clean

_ANSWER = "your_answer.py"
_SEEN = ". Of a notebook's cells, a check sees imports, functions, classes, and constants that are literals"
PRELUDE: dict[str, object] = {}  # names that an answer can use without importing them
exec(
    """
import contextlib, itertools, math, time
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Sampler
""",
    PRELUDE,
)


@functools.cache
def bench() -> types.ModuleType:
    """The tools of the checks, in the same folder: `data/puzzles/bench.py`."""
    sys.path.insert(0, str(folder()))
    return importlib.import_module("bench")


class Judged(types.ModuleType):
    """What checks import the answer's names from; `original` has those of the starter, `proof` notes one."""

    def __init__(self, answer: str, starter: str, proof: Callable[[str], None]) -> None:
        super().__init__("judged")
        self.original = types.SimpleNamespace(**names_of(starter))
        self.proof = proof
        vars(self).update(names_of(answer))

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise bench().Wrong(f"Define `{name}`, as the starter does, and pass it to `check`")


def judge(checks: str, answer: str, starter: str = "") -> PuzzleVerdict:
    """Runs an answer, then the source of its checks. A right answer comes with proofs."""
    proofs: list[str] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the work is small, and threads would wait for each other
    silence = io.StringIO()  # an answer's output must not fill the channel to the parent
    try:
        with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
            bench()  # which the checks import
            sys.modules["judged"] = Judged(answer, starter, proofs.append)
            exec(compile(checks, "<checks>", "exec"), {"__name__": "checks"})
    except bench().Wrong as wrong:
        return PuzzleVerdict(False, str(wrong))
    except (Exception, SystemExit) as problem:
        return PuzzleVerdict(False, _in_words(problem))
    finally:
        sys.modules.pop("judged", None)
        torch.set_num_threads(threads)
    return PuzzleVerdict(True, "Right", proofs)


def names_of(answer: str) -> dict[str, object]:
    """The names that an answer defines."""
    linecache.cache[_ANSWER] = len(answer), None, answer.splitlines(keepends=True), _ANSWER
    names = {**PRELUDE, "__name__": "your_answer"}
    exec(compile(answer, _ANSWER, "exec"), names)
    return {name: own for name, own in names.items() if name[:2] != "__" and PRELUDE.get(name) is not own}


def _in_words(problem: BaseException) -> str:
    lines = [frame.line for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == _ANSWER]
    if isinstance(problem, SyntaxError):
        return f"Python cannot read line {problem.lineno} of your answer: {problem.msg}"
    what = clean(f"{type(problem).__name__}: {problem}", 300)
    if lines:
        return f"`{lines[-1]}` raised {what}{_SEEN if type(problem) is NameError else ''}"
    return f"Your answer cannot be used ({what}): compare its parameters and what it returns with the starter"


def levers(source: str) -> dict[str, bool]:
    """Whether each lever of the capstone is in effect in a script with `main(epochs)`."""

    def main_of() -> object:
        main = names_of(source).get("main")
        if main is None:
            raise InvalidValue("the script has no main(epochs)", "Keep it: the levers are seen in one epoch")
        return main

    return bench().levers(main_of)  # type: ignore[no-any-return]
