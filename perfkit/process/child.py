"""Measuring processes: start, ask, suspend, cancel, time out, and end them with all that they started."""

import contextlib
import getpass
import itertools
import math
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from perfkit import machine
from perfkit.errors import RunFailed, TookTooLong, what_and_remedy
from perfkit.process import Answer, Question, failures, zygote
from perfkit.process.locks import check_cancelled
from perfkit.process.tree import Tree

OnProgress = Callable[[str], None]  # called with the phase

POLL_S = 0.1
LOG_BYTES = 20_000  # how much of the end of a log is read


class Conversation(contextlib.AbstractContextManager["Conversation"]):
    """Asks questions of a process, which may start others.

    `on_progress` is called in the thread that asks. Any thread may set `cancelled` to stop the current
    question. `timeout_s` limits each answer.
    """

    tree: Tree  # the process and everything it has started
    line: Connection  # to the process

    def __init__(
        self, on_progress: OnProgress, cancelled: threading.Event | None, timeout_s: float | None = None
    ) -> None:
        self.on_progress = on_progress
        self.cancelled = cancelled
        self.timeout_s = timeout_s
        self._numbers = itertools.count(1)

    def event(self) -> str | Answer | RunFailed | None:
        """The next message of the process, or why it ended; None if neither comes within a short wait."""
        # Checked before the line is read, so that no last message is lost; its workers keep the line open.
        death = self.death()
        try:
            if self.line.poll(POLL_S):
                return self.line.recv()  # type: ignore[no-any-return]
        except (EOFError, OSError):  # the process is about to end, or was stopped
            time.sleep(POLL_S)
        return death

    def death(self) -> RunFailed | None:
        """Why the process has ended; None while it runs."""
        raise NotImplementedError

    def stop(self) -> None:
        """Ends the process and everything it started; returns when nothing of it is left."""
        raise NotImplementedError

    def ask(self, question: str, **arguments: Any) -> Any:
        """The answer to a question (`Procedures.answer`); progress goes to `on_progress`.

        Raises `RunFailed` if the process failed or died (or the failure's `given` error, if any),
        `TookTooLong` if it took too long, and `Cancelled` if `cancelled` was set.
        """
        request = Question(next(self._numbers), question, arguments)
        with contextlib.suppress(OSError):  # the process has ended, which `event` reports
            self.line.send(request)
        self.resume()
        deadline = time.monotonic() + (self.timeout_s or math.inf)
        while True:
            check_cancelled(self.cancelled)
            if time.monotonic() > deadline:
                what = f"it took longer than its time limit of {self.timeout_s:.0f} s"
                raise TookTooLong(what, "Allow more time, or choose a smaller preset or model")
            event = self.event()
            if isinstance(event, Answer):
                if event.number == request.number:  # an earlier one may have been abandoned
                    return event.value
            elif isinstance(event, RunFailed):
                failure = self.explained(event)
                raise failure.given or failure
            elif event is not None:
                self.on_progress(event)

    def explained(self, failure: RunFailed) -> RunFailed:
        """The error to raise for a failure of the process."""
        return failure

    def suspend(self) -> None:
        self.tree.suspend()

    def resume(self) -> None:
        """Resumes its processes, first the one that reads the question."""
        self.tree.resume()

    def pids(self) -> set[int]:
        return {process.pid for process in self.tree.processes()}

    def __exit__(self, *_: object) -> None:
        self.stop()


class Child(Conversation):
    """A measuring process, with its loader workers in a separate session.

    `environment` adds variables to those of this process, such as `Recipe.environment()`; `generation` is its
    zygote's. The other arguments are those of a `Conversation`. Raises what `ask` raises.
    """

    def __init__(
        self,
        on_progress: OnProgress = lambda phase: None,
        cancelled: threading.Event | None = None,
        timeout_s: float | None = None,
        environment: Mapping[str, str] | None = None,
        generation: int = 0,
    ) -> None:
        super().__init__(on_progress, cancelled, timeout_s)
        self._generation = generation
        self.folder = Path(tempfile.mkdtemp(prefix="perfkit-"))
        """For its temporary files. It is removed with everything that a killed process leaves in it."""
        self.log = self.folder / "log"
        on_progress("importing torch")
        try:
            check_cancelled(cancelled)
            variables = {**environment_of(environment or {}), "TMPDIR": str(self.folder)}
            share_headers(variables)
            self._launch(variables)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _launch(self, variables: dict[str, str]) -> None:
        setup = zygote.Setup(variables, machine.import_paths(), os.getcwd(), str(self.log))
        try:
            self.line, theirs = Pipe()
            with theirs, contextlib.ExitStack() as on_failure:
                on_failure.push(self.line)
                self.line.send(setup)
                self._process = zygote.start(
                    theirs, variables, self._generation, lambda: check_cancelled(self.cancelled)
                )
                on_failure.pop_all()
        except OSError as problem:
            what, remedy = what_and_remedy(problem)
            remedy = remedy or "Run `perfkit doctor`: it says whether torch can be imported"
            raise RunFailed(f"no measuring process could be started: {what}", remedy) from problem
        self.tree = Tree(self._process.pid or 0)

    def death(self) -> RunFailed | None:
        if self._process.is_closed:
            return RunFailed("the measuring process was stopped before this was asked")
        code = self._process.exit_code()
        if code is None:
            return None
        return failures.explain_exit(code, last_lines(self.log).rpartition("\n")[2])

    def stop(self) -> None:
        self.line.close()
        self.tree.end()
        self._process.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def environment_of(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of a measuring process; `variables` take precedence over those of this process."""
    cache = str(machine.data_folder() / "cache" / "inductor")
    return {"TORCHINDUCTOR_CACHE_DIR": cache, **os.environ, **variables}


def share_headers(variables: Mapping[str, str]) -> None:
    """Lets torch find the C++ headers that earlier processes compiled: it looks for them only in TMPDIR."""
    cache = os.path.abspath(variables["TORCHINDUCTOR_CACHE_DIR"])
    with contextlib.suppress(OSError, KeyError):  # without a link or a name it compiles them again, for 6 s
        os.makedirs(cache, exist_ok=True)
        os.symlink(cache, Path(variables["TMPDIR"], f"torchinductor_{getpass.getuser()}"))


def last_lines(path: Path) -> str:
    """The end of a log, which may be long; empty if there is no log."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_BYTES))
        return file.read().decode(errors="replace").strip()


def call(
    reference: str, *arguments: Any, timeout_s: float | None = None, cancelled: threading.Event | None = None
) -> Any:
    """Calls the function at `module:name` in a new process, with pickled arguments; raises as `ask` does."""
    with Child(cancelled=cancelled, timeout_s=timeout_s) as child:
        return child.ask("call", reference=reference, arguments=arguments)
