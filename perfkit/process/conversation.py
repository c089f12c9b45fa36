"""Processes that train together, asked as one."""

import abc
import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar

import msgspec

from perfkit.errors import Cancelled, RunFailed
from perfkit.worker import failures
from perfkit.worker.messages import Answer, AnyEvent, Failure, Progress, Question

A = TypeVar("A")
OnProgress = Callable[[str], None]
"""Called with the phase."""

POLL_S = 0.1
COLLECT_S = 1.5
"""How long the failures of other ranks are waited for, to find the one that caused them."""


class Conversation(abc.ABC):
    """Asks a process, or all ranks of a training: each gets the question, all must answer, rank 0 counts.

    Args:
        on_progress: called from the thread that asks.
        cancelled: set from any thread to end what is under way.
        timeout_s: how long it may take; None for no limit.
    """

    world = 1
    """How many answer."""

    def __init__(
        self,
        on_progress: OnProgress = lambda phase: None,
        cancelled: threading.Event | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.on_progress = on_progress
        self.cancelled = cancelled or threading.Event()
        self.limit(timeout_s)

    def limit(self, timeout_s: float | None) -> None:
        """From now on it may take so long."""
        self.deadline = time.monotonic() + (timeout_s or math.inf)

    @property
    @abc.abstractmethod
    def pids(self) -> list[int]:
        """The leaders of its process groups."""

    @abc.abstractmethod
    def send(self, question: Question) -> None:
        """Gives a question to every rank."""

    @abc.abstractmethod
    def events(self, wait_s: float) -> Iterable[tuple[int, AnyEvent | None]]:
        """What ranks have sent, waiting for at most some time; None for one that has ended."""

    @abc.abstractmethod
    def death(self, rank: int) -> RunFailed:
        """Why a rank has ended."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Ends all processes and everything they started; returns when nothing of it is left."""

    def ask(self, question: str, kind: type[A], **arguments: Any) -> A:
        """The answer to a question, a method of `worker.session.Session`; progress goes to `on_progress`.

        Raises:
            RunFailed: a process failed, died, or took too long.
            Cancelled: `cancelled` was set.
        """
        self.send(Question(question, arguments))
        return self.answer(kind)

    def answer(self, kind: type[A]) -> A:
        """The answer to the question that was sent last; raises as `ask` does."""
        answers: dict[int, object] = {}
        while len(answers) < self.world:
            self.check()
            for rank, event in self.events(POLL_S):
                if isinstance(event, Answer):
                    answers[rank] = event.value
                elif not isinstance(event, Progress):
                    raise self._first_failure(rank, event)
                elif rank == 0:
                    self.on_progress(event.phase)
        return msgspec.convert(answers[0], kind)

    def check(self) -> None:
        """Raises if it was cancelled or is too late."""
        if self.cancelled.is_set():
            raise Cancelled("stopped on request")
        if time.monotonic() > self.deadline:
            raise self.too_late()

    def too_late(self) -> RunFailed:
        """The failure of a run that takes too long."""
        what = "the run took longer than its time limit"
        return RunFailed(what, "Raise --timeout, or use a smaller preset")

    def _failure(self, rank: int, event: AnyEvent | None) -> RunFailed:
        return failures.as_error(event) if isinstance(event, Failure) else self.death(rank)

    def _first_failure(self, rank: int, event: AnyEvent | None) -> RunFailed:
        """The failure that caused the others: when a rank ends, those that lose it fail too."""
        if self.world == 1:
            return self._failure(rank, event)
        failed, until = {rank: self._failure(rank, event)}, time.monotonic() + COLLECT_S
        while time.monotonic() < until and len(failed) < self.world:
            for other, more in self.events(POLL_S):
                if other not in failed and not isinstance(more, Answer | Progress):
                    failed[other] = self._failure(other, more)
        self.stop()
        causes = {rank: error for rank, error in failed.items() if not failures.is_lost_rank(error.what)}
        rank, error = min((causes or failed).items())
        error.what = f"rank {rank} of {self.world}: {error.what}"
        return error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
