"""Explains exceptions and exit codes: the kind of failure, what happened, and what to do."""

import os
import re
import signal
import sysconfig
import traceback
from pathlib import Path

from perfkit import lookup
from perfkit.errors import InvalidValue, OutOfMemory, PerfkitError, RunFailed, TrainingRaised, WorkloadError

PACKAGE = Path(__file__).parents[1]
LIBRARIES = tuple(
    f"{folder}{os.sep}" for folder in (PACKAGE, *map(sysconfig.get_path, ("stdlib", "platstdlib")))
)
_TABLES = lookup.toml("perfkit.process", "failures")
KNOWN, SIGNALS = _TABLES["known"], _TABLES["signals"]


def is_users(filename: str) -> bool:
    """Whether a file is the user's own code or a workload, rather than a library's or the rest of perfkit."""
    if filename.startswith(f"{PACKAGE / 'workloads'}{os.sep}"):
        return True
    installed = "site-packages" in filename or "dist-packages" in filename
    return not (installed or filename.startswith(("<", *LIBRARIES)))


def explain(problem: BaseException) -> RunFailed:
    """Explains an exception."""
    if isinstance(problem, PerfkitError):
        failure = RunFailed(problem.what, problem.remedy)
        if isinstance(problem, InvalidValue | WorkloadError):
            failure.given = problem
        return failure
    name = type(problem).__name__
    text = str(problem).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [name]
    gist = lines[-1] if lines[0].startswith("Caught ") else lines[0][:300]
    what = f"{gist}{_line(problem, text)}"
    for case in KNOWN:
        if re.search(case["reads"], f"{type(problem).__module__}.{name}: {text}", re.DOTALL):
            error = OutOfMemory if case.get("is_out_of_memory") else RunFailed
            return error(f"{case['kind']}: {what}", case["remedy"])
    return TrainingRaised(f"the training raised {name}: {what}", "Fix the error at that line")


def explain_exit(code: int, last_line: str = "", who: str = "the measuring process") -> RunFailed:
    """Explains how a process ended without reporting a failure; a negative code is a signal."""
    names = {-entry: entry.name for entry in signal.Signals}  # most real-time signals have none
    name = names.get(code, f"signal {-code}" if code < 0 else "")
    if name in SIGNALS:
        error = OutOfMemory if name == "SIGKILL" else RunFailed
        return error(SIGNALS[name]["what"].format(who=who), SIGNALS[name]["remedy"])
    end = f"was ended by {name}" if name else f"ended with exit status {code}"
    log = f" (last line of its log: {last_line})" if last_line else ""
    return RunFailed(f"{who} {end}{log}", "Run `perfkit doctor`; try workers=0 to see the cause")


def _line(problem: BaseException, text: str) -> str:
    """` (file:line)` of the innermost frame in the user's code, even if it is in a loader worker."""
    frames = [(frame.filename, str(frame.lineno)) for frame in traceback.extract_tb(problem.__traceback__)]
    # A loader worker's traceback is in the message, as text.
    quoted: list[tuple[str, str]] = re.findall(r'^ *File "([^"]+)", line (\d+)', text, re.MULTILINE)
    place = ""
    for file, line in [*quoted, *frames]:
        if is_users(file):
            place = f" ({os.path.basename(file)}:{line})"
    return place
