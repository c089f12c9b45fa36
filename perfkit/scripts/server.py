"""The root inside a script's process: at the end of every step it answers the parent's questions.

While a question wants steps the script goes on; otherwise it waits here, in its own thread.
"""

import atexit
import contextlib
import functools
import os
import random
import sys
import traceback
from collections.abc import Callable, Generator
from multiprocessing.connection import Client, Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

import torch
from torch.utils.data._utils.worker import _worker_loop

from perfkit.scripts.outputs import Outputs
from perfkit.scripts.questions import Ended, Questions, Unavailable, apply_global, patch_copies
from perfkit.scripts.script import Script, Step, around
from perfkit.scripts.sites import HERE, is_users
from perfkit.worker import messages
from perfkit.worker.messages import Failure
from perfkit.worker.procedure import Job

_MANY = 8
"""Backward passes without a step after which it is no short training."""


class Server(Questions):
    """Answers the parent's questions at the script's steps."""

    def __init__(self, settings: dict[str, Any], outputs: Outputs) -> None:
        super().__init__(settings, outputs)
        self._line: Connection | None = None
        self._job: Job | None = None
        self._is_silent = False
        """Whether nothing is answered any more: after a crash, and in a forked process."""
        self._has_children = False
        """Whether the script has started processes itself, the workers of its loaders excepted."""

    def at_steps(self, steps: list[Step]) -> None:
        if not self.script.steps.are_first:
            self.models.stop_looking()
        if self._is_silent:
            return
        with self.script.outputs.ignored():
            if self.witness:
                self.witness.see(steps)
            if self._job is None:
                self.early = steps
                if safetensors := sys.modules.get("safetensors.torch"):
                    around(safetensors, "serialize_file", functools.partial(_save, self.script))
                self._next_job()
                return
            for step in steps:
                if self._connection().poll():  # nothing is asked while a job is under way, except to stop
                    leave()
                self._advance(lambda job, step=step: job.send(step))  # type: ignore[misc]

    def _connection(self) -> Connection:
        self._line = self._line or Client(self.script.settings["socket"], "AF_UNIX")
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
        if not hasattr(Questions, question.name):
            raise Unavailable(f"a script cannot be asked for {question.name}")
        answer = getattr(self, question.name)(**question.arguments)
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
            steps = f"{self.script.steps.count} steps{self.script.pace()}"
            what = f"the script ended before it was measured, after {steps}"
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

    def tell(self, progress: messages.Progress) -> None:
        self._send(progress)

    # ------------------------------------------------------------ the script's beginning and end

    def install(self) -> None:
        """Makes the script of this process report from now on."""
        attach(self)
        around(sys, "excepthook", self._crashed)
        around(BaseProcess, "start", self._start_process)
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self._ended)

    def _start_process(self, plain: Any, process: Any) -> None:
        self._has_children |= process._target is not _worker_loop
        plain(process)

    def _forked(self) -> None:
        """In a forked process: the line belongs to the process that forked it."""
        self._line, self._is_silent = None, True

    def _crashed(self, show: Any, kind: type[BaseException], problem: BaseException, trace: Any) -> None:
        """The script is about to end with an exception that it has not caught."""
        if not self._is_silent and not issubclass(kind, KeyboardInterrupt):
            self._send(_in_words(problem, self.script.steps.count))
            self._is_silent = True
        own = _without_own_frames(trace)
        show(kind, problem.with_traceback(own), own)

    def _ended(self) -> None:
        """The script has come to its end; what needs no steps can still be asked."""
        if self._is_silent:
            return
        if self._job is None:
            self._send(Failure("no steps", *self._why_no_step()))
            return
        while True:
            self._advance(lambda job: job.throw(Ended()))

    def _why_no_step(self) -> tuple[str, str]:
        """What a script did that has ended without two training steps, and what to do about it."""
        if self.gradients.count > _MANY:
            what = f"no step was seen in {self.gradients.count} backward passes: nothing that perfkit knows"
            return f"{what} changes weights", "Let an optimizer of torch or an nn.Module hold them"
        if self.gradients.count:
            return "the script ended before its second step", "Let it train longer: it needs some dozen steps"
        if self._has_children:
            what = "the script trained in processes that it started itself, which are not watched"
            return what, "Let it train in its own process"
        what = "the script ended without training: no backward pass and no optimizer's step was seen"
        return what, "Is it the right script, with the right arguments?"


def leave() -> None:
    """Ends this process at a step: no `finally`, `atexit` or checkpoint of the script runs any more."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def _in_words(problem: BaseException, steps: int) -> Failure:
    """How the script failed; its own traceback is on standard error."""
    frames = [f for f in traceback.extract_tb(problem.__traceback__) if is_users(f.filename)]
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    when = f"after {steps} steps" if steps else "before its second step"
    first_line = str(problem).strip().partition("\n")[0][:300]
    what = f"the script raised {type(problem).__name__} {when}: {first_line}{place}"
    remedy = "Its own traceback is in its output; run it without perfkit to compare"
    if isinstance(problem, EOFError):
        remedy = "No keyboard is there: redirect its standard input from a file with what it asks for"
    return Failure("exception", what, remedy)


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of this package: the script's own, as it would be without perfkit."""
    if trace is None:
        return None
    later = _without_own_frames(trace.tb_next)
    if trace.tb_frame.f_code.co_filename.startswith(HERE):
        return later
    return TracebackType(later, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def attach(questions: Questions) -> None:
    """Makes loaders, models and optimizers of this process report, after setting seed and switches."""
    seed = questions.script.settings["seed"]
    if seed is not None:
        numpy: Any = sys.modules.get("numpy")
        for set_seed in (random.seed, torch.manual_seed, *([numpy.random.seed] if numpy else [])):
            set_seed(seed)
    apply_global(questions.script.toggles)
    for part in questions.parts:
        part.patch()
    patch_copies(questions.script, questions.loaders)
    around(torch, "save", functools.partial(_save, questions.script))
    if questions.witness:
        questions.witness.begin()


def _save(script: Script, plain: Any, *args: Any, **kwargs: Any) -> Any:
    """Torch and safetensors write checkpoints without Python's `open`; their second argument is the file."""
    script.steps.now.marks.add("checkpoint")
    file = args[1] if len(args) > 1 else kwargs.get("f", kwargs.get("filename"))
    if isinstance(file, str | os.PathLike):
        script.outputs.before(os.fsdecode(file))
    return plain(*args, **kwargs)
