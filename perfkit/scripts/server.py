"""The root inside a script's process: at the end of every step it answers the parent's questions.

While a question wants steps the script goes on; otherwise it waits here, in its own thread.
"""

import atexit
import contextlib
import functools
import multiprocessing
import os
import random
import sys
import traceback
from collections.abc import Generator
from multiprocessing.connection import Client, Connection
from types import TracebackType
from typing import Any

import torch

from perfkit.scripts import loaders, models, optimizers, toggles
from perfkit.scripts.outputs import Outputs, WriteRefused
from perfkit.scripts.questions import Ended, Questions, Unavailable
from perfkit.scripts.script import Script
from perfkit.scripts.sites import HERE, is_users
from perfkit.scripts.steps import Step
from perfkit.worker import messages
from perfkit.worker.messages import Failure
from perfkit.worker.procedure import Job


class Server(Questions):
    """Answers the parent's questions at the script's steps."""

    def __init__(self, settings: dict[str, Any], outputs: Outputs) -> None:
        super().__init__(settings, outputs)
        self._line: Connection | None = None
        self._job: Job | None = None
        self._released = False
        self._forked = False

    def at_steps(self, steps: list[Step]) -> None:
        """Steps have ended."""
        if not self.script.steps.are_first:
            self.models.stop_looking()
        if self._released or self._forked:
            return
        with self.script.outputs.ignored():
            if self._line is None:
                self._connect()
                self.early = steps
                self._next_job()
                return
            for step in steps:
                if self._line.poll():  # nothing is asked while a job is under way, except to stop
                    leave()
                self._resume(step)

    def _connect(self) -> Connection:
        if self._line is None:
            self._line = Client(self.script.settings["socket"], "AF_UNIX")
            rank, world = (
                int(os.environ.get(name, number)) for name, number in (("RANK", "0"), ("WORLD_SIZE", "1"))
            )
            self._send({"rank": rank, "world": world, "pid": os.getpid()})
            _patch_safetensors(self.script)
        return self._line

    def _resume(self, step: Step) -> None:
        assert self._job
        try:
            self._job.send(step)
        except StopIteration as done:
            self._answer(done.value)
            self._next_job()
        except Exception as problem:
            self._refuse(problem)
            self._next_job()

    def _next_job(self) -> None:
        """Waits for questions until one of them needs steps."""
        while not self._released:
            try:
                question = messages.decode_question(self._connect().recv_bytes())
            except (EOFError, OSError):
                leave()
            if question.name == "stop":
                leave()
            try:
                if not hasattr(Questions, question.name) and question.name != "release":
                    raise Unavailable(f"a script cannot be asked for {question.name}")
                started = getattr(self, question.name)(**question.arguments)
                if not isinstance(started, Generator):
                    self._answer(started)
                    continue
                self._job = started
                next(started)
                return
            except StopIteration as done:
                self._answer(done.value)
            except Exception as problem:
                self._refuse(problem)

    def release(self) -> None:
        """Lets the script run on by itself."""
        self._released = True

    def _answer(self, value: Any) -> None:
        self._send(messages.Answer(value))

    def _send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # a parent that has gone shows at the next question
            assert self._line
            self._line.send_bytes(messages.encode(message))

    def _refuse(self, problem: Exception) -> None:
        if isinstance(problem, Unavailable):
            self._answer({"unavailable": str(problem)})
            return
        traceback.print_exception(problem)
        what = f"perfkit failed inside the script: {type(problem).__name__}: {problem}"
        self._send(Failure("failed", what, "Report it, with the script's loop"))

    def tell(self, progress: messages.Progress) -> None:
        """Progress, a few times a second."""
        if self._line:
            self._send(progress)

    # ------------------------------------------------------------ the script's end

    def forget(self) -> None:
        """In a forked process: the line belongs to the process that forked it."""
        self._line, self._forked, self._job = None, True, None

    def crashed(self, kind: type[BaseException], problem: BaseException) -> None:
        """The script is about to end with an exception that it has not caught."""
        if self._released or self._forked or issubclass(kind, KeyboardInterrupt):
            return
        self._connect()
        self._send(_in_words(problem, self.script.steps.count))
        self._released = True

    def ended(self) -> None:
        """The script has come to its end while it was asked, or without ever training."""
        if self._released or self._forked:
            return
        self._connect()
        if self._job is None:
            self._send(Failure("no steps", *self._why_no_step()))
            return
        try:
            self._job.throw(Ended())
        except StopIteration as done:
            self._answer(done.value)
        except Ended:
            what = f"the script ended after {self.script.steps.count} steps, before it was measured"
            remedy = "Let it train longer: more epochs, more data or smaller batches"
            self._send(Failure("ended", what, remedy))

    def _why_no_step(self) -> tuple[str, str]:
        """What a script did that has ended without two training steps, and what to do about it."""
        backwards = self.gradients.count
        if self.optimizers.stepped or backwards:
            steps = (
                "one training step"
                if self.optimizers.stepped
                else f"{backwards} backward pass(es) and no step"
            )
            return (
                f"the script ended after {steps}",
                "Let it train longer: at least some dozen steps are needed",
            )
        if multiprocessing.active_children():
            return (
                "the script trained in processes that it started itself, which are not watched",
                "Start it with torchrun, one process for each rank, or let it train in its own process",
            )
        return "the script ended without training", "Is it the right script, with the right arguments?"


def leave() -> None:
    """Ends this process at a step: no `finally`, `atexit` or checkpoint of the script runs any more."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def _in_words(problem: BaseException, steps: int) -> Failure:
    """How the script failed; its own traceback is on standard error."""
    lines = str(problem).strip().splitlines()
    frames = [f for f in traceback.extract_tb(problem.__traceback__) if is_users(f.filename)]
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    when = f"after {steps} steps" if steps else "before its second step"
    if isinstance(problem, EOFError) and "reading a line" in str(problem):
        what = f"the script asks for input{place}, which nobody can give while it is watched"
        return Failure("input", what, "Give the answers as arguments, or remove the question")
    if isinstance(problem, WriteRefused):
        return Failure(
            "writes",
            f"the script writes to {problem.filename}{place}: it is measured in a copy of its folder, "
            "and a path outside of it cannot be redirected",
            "Give it a path below its folder, or let it write there with --in-place",
        )
    what = f"the script raised {type(problem).__name__} {when}: {lines[0][:300] if lines else ''}{place}"
    return Failure("exception", what, "Its own traceback is in its output; run it without perfkit to compare")


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of this package: the script's own, as it would be without perfkit."""
    if trace is None:
        return None
    later = _without_own_frames(trace.tb_next)
    if trace.tb_frame.f_code.co_filename.startswith(HERE):
        return later
    return TracebackType(later, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


# ---------------------------------------------------------------- installing


def install(settings: dict[str, Any], outputs: Outputs) -> None:
    """Makes the script of this process report from now on; called once torch has been imported."""
    server = Server(settings, outputs)
    script = server.script
    if settings["seed"] is not None:
        _seed(settings["seed"])
    toggles.apply_global(script.toggles)
    loaders.patch(server.loaders, script)
    models.patch(server.models, script)
    optimizers.patch(server.gradients, server.optimizers, script)
    toggles.patch_copies(script, server.loaders)
    _patch_save(script)
    _patch_excepthook(server)
    os.register_at_fork(after_in_child=server.forget)
    atexit.register(server.ended)


def _seed(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy:
        numpy.random.seed(seed)


def _patch_save(script: Script) -> None:
    """Torch writes checkpoints without Python's `open`."""
    plain = torch.save

    @functools.wraps(plain)
    def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        script.steps.now.marks.add("checkpoint")
        if isinstance(f, str | os.PathLike):
            script.outputs.before(os.fsdecode(f))
        plain(obj, f, *args, **kwargs)

    torch.save = save


def _patch_safetensors(script: Script) -> None:
    """So does safetensors, once it is imported."""
    module: Any = sys.modules.get("safetensors.torch")
    if module is None:
        return
    plain = module.serialize_file

    @functools.wraps(plain)
    def serialize_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        script.steps.now.marks.add("checkpoint")
        script.outputs.before(os.fsdecode(filename))
        return plain(tensors, filename, *args, **kwargs)

    module.serialize_file = serialize_file


def _patch_excepthook(server: Server) -> None:
    """An exception that the script does not catch is reported, then shown as ever."""
    plain = sys.excepthook

    def hook(kind: type[BaseException], problem: BaseException, trace: Any) -> None:
        server.crashed(kind, problem)
        plain(kind, problem, _without_own_frames(trace))

    sys.excepthook = hook
