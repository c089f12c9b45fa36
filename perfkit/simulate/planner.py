"""The planning process, seen from both sides: who asks it, and what runs in it."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import queue
import subprocess
import sys
import sysconfig
import tempfile
import threading
from pathlib import Path
from typing import Any

import msgspec

from perfkit import machine
from perfkit.errors import Cancelled, InvalidValue, PerfkitError, RunFailed, WorkloadError
from perfkit.simulate.step import Step


class Request(msgspec.Struct, frozen=True):
    """What to plan."""

    workload: str
    preset: str
    options: dict[str, Any]
    recipe: dict[str, Any]


class Planned(msgspec.Struct, frozen=True, tag="planned"):
    """A plan, and the digests of the source files that it depends on."""

    step: Step
    sources: dict[str, str]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """No plan: an error for the user."""

    kind: str
    what: str
    remedy: str
    sources: dict[str, str]
    """As of a plan."""


_ERRORS: dict[str, type[PerfkitError]] = {
    error.__name__: error for error in (InvalidValue, WorkloadError, RunFailed)
}


def _digest(path: str) -> str:
    """Of a file's content; empty if it cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


def have_changed(sources: dict[str, str]) -> bool:
    """Whether any of these files has another digest today."""
    return any(_digest(path) != digest for path, digest in sources.items())


class Planner:
    """A planning process; one question at a time."""

    def __init__(self) -> None:
        self.owner = _here()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: queue.Queue[bytes] = queue.Queue()
        self._log: Any = None
        self._sources: dict[str, str] = {}
        """Digests of the source files that the process has imported, as it first told them."""

    def ask(self, request: Request, cancelled: threading.Event) -> Planned:
        """Plans a step.

        Raises:
            InvalidValue: it cannot be planned.
            WorkloadError: the workload cannot be imported or built.
            RunFailed: the process ended.
            Cancelled: `cancelled` was set; the process is ended.
        """
        with self._lock:
            if have_changed(self._sources):
                self._end()
            reply = self._asked(request, cancelled)
            self._sources = reply.sources | self._sources
        if isinstance(reply, Refused):
            raise _ERRORS[reply.kind](reply.what, reply.remedy)
        return reply

    def _asked(self, request: Request, cancelled: threading.Event) -> Planned | Refused:
        if self._process is None or self._process.poll() is not None:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it is dead: the empty answer says so
            process.stdin.write(msgspec.json.encode(request) + b"\n")
            process.stdin.flush()
        while True:
            if cancelled.is_set():
                self._end()
                raise Cancelled("stopped on request")
            with contextlib.suppress(queue.Empty):
                line = self._answers.get(timeout=0.05)
                break
        if not line:
            raise self._death()
        return msgspec.json.decode(line, type=Planned | Refused)

    def _start(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._answers, self._sources = queue.Queue(), {}
        # No GPU, and no pool of compiling processes: nothing is computed or compiled here.
        nothing = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        environ = os.environ | nothing | {"PYTHONPATH": machine.import_path()}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "perfkit.simulate.planner"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._log, env=environ, start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=_pass_on, args=(self._process, self._answers), daemon=True).start()

    def _death(self) -> RunFailed:
        assert self._process is not None
        status = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        self._end()
        last = lines[-1][:300] if lines else "it said nothing"
        return RunFailed(f"the planning process ended with status {status}: {last}", "Measure this recipe")

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout, self._log):
                with contextlib.suppress(OSError):
                    pipe and pipe.close()
        self._process = None

    def close(self) -> None:
        """Ends the process, if it runs."""
        if self.owner[0] == os.getpid():
            self._end()


def _pass_on(process: subprocess.Popen[bytes], answers: queue.Queue[bytes]) -> None:
    assert process.stdout is not None
    with contextlib.suppress(ValueError):  # closed
        for line in process.stdout:
            answers.put(line)
    answers.put(b"")


_planners: list[Planner] = []


def _here() -> tuple[int, str, str]:
    return os.getpid(), os.getcwd(), machine.import_path()


def planner() -> Planner:
    """This process's planner for the current folder and path; a forked process gets one of its own."""
    if not _planners or _planners[-1].owner != _here():
        for old in _planners:
            old.close()
        _planners[:] = [Planner()]
        atexit.register(_planners[0].close)
    return _planners[0]


def end() -> None:
    """Ends the planning process, if there is one; the next question starts another."""
    for one in _planners:
        one.close()


# ---------------------------------------------------------------- inside of the planning process


def sources() -> dict[str, str]:
    """Digests of the source files that have been imported, without Python's and installed packages' own."""
    paths = sysconfig.get_paths()
    installed = tuple({paths[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
    files = {getattr(module, "__file__", None) or "" for module in [*sys.modules.values()]}
    return {
        file: _digest(file)
        for file in sorted(files)
        if file.endswith(".py") and not file.startswith(installed) and "site-packages" not in file
    }


def answer(request: Request) -> Planned | Refused:
    """Plans, or says why not."""
    from perfkit import workloads
    from perfkit.recipe import Recipe
    from perfkit.simulate import operators, recording, self_test

    name = request.workload
    try:
        recipe = Recipe.from_dict(request.recipe)
        self_test.check(compiled=recipe.compile)
        options = workloads.options_for(workloads.find(name), request.preset, request.options)
        step = operators.of_training(workloads.load(name, options), recipe)
        return Planned(step, sources())
    except PerfkitError as problem:
        return Refused(type(problem).__name__, problem.what, problem.remedy, sources())
    except Exception as problem:
        reason = recording.reason(problem)
        what = f"a step of '{name}' cannot be simulated: {reason}"
        remedy = "Measure it on a device that is here (--device cpu, cuda)"
        return Refused("InvalidValue", what, remedy, sources())


def serve() -> None:
    """Answers requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a workload prints must not come between the answers
    for line in sys.stdin.buffer:
        reply = answer(msgspec.json.decode(line, type=Request))
        answers.write(msgspec.json.encode(reply) + b"\n")
        answers.flush()


if __name__ == "__main__":
    serve()
