"""Is a learner's answer right? Runs it in the child, then the puzzle's checks on it; a sentence comes back.

The answer is the learner's own code, so nothing is forbidden. What is refused is an answer that only looks
fast: the checks compare with plain training (`bench`), read clocks of their own, and what an answer may have
replaced in torch or `time` is compared afterwards.
"""

import ast
import contextlib
import io
import itertools
import linecache
import math
import time
import traceback
import types
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.utils import data

from perfkit.errors import InvalidValue
from perfkit.puzzles import bench
from perfkit.worker.messages import Judged

torch.optim.SGD([torch.zeros(1)])  # torch wraps `step` when the first one is made
_ANSWER = "your_answer.py"
PRELUDE = {
    "torch": torch,
    "nn": nn,
    "F": functional,
    "np": np,
    "math": math,
    "time": time,
    "itertools": itertools,
    "contextlib": contextlib,
    "DataLoader": data.DataLoader,
    "Dataset": data.Dataset,
    "Sampler": data.Sampler,
}
"""Names that an answer finds, besides what it imports."""
_TOOLS = {
    name: tool for name, tool in vars(bench).items() if getattr(tool, "__module__", "") == bench.__name__
}
_TRUSTED: dict[Any, tuple[str, ...]] = {
    time: ("perf_counter", "perf_counter_ns", "monotonic", "time", "sleep"),
    torch: ("compile", "autocast", "equal", "allclose"),
    torch.testing: ("assert_close",),
    torch.Tensor: ("backward", "item", "to", "cpu", "detach"),
    torch.optim.SGD: ("step", "zero_grad"),
    torch.optim.Optimizer: ("zero_grad",),
    torch.cuda: ("synchronize",),
    functional: ("cross_entropy",),
    nn.Module: ("__call__", "parameters"),
    bench: tuple(_TOOLS),
}


def judge(checks: str, answer: str, starter: str = "") -> Judged:
    """Runs an answer and the checks on it.

    Args:
        checks: the puzzle's; they find the names that the answer defines, and the tools of `bench`.
        answer: Python source.
        starter: what the answer was made from; its names are in `original`.

    Returns:
        Whether it is right, and one sentence; if it is right, also what was proven.
    """
    proofs: list[str] = []
    before = {(place, name): getattr(place, name) for place, names in _TRUSTED.items() for name in names}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # what is computed is small, and threads would wait for each other
    silence = io.StringIO()  # what an answer prints must not fill the channel to the parent
    try:
        with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
            tools = {**PRELUDE, **_TOOLS, "proof": proofs.append, "source": answer, "ast": ast}
            tools["original"] = types.SimpleNamespace(**names_of(starter))
            exec(compile(checks, "<checks>", "exec"), {**tools, **names_of(answer)})
        replaced = [name for (place, name), thing in before.items() if getattr(place, name) is not thing]
        words = f"Your answer replaces `{' and '.join(replaced)}`: leave torch and the clock as they are"
        bench.require(not replaced, words)
    except bench.Wrong as wrong:
        return Judged(False, str(wrong))
    except (Exception, SystemExit) as problem:
        return Judged(False, _in_words(problem))
    finally:
        torch.set_num_threads(threads)
        for (place, name), thing in before.items():
            if getattr(place, name) is not thing:
                setattr(place, name, thing)
    return Judged(True, "Right", proofs)


def names_of(answer: str) -> dict[str, Any]:
    """What an answer defines."""
    linecache.cache[_ANSWER] = len(answer), None, answer.splitlines(keepends=True), _ANSWER
    module = types.ModuleType("your_answer")
    module.__dict__.update(PRELUDE)
    exec(compile(answer, _ANSWER, "exec"), module.__dict__)
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("__") and PRELUDE.get(name) is not value
    }


def _in_words(problem: BaseException) -> str:
    lines = [frame.line for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == _ANSWER]
    if isinstance(problem, SyntaxError):
        return f"Python cannot read line {problem.lineno} of your answer: {problem.msg}"
    if isinstance(problem, NameError) and not lines and problem.name:
        return f"Define `{problem.name}`, as the starter does, and hand it to `check`"
    text = next((line.strip() for line in str(problem).splitlines() if line.strip()), "")
    what = f"{type(problem).__name__}{f': {text}' if text else ''}"[:300]
    if lines:
        return f"`{lines[-1]}` raised {what}"
    return f"Your answer cannot be used ({what}): compare its parameters and what it returns with the starter"


def levers(source: str) -> dict[str, bool]:
    """Trains an epoch of a script with the capstone's `main(epochs)`.

    What a script enables only where a machine gains by it is enabled here: autocast, in bfloat16.

    Returns:
        For each lever whether it was seen in effect.
    """
    kinds: set[torch.dtype] = set()
    compiled: list[Any] = []
    autocast, batches = torch.autocast.__init__, data.DataLoader.__iter__

    def enabled(context: Any, *_: Any, **__: Any) -> None:
        autocast(context, "cpu", torch.bfloat16)

    def seen(loader: data.DataLoader[Any]) -> Iterator[Any]:
        for batch in batches(loader):
            kinds.add(batch[0].dtype)
            yield batch

    def as_it_is(function: Any = None, **_: Any) -> Any:
        if function is None:  # a decorator with arguments
            return as_it_is
        compiled.append(function)
        return function

    with (
        mock.patch.object(torch.autocast, "__init__", enabled),
        mock.patch.object(data.DataLoader, "__iter__", seen),
        mock.patch.object(torch, "compile", as_it_is),
        mock.patch.object(torch.nn.Module, "compile", as_it_is),
        mock.patch.object(torch.cuda, "is_available", return_value=False),
        mock.patch.object(Image, "open", side_effect=Image.open) as decoded,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        main = names_of(source).get("main")
        if main is None:
            raise InvalidValue("the script has no main(epochs)", "Keep it: the levers are seen in one epoch")
        computed = {forward.dtype for forward in bench.forwards(lambda: main(1))}
    return {
        "workers decode": not decoded.called,
        "batches are uint8": kinds == {torch.uint8},
        "layers compute in 16 bits": torch.bfloat16 in computed,
        "compiled": bool(compiled),
    }
