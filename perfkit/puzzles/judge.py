"""Is a learner's answer right? Runs it in the child, then the puzzle's checks on it; a sentence comes back.

The answer is the learner's own code, so nothing is forbidden. What is refused is an answer that only looks
fast: the checks compare with plain training (`worker.bench`), read clocks of their own, and what an answer
may have replaced in torch or `time` is compared afterwards.
"""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import linecache
import math
import time
import traceback
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils import data

from perfkit.puzzles import bench
from perfkit.puzzles.bench_devices import AsyncGpu, SimulatedGpu, VirtualTraining
from perfkit.worker.messages import Judged

torch.optim.SGD([torch.zeros(1)])  # torch wraps `step` when the first one is made
_ANSWER, _CHECKS = "your_answer.py", "<checks>"
PRELUDE = {
    "torch": torch, "nn": nn, "F": functional, "np": np, "math": math, "time": time, "itertools": itertools,
    "contextlib": contextlib, "DataLoader": data.DataLoader, "Dataset": data.Dataset, "Sampler": data.Sampler,
}  # fmt: skip
"""Names that an answer finds, besides what it imports."""
_TOOLS = {
    tool.__name__: tool
    for tool in (
        AsyncGpu, SimulatedGpu, VirtualTraining, bench.Noise, bench.Numbers, bench.compare, bench.data,
        bench.network, bench.one_rank, bench.operators, bench.plain_loop, bench.plain_step, bench.require,
        bench.same, bench.saved_bytes, bench.train, bench.trains_the_same, bench.waits,
    )
}  # fmt: skip
_TRUSTED: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (time, ("perf_counter", "perf_counter_ns", "monotonic", "time", "sleep")),
    (torch, ("compile", "autocast", "equal", "allclose")),
    (torch.testing, ("assert_close",)),
    (torch.Tensor, ("backward", "item", "to", "cpu", "detach")),
    (torch.optim.SGD, ("step", "zero_grad")),
    (torch.optim.Optimizer, ("zero_grad",)),
    (torch.cuda, ("synchronize",)),
    (functional, ("cross_entropy",)),
    (nn.Module, ("__call__", "parameters")),
    *((module, tuple(name for name in vars(module) if not name.startswith("__"))) for module in (bench,)),
)  # fmt: skip


def judge(checks: str, answer: str) -> Judged:
    """Runs an answer and the checks on it.

    Args:
        checks: the puzzle's; they find the names that the answer defines, and the tools of `bench`.
        answer: Python source.

    Returns:
        Whether it is right, and one sentence; if it is right, also what was proven.
    """
    proofs: list[str] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # what is computed is small, and threads would wait for each other
    before = [(place, name, getattr(place, name)) for place, names in _TRUSTED for name in names]
    try:
        with _quiet():
            names = _run_answer(answer)
            scope = {**PRELUDE, **_TOOLS, **names, "proof": proofs.append, "source": answer, "ast": ast}
            exec(compile(checks, _CHECKS, "exec"), scope)
        replaced = [name for place, name, own in before if getattr(place, name) is not own]
        bench.require(
            not replaced,
            f"Your answer replaces `{' and '.join(replaced)}`: leave torch and the clock as they are",
        )
    except bench.Wrong as wrong:
        return Judged(False, str(wrong))
    except NameError as problem:
        if _line(problem) is None and isinstance(problem.name, str):
            return Judged(False, f"Define `{problem.name}`, as the starter does, and hand it to `check`")
        return Judged(False, _in_words(problem))
    except SyntaxError as problem:
        return Judged(False, f"Python cannot read line {problem.lineno} of your answer: {problem.msg}")
    except (Exception, SystemExit) as problem:
        return Judged(False, _in_words(problem))
    finally:
        torch.set_num_threads(threads)
        for place, name, own in before:
            if getattr(place, name) is not own:
                setattr(place, name, own)
    return Judged(True, "Right", proofs)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What an answer prints is shown to nobody; it must not fill the channel to the parent either."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _run_answer(answer: str) -> Mapping[str, Any]:
    linecache.cache[_ANSWER] = len(answer), None, answer.splitlines(keepends=True), _ANSWER
    module = types.ModuleType("your_answer")
    module.__dict__.update(PRELUDE)
    exec(compile(answer, _ANSWER, "exec"), module.__dict__)
    names = {name: value for name, value in vars(module).items() if not name.startswith("__")}
    return {name: value for name, value in names.items() if PRELUDE.get(name) is not value}


def _line(problem: BaseException) -> str | None:
    """The innermost line of the answer that an exception came through."""
    lines = [frame.line for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == _ANSWER]
    return lines[-1] if lines else None


def _in_words(problem: BaseException) -> str:
    text = next((line.strip() for line in str(problem).splitlines() if line.strip()), "")
    what = f"{type(problem).__name__}{f': {text}' if text else ''}"[:300]
    if line := _line(problem):
        return f"`{line}` raised {what}"
    return f"Your answer cannot be used ({what}): compare its parameters and what it returns with the starter"
