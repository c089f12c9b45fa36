"""Carries out the parent's commands while the script trains: each is a generator that receives its steps.

At the end of every step the script's own thread comes here. A command that wants more steps lets it go on;
when it has its answer, the script waits here for the next command.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from perfkit.scripts import blocks, inside, ranks
from perfkit.scripts.blocks import Job, Unavailable
from perfkit.scripts.channel import Channel
from perfkit.scripts.sites import HERE
from perfkit.scripts.steps import Step, clock

if TYPE_CHECKING:
    from perfkit.scripts.script import Script


class Server:
    """Steers the script at its steps."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.early: list[Step] = []
        """The steps before the first command."""
        self._channel: Channel | None = None
        self._job: Job | None = None
        self._released = False
        self._forked = False
        self._told = 0.0
        self._blocks = blocks.Blocks(script, self.tell)

    # ------------------------------------------------------------ called by the script's own thread

    def at_steps(self, steps: list[Step]) -> None:
        """Steps have ended."""
        if self._released:
            return
        self.script.outputs.pause(True)
        try:
            self._at_steps(steps)
        finally:
            self.script.outputs.pause(False)

    def _at_steps(self, steps: list[Step]) -> None:
        if self._channel is None:
            self._channel = Channel(self.script.settings["socket"])
            self.early = steps
            self._next_job()
            return
        if self._channel.waiting():  # nothing is asked while a job is under way, except to stop
            self._obey_stop(self._channel.receive())
        for step in steps:
            self._resume(step)

    def _resume(self, step: Step) -> None:
        assert self._job
        assert self._channel
        try:
            self._job.send(step)
        except StopIteration as done:
            self._channel.answer(done.value)
            self._next_job()
        except Exception as problem:
            self._refuse(problem)
            self._next_job()

    def _next_job(self) -> None:
        """Waits for commands until one of them needs steps."""
        assert self._channel
        while not self._released:
            command = self._channel.receive()
            self._obey_stop(command)
            assert command
            try:
                started = self._start(command)
                if isinstance(started, dict):
                    self._channel.answer(started)
                    continue
                self._job = started
                next(started)
                return
            except StopIteration as done:
                self._channel.answer(done.value)
            except Exception as problem:
                self._refuse(problem)

    def _refuse(self, problem: Exception) -> None:
        assert self._channel
        if isinstance(problem, Unavailable):
            self._channel.fail("unavailable", str(problem), "")
            return
        traceback.print_exception(problem)
        what = f"perfkit failed inside the script: {type(problem).__name__}: {problem}"
        self._channel.fail("failed", what, "Report it, with the script's loop")

    def _start(self, question: dict[str, Any]) -> Job | dict[str, Any]:
        """The job of a question, or its answer where that needs no step."""
        script, steps = self.script, self._blocks
        answers: dict[str, Callable[..., Job | dict[str, Any]]] = {
            "train": functools.partial(steps.train, self.early),
            "block": steps.block,
            "ceiling": steps.ceiling,
            "try_amp": steps.ceiling_with_amp,
            "communication": functools.partial(ranks.communication, script, steps),
            "observe": steps.observe,
            "facts": functools.partial(inside.facts, script),
            "peak": functools.partial(inside.peak, script),
            "syncs": functools.partial(inside.syncs, script),
            "profile": functools.partial(inside.profile, script),
            "release": self._release,
        }
        if question["name"] not in answers:
            raise Unavailable(f"a script cannot be asked for {question['name']}")
        return answers[question["name"]](**question["arguments"])

    def _release(self) -> dict[str, Any]:
        self._released = True
        return {}

    def _obey_stop(self, command: dict[str, Any] | None) -> None:
        if command is None or command["name"] == "stop":
            leave()

    def tell(self, phase: str, done: int, total: int) -> None:
        """Progress, at most some times a second."""
        if self._channel and (done >= total or clock() - self._told > 0.25):
            self._told = clock()
            self._channel.send({"type": "Progress", "phase": phase, "done": done, "total": total})

    # ------------------------------------------------------------ the script's end

    def forget(self) -> None:
        """In a forked process: the line belongs to the one that forked it."""
        self._channel, self._forked, self._job = None, True, None

    def crashed(self, kind: type[BaseException], problem: BaseException) -> None:
        """The script is about to end with an exception that it has not caught."""
        channel = self._line()
        if channel and not issubclass(kind, KeyboardInterrupt):
            inside.report_crash(self.script, channel, problem)
            self._released = True

    def ended(self) -> None:
        """The script has come to its end within a command, or without ever training."""
        channel = self._line()
        if channel is None:
            return
        if self._job is None:
            what, remedy = inside.why_no_step(self.script)
            channel.fail("no steps", what, remedy)
            return
        try:
            self._job.throw(inside.Ended())
        except StopIteration as done:
            channel.answer(done.value)
        except inside.Ended:
            what = f"the script ended after {self.script.steps.count} steps, before it was measured"
            channel.fail("ended", what, "Let it train longer: more epochs, more data or smaller batches")

    def _line(self) -> Channel | None:
        if self._released or self._forked:
            return None
        self._channel = self._channel or Channel(self.script.settings["socket"])
        return self._channel


def leave() -> None:
    """Ends this process at a step: no `finally`, `atexit` or checkpoint of the script runs any more."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(0)


def _without_own(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of this room: the script's own, as it would be without perfkit."""
    if trace is None:
        return None
    later = _without_own(trace.tb_next)
    if trace.tb_frame.f_code.co_filename.startswith(HERE):
        return later
    return TracebackType(later, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)


def patch_ends(server: Server) -> None:
    """An exception that the script does not catch is reported, then shown as ever."""
    plain = sys.excepthook

    def hook(kind: type[BaseException], problem: BaseException, trace: Any) -> None:
        server.crashed(kind, problem)
        plain(kind, problem, _without_own(trace))

    sys.excepthook = hook
