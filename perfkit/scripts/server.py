"""The root inside a script's process: at the end of every step it answers the parent's questions.

While a question wants steps the script goes on; otherwise it waits here, in its own thread.
"""

import atexit
import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Generator
from multiprocessing.connection import Client, Connection
from types import TracebackType
from typing import Any

from perfkit.scripts.outputs import Outputs
from perfkit.scripts.questions import Ended, Questions
from perfkit.scripts.script import Script, Step, Unavailable, around
from perfkit.show import units
from perfkit.worker import messages
from perfkit.worker.failures import explain
from perfkit.worker.messages import Failure
from perfkit.worker.procedure import Job

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Server:
    """Answers the parent's questions at the script's steps."""

    def __init__(self, settings: dict[str, Any], outputs: Outputs) -> None:
        self._script = script = Script(settings, outputs)
        self._questions = Questions(script, lambda phase: self._send(messages.Progress(phase)))
        self._line: Connection | None = None
        self._job: Job | None = None
        self._is_silent = False
        """Whether nothing is answered any more: after a crash, and in a forked process."""
        script.parts.append(self)
        around(sys, "excepthook", self._crashed)
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self._ended)

    def on_steps(self, steps: list[Step]) -> None:
        if self._is_silent:
            return
        with self._script.outputs.ignored():
            if self._job is None:
                self._next_job()
                return
            for step in steps:
                if self._connection().poll():  # nothing is asked while a job is under way, except to stop
                    leave()
                self._advance(lambda job, step=step: job.send(step))  # type: ignore[misc]

    def _connection(self) -> Connection:
        self._line = self._line or Client(self._script.settings["socket"], "AF_UNIX")
        return self._line

    def _next_job(self) -> None:
        """Waits for questions until one of them needs steps."""
        try:
            question = messages.decode_question(self._connection().recv_bytes())
        except (EOFError, OSError):
            leave()
        if question.name == "stop":
            leave()
        self._job = self._answer(question)
        self._advance(next)

    def _answer(self, question: messages.Question) -> Job:
        ask = getattr(self._questions, question.name, None)
        if ask is None:
            raise Unavailable(f"a script cannot be asked for {question.name}")
        answer = ask(**question.arguments)
        return (yield from answer) if isinstance(answer, Generator) else answer

    def _advance(self, take: Callable[[Job], None]) -> None:
        """Has the job under way go on; once it has an answer, that is sent, and the next one begins."""
        assert self._job
        try:
            take(self._job)
            return
        except StopIteration as done:
            self._send(messages.Answer(done.value))
        except Unavailable as reason:
            self._send(Failure("unavailable", str(reason), "The script goes on"))
        except Ended:
            step_s = self._script.step_s()
            rate = units.number(self._script.samples_per_step / step_s)
            pace = f"{units.duration(step_s)} a step, {rate} samples/s"
            what = f"the script ended before it was measured, after {self._script.steps.count} steps: {pace}"
            remedy = "Let it train longer: more epochs, more data or smaller batches"
            self._send(Failure("ended", what, remedy))
        except Exception as problem:
            traceback.print_exception(problem)
            what = f"perfkit failed inside the script: {type(problem).__name__}: {problem}"
            self._send(Failure("failed", what, "Report it, with the script's loop"))
        self._next_job()

    def _send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # a parent that has gone shows at the next question
            self._connection().send_bytes(messages.encode(message))

    # ------------------------------------------------------------ the script's end

    def _forked(self) -> None:
        """In a forked process: the line belongs to the process that forked it."""
        self._line, self._is_silent = None, True

    def _crashed(self, show: Any, kind: type[BaseException], problem: BaseException, trace: Any) -> None:
        """The script is about to end with an exception that it has not caught."""
        if not self._is_silent and not issubclass(kind, KeyboardInterrupt):
            self._send(_in_words(problem, self._script.steps.count))
            self._is_silent = True
        own = _without_own_frames(trace)
        show(kind, problem.with_traceback(own), own)

    def _ended(self) -> None:
        """The script has come to its end; what needs no steps can still be asked."""
        if self._is_silent:
            return
        if self._job is None:
            self._send(Failure("no steps", *_why_no_step(self._script.backwards)))
            return
        while True:
            self._advance(lambda job: job.throw(Ended()))


def _why_no_step(backwards: int) -> tuple[str, str]:
    """What a script did that has ended without two training steps, and what to do about it."""
    if backwards:
        what = f"the script ended before its second step, after {backwards} backward passes"
        seen = "steps of torch's optimizers are seen, and weights of an nn.Module that change"
        return what, f"Let it train for some dozen steps; {seen}"
    what = "the script ended, and no training was seen: no backward pass and no optimizer's step"
    return what, "Check the script and its arguments: processes that it starts itself are not watched"


def leave() -> None:
    """Ends this process at a step: no `finally`, `atexit` or checkpoint of the script runs any more."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def _in_words(problem: BaseException, steps: int) -> Failure:
    """How the script failed; its own traceback is on standard error."""
    failure = explain(problem)
    when = f"after {steps} steps" if steps else "before its second step"
    remedy = failure.remedy
    if isinstance(problem, EOFError):
        remedy = "No keyboard is there: redirect its standard input from a file with what it asks for"
    elif failure.kind == "exception":
        remedy = "Its own traceback is in its output; run it without perfkit to compare"
    return Failure(failure.kind, f"the script ended {when}: {failure.what}", remedy)


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of this package: the script's own, as it would be without perfkit."""
    if trace is None:
        return None
    later = _without_own_frames(trace.tb_next)
    if trace.tb_frame.f_code.co_filename.startswith(_HERE):
        return later
    return TracebackType(later, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
