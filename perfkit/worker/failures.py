"""Exceptions and exit codes in words: what kind of failure it is, what happened, and what to do."""

from __future__ import annotations

import os
import re
import signal
import sysconfig
import traceback
from pathlib import Path

from perfkit.errors import PerfkitError, RunFailed
from perfkit.worker.messages import Failure

_PACKAGE = Path(__file__).parents[1]
_LIBRARIES = tuple(
    str(folder) + os.sep for folder in (_PACKAGE, *map(sysconfig.get_path, ("stdlib", "platstdlib")))
)
_WORKLOADS = str(_PACKAGE / "workloads") + os.sep
_FILES = ("train.py", "prefetch.py", "ranks.py", "checkpointing.py")
_PROGRAM = tuple(str(_PACKAGE / name) for name in _FILES)


_LOST_RANK = re.compile(
    r"gloo|NCCL|c10d|Connection (closed|reset)|DistBackend|ProcessGroup|TCPStore", re.IGNORECASE
)


def is_users(filename: str) -> bool:
    """Whether a file is a workload or other code of the user's, rather than a library's or perfkit's own."""
    if filename.startswith(_WORKLOADS):
        return True
    installed = any(part in filename for part in ("site-packages", "dist-packages"))
    return not (installed or filename.startswith(("<", *_LIBRARIES)))


def is_program(filename: str) -> bool:
    """Whether a file is one that the training program consists of."""
    return filename in _PROGRAM


def as_error(failure: Failure) -> RunFailed:
    """The error to raise for a failure that a process reported."""
    error = RunFailed(failure.what, failure.remedy)
    error.kind = failure.kind
    return error


def is_lost_rank(text: str) -> bool:
    """Whether a rank failed because it lost another one, by what it says."""
    return bool(_LOST_RANK.search(text))


def explain(problem: BaseException) -> Failure:
    """An exception in words."""
    if isinstance(problem, PerfkitError):
        return Failure(type(problem).__name__, problem.what, problem.remedy)
    text = str(problem).strip()
    what = f"{_gist(problem, text)}{_place(problem, text)}"
    full = f"{type(problem).__module__}.{type(problem).__qualname__}: {text}"
    for kind, pattern, remedy in _KNOWN:
        if re.search(pattern, full, re.DOTALL):
            return Failure(kind, f"{kind}: {what}", remedy)
    remedy = "Fix the error at that line; other stages are unaffected"
    return Failure("exception", f"the training raised {type(problem).__name__}: {what}", remedy)


def explain_exit(code: int | None, last_line: str = "") -> Failure:
    """How a process ended that reported no failure itself.

    Args:
        code: its exit status, negative for a signal; None if it is not known.
        last_line: the last line of its log.
    """
    name = signal.Signals(-code).name if code is not None and code < 0 else ""
    if name == "SIGKILL":
        return Failure(
            _OUT_OF_MEMORY,
            "the measuring process was killed, most likely because memory ran out",
            "Lower batch_size or workers, or give the machine (or container) more memory",
        )
    if name == "SIGBUS":
        return Failure(
            "failed", "the measuring process died of a bus error: shared memory is full", _ENLARGE_SHM
        )
    how = f"was ended by {name}" if name else f"ended with exit status {code}"
    last = f" (last line of its log: {last_line})" if last_line else ""
    return Failure(
        "failed", f"the measuring process {how}{last}", "Run `perfkit doctor`; try workers=0 to see the cause"
    )


def _gist(problem: BaseException, text: str) -> str:
    """The line of a message that says what happened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(problem).__name__
    return lines[-1] if lines[0].startswith("Caught ") else lines[0][:300]


def _place(problem: BaseException, text: str) -> str:
    """` (file:line)` of the innermost frame in the user's code, also if it was in a loader worker."""
    frames = [(frame.filename, str(frame.lineno)) for frame in traceback.extract_tb(problem.__traceback__)]
    own = [frame for frame in frames if is_users(frame[0])]
    if not own:  # a loader worker's traceback is in the message, as text
        quoted: list[tuple[str, str]] = re.findall(r'^ *File "([^"]+)", line (\d+)', text, re.MULTILINE)
        own = [frame for frame in quoted if is_users(frame[0])]
    return f" ({os.path.basename(own[-1][0])}:{own[-1][1]})" if own else ""


_OUT_OF_MEMORY = "out of memory"
_ENLARGE_SHM = "Enlarge /dev/shm (docker run --shm-size=8g), or lower workers or prefetch_factor"
_KNOWN = (
    (
        # As Python, Linux, CUDA, cuBLAS, cuDNN and Triton say it.
        _OUT_OF_MEMORY,
        r"^[^ ]*MemoryError: |[Cc]an(no|')t allocate memory|not enough memory|[Oo]ut of memory|"
        "_ALLOC_FAILED|bad_alloc",
        "Lower batch_size, or raise accumulation instead; amp saves memory too",
    ),
    ("shared memory is full", "Bus error|shared memory.*DataLoader|DataLoader.*shared memory", _ENLARGE_SHM),
    (
        "a loader worker died", "DataLoader worker.*exited unexpectedly|is killed by signal",
        "It was killed from outside, usually because memory ran out: lower workers or prefetch_factor",
    ),
    (
        "the data set raised in a loader worker", "^[^ ]+: Caught .*DataLoader worker",
        "Fix the data set at that line; workers=0 shows the full traceback",
    ),
    (
        "torch.compile failed", r"^torch\._(dynamo|inductor)|BackendCompilerFailed",
        "Leave compile off for this model; `perfkit doctor` says whether a compiler is installed",
    ),
)  # fmt: skip
"""Kinds of failure: each with how it reads, as `module.Type: message`, and what to do about it."""
