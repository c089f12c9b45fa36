"""The procedures that measure a training: warm-up, slices, a cached batch.

Each procedure is a generator that receives every finished step, and returns its answer. `drive` takes the
steps of perfkit's program; a script sends its steps where they end.
"""

import contextlib
import math
import os
import signal
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from perfkit import lookup
from perfkit.worker.checks import compile_counters, peak_bytes, reset_peak
from perfkit.worker.messages import Peak, TimedSteps
from perfkit.worker.timeline import Timeline

Procedure = Generator[None, Any, Any]  # receives steps, returns an answer

WINDOW = 4  # warm-up steps that are compared with as many before them
MAX_WARMUP_STEPS = 200
STEADY = 0.05  # the time is steady if the medians of two windows differ by at most this share


@dataclass(frozen=True)
class MeasuredStep:
    """One step, from the end of the previous one to its own end. A script's steps have more fields."""

    seconds: float  # by the host's clock
    waited: float  # seconds of it spent waiting for the loader
    samples: int
    loss: Any = None  # a tensor on the device


@dataclass
class TakenStep:
    """One of `TakenSteps`."""

    step: Any  # a `MeasuredStep`, or a script's
    seconds: float  # by the clock that counts (`worker.timeline`); until that is read, by the host's


class TakenSteps:
    """Consecutive steps in their order, with their times."""

    def __init__(self, device: torch.device, clock: Callable[[], float], early: Sequence[Any]) -> None:
        self._timeline = Timeline(device, clock)
        self._has_device_times = device.type != "cpu"
        self._early = [TakenStep(step, step.seconds) for step in early]  # they have the host's times only
        self._later: list[TakenStep] = []
        self.counted = [*self._early]  # and the later ones; a script may leave out some

    def add(self, step: Any) -> None:
        """Adds a step that has just ended."""
        self._timeline.mark()
        taken = TakenStep(step, step.seconds)
        self._later.append(taken)
        self.counted.append(taken)

    def read_times(self) -> None:
        """Waits until the device has reached the end of the last step, and gives the steps their times."""
        for taken, seconds in zip(self._later, self._timeline.step_s(), strict=True):
            taken.seconds = seconds

    @property
    def steps(self) -> list[Any]:
        return [taken.step for taken in self.counted]

    @property
    def step_s(self) -> list[float]:
        return [taken.seconds for taken in self.counted]

    def timed(self) -> TimedSteps:
        return TimedSteps(
            samples=sum(step.samples for step in self.steps),
            seconds=max(sum(self.step_s), 1e-9),
            step_s=[step.seconds for step in self.steps],
            data_wait_s=[step.waited for step in self.steps],
            device_step_s=self.step_s if self._has_device_times else [],
        )


Taking = Generator[None, Any, TakenSteps]


def drive(procedure: Procedure, step: Callable[[], Any]) -> Any:
    """Runs a procedure, taking a step whenever it asks for one; returns its answer."""
    ended_step: Any = None
    while True:
        try:
            procedure.send(ended_step)
        except StopIteration as end:
            return end.value
        ended_step = step()


class Subject(Protocol):
    """What is measured: a `Training`, or a script."""

    loader: Any
    iterator: Any  # the loader's, which holds the worker processes
    samples_per_step: int

    @property
    def device(self) -> torch.device: ...

    def phases(self) -> AbstractContextManager[None]:
        """Gives the parts of a step names for the profiler."""


class Procedures:
    """The questions that every training answers, whether it is perfkit's own or a script.

    A question is a method, or a function at `module:name` that gets this object as its first argument, which
    is how additions ask. `report` is called with each phase that begins; the clock gives seconds.
    """

    kind_of_steps = TakenSteps
    subject: Subject  # set before anything is measured
    under_way: TakenSteps
    """The steps of the last `take`. If the training ends during it, they are all that is known of it."""
    first_graphs = 0  # graphs that torch.compile made before later ones count as recompilations

    def __init__(self, report: Callable[[str], None], clock: Callable[[], float] = time.perf_counter) -> None:
        self.report = report
        self._clock = clock
        self._step_s = math.inf  # the duration of a step at the end of the warm-up

    def answer(self, question: str, arguments: Mapping[str, Any]) -> Any:
        if ":" in question:
            return lookup.load(question)(self, **arguments)
        return getattr(self, question)(**arguments)

    def take(
        self,
        count: int,
        phase: str,
        most: int = 0,
        enough: Callable[[], bool] = lambda: True,
        early: Sequence[Any] = (),
    ) -> Taking:
        """Takes `count` steps, including the `early` ones, and more until `enough()` or `most` steps."""
        self.report(phase)
        taken = self.kind_of_steps(self.subject.device, self._clock, early)
        self.under_way = taken
        while len(taken.counted) < count or (len(taken.counted) < most and not enough()):
            step = yield
            self.add(step)
        taken.read_times()
        self.require_training(taken.steps)
        return taken

    def require_training(self, steps: Sequence[Any]) -> None:
        """Raises an error if steps do not train."""

    def add(self, step: Any) -> None:
        """Adds a step to those under way."""
        self.under_way.add(step)

    def warm_up(self, budget_s: float) -> Taking:
        """Takes steps until their time is steady, or the budget is spent; then resets the memory peak."""
        window = max(WINDOW, self._workers)
        deadline = self._clock() + budget_s

        def is_warm() -> bool:
            if len(self.under_way.counted) % window:
                return False
            self.under_way.read_times()
            step_s = self.under_way.step_s
            before = step_s[-2 * window : -window] or [0.0]
            difference = abs(statistics.median(before) - statistics.median(step_s[-window:]))
            return self._clock() >= deadline or difference <= STEADY * statistics.median(before)

        warm = yield from self.take(window, "warm-up", MAX_WARMUP_STEPS, is_warm)
        self._step_s = statistics.median(warm.step_s[-window:])
        reset_peak(self.subject.device)
        return warm

    def slice(self, samples: int, seconds: float) -> Procedure:
        """One slice of at least `samples` samples that takes about `seconds`, judging by the steps before it.

        The training continues where its last slice ended. Meanwhile it was suspended, with its workers.
        """
        taken = yield from self.take(self.steps_for(samples, seconds), "measuring")
        self._step_s = statistics.median(taken.step_s)  # step times may change
        return taken.timed()

    def steps_for(self, samples: int, seconds: float = 0.0) -> int:
        """The steps of a slice: a multiple of the number of workers, each of which loads a batch in turn."""
        needed = math.ceil(samples / max(1, self.subject.samples_per_step))
        steps = max(1, needed, math.ceil(seconds / self._step_s))
        workers = max(1, self._workers)
        return int(math.ceil(steps / workers) * workers)

    def peak(self) -> Peak:
        """Peak memory since the warm-up, and recompilations since the first steps."""
        return Peak(*peak_bytes(self.subject.device), compile_counters().graphs - self.first_graphs)

    @property
    def _workers(self) -> int:
        return getattr(self.subject.loader, "num_workers", 0) or 0


@contextlib.contextmanager
def workers_stopped(iterator: Any) -> Iterator[None]:
    """Keeps a loader's workers stopped while it is active; those that have ended are left alone."""
    alive = [worker.pid for worker in getattr(iterator, "_workers", ()) if worker.is_alive()]
    try:
        _signal(alive, signal.SIGSTOP)
        yield
    finally:
        _signal(alive, signal.SIGCONT)


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # the worker has just ended
            os.kill(pid, number)
