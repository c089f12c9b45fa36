"""How a training is measured, written once: warm-up, slices, a cached batch, a profile.

Each procedure is a generator that is sent every step that ends, and returns its answer. `drive` pulls the
steps of perfkit's program; a script sends its steps from where they end.
"""

import contextlib
import math
import os
import signal
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import profiler

from perfkit import registry
from perfkit.worker.checks import compile_counters, peak_bytes, reset_peak
from perfkit.worker.messages import Block, Peak
from perfkit.worker.timeline import DeviceTimeline, HostTimeline, timeline

Procedure = Generator[None, Any, Any]  # is sent steps, returns an answer

WINDOW = 4  # steps of the warm-up that are compared with those before
MAX_WARMUP_STEPS = 200
STEADY = 0.05  # of their median, by which two windows of steps differ at most where the time is steady
HELD_FIRST = 3  # steps on a cached batch before it is timed: some batches may have been fetched ahead
MANY_MARKED = 8
"""Steps with something else in them that count from then on, if they are at least half of all steps."""


@dataclass(frozen=True)
class MeasuredStep:
    """One step, from the end of the one before to its own end; a script's steps have more fields."""

    seconds: float  # by the host's clock
    waited: float  # seconds of it in which the loader was waited for
    samples: int
    loss: Any = None  # a tensor on the device
    marks: frozenset[str] = frozenset()  # what else happened in it, such as an evaluation


@dataclass
class TakenSteps:
    """Consecutive steps, each with its time by the clock that counts (`worker.timeline`)."""

    plain: list[Any] = field(default_factory=list)  # those that count
    marked: list[Any] = field(default_factory=list)
    """Those with something else in them, which are left out with their time."""
    step_s: list[float] = field(default_factory=list)
    """Of the plain ones; known once the device has come to their end."""
    on_device: bool = False  # whether these times are the device's own

    @property
    def seconds(self) -> float:
        return sum(self.step_s)

    def block(self) -> Block:
        return Block(
            samples=sum(step.samples for step in self.plain),
            seconds=max(self.seconds, 1e-9),
            step_s=[step.seconds for step in self.plain],
            data_wait_s=[step.waited for step in self.plain],
            device_step_s=self.step_s if self.on_device else [],
        )


Taking = Generator[None, Any, TakenSteps]


def drive(job: Procedure, step: Callable[[], Any]) -> Any:
    """The answer of a procedure, whose steps are taken as it asks for them."""
    done: Any = None
    while True:
        try:
            job.send(done)
        except StopIteration as end:
            return end.value
        done = step()


class Procedures:
    """What every training can be asked, perfkit's own or a script.

    A question is a method, or a function at `module:name`, which gets this object first: an addition asks so.

    `report` is called with the phase that begins; the clock gives seconds.
    """

    subject: Any
    """A `Training` or a script, set before anything is measured.

    It has a `device`, a `loader` and the loader's `iterator`, which holds the worker processes,
    `samples_per_step` and `batches_per_step`. While entered, `hold` repeats one batch
    on the device, and `phases` names the parts of a step for the profiler. `note` keeps a remark.
    """
    first_graphs = 0  # graphs that torch.compile had made before further ones counted as recompilations

    def __init__(self, report: Callable[[str], None], clock: Callable[[], float] = time.perf_counter) -> None:
        self.report = report
        self._clock = clock
        self._step_s = math.inf  # a step of the end of the warm-up
        self._counts_marked = False  # whether steps with something else in them count
        self._plain = 0
        self._marked = 0
        self.under_way = TakenSteps()
        """The steps of the last `take`: all that is known of it if the training ends meanwhile."""
        self._timeline: HostTimeline | DeviceTimeline | None = None
        self._order: list[Any] = []

    def answer(self, question: str, arguments: Mapping[str, Any]) -> Any:
        if ":" in question:
            return registry.load(question)(self, **arguments)
        return getattr(self, question)(**arguments)

    def take(
        self,
        count: int,
        phase: str,
        most: int = 0,
        enough: Callable[[], bool] = lambda: True,
        early: Sequence[Any] = (),
    ) -> Taking:
        """Takes `count` steps, the `early` ones among them; continues until `enough()` or `most` steps."""
        self.report(phase)
        taken = TakenSteps(list(early))
        self.under_way = taken
        self._order = []
        self._timeline = timeline(self.subject.device, self._clock)
        while True:
            steps = len(taken.plain)
            if steps >= count and (steps >= most or enough()):
                break
            step = yield
            self._timeline.mark()
            self._add(step, taken)
        self.time_steps(early)
        self.check(taken.plain)
        return taken

    def time_steps(self, early: Sequence[Any] = ()) -> None:
        """Gives the steps of the last `take` their times, those until now if it is under way.

        The early ones were taken before it: they have the host's.
        """
        assert self._timeline
        taken = self.under_way
        counts = {id(step) for step in taken.plain}
        pairs = zip(self._order, self._timeline.step_s(), strict=False)
        taken.step_s = [step.seconds for step in early]
        taken.step_s += [seconds for step, seconds in pairs if id(step) in counts]
        taken.on_device = self.subject.device.type != "cpu"

    def check(self, steps: Sequence[Any]) -> None:
        """Raises if steps do not train."""

    def _add(self, step: Any, taken: TakenSteps) -> None:
        self._order.append(step)
        if self._counts_marked or not step.marks:
            taken.plain.append(step)
            self._plain += 1
            return
        taken.marked.append(step)
        self._marked += 1
        if self._marked >= max(MANY_MARKED, self._plain):
            self._counts_marked = True
            marks = " and ".join(sorted(set().union(*(each.marks for each in taken.marked))))
            which = "every second step" if self._plain else "every step"
            self.subject.note(f"{which} has {marks} in it, so that is part of a step here")
            taken.plain += taken.marked
            taken.marked = []

    def warm_up(self, budget_s: float) -> Taking:
        """Steps until their time is steady, or until the budget is spent; then a new memory peak begins."""
        window = max(WINDOW, self._workers)
        until = self._clock() + budget_s

        def is_warm() -> bool:
            if len(self.under_way.plain) % window:
                return False
            self.time_steps()
            step_s = self.under_way.step_s
            before = step_s[-2 * window : -window] or [0.0]
            difference = abs(statistics.median(before) - statistics.median(step_s[-window:]))
            return self._clock() >= until or difference <= STEADY * statistics.median(before)

        warm = yield from self.take(window, "warm-up", MAX_WARMUP_STEPS, is_warm)
        self._step_s = statistics.median(warm.step_s[-window:])
        reset_peak(self.subject.device)
        return warm

    def slice(self, samples: int, seconds: float) -> Procedure:
        """One slice of at least this many samples, for about some seconds, judged by the steps before it.

        The training goes on where its last slice ended: it was suspended meanwhile, with its workers.
        """
        taken = yield from self.take(self.steps_for(samples, seconds), "measuring")
        self._step_s = statistics.median(taken.step_s)  # it may grow
        return taken.block()

    def steps_for(self, samples: int, seconds: float = 0.0) -> int:
        """Steps of a slice: a multiple of the number of workers, which deliver one batch each per round."""
        needed = math.ceil(samples / max(1, self.subject.samples_per_step))
        steps = max(1, needed, math.ceil(seconds / self._step_s))
        workers = max(1, self._workers)
        return int(math.ceil(steps / workers) * workers)

    def ceiling(self, samples: int, seconds: float = 0.0) -> Procedure:
        """A slice on one batch that is already on the device, without a loader."""
        with self.subject.hold():
            yield from self.take(HELD_FIRST, "cached batch")
            return (yield from self.take(self.steps_for(samples, seconds), "cached batch")).block()

    def profile(self, path: str, stacks: bool, **schedule: int) -> Procedure:
        """Takes steps with the profiler, and writes a trace of the active ones: its path.

        `schedule` is that of `torch.profiler.schedule`: wait, warmup, active.
        """
        file = Path(path)
        part = str(file.with_name(f"part-{file.name}"))  # a file that is there is complete
        kinds: Any = profiler.ProfilerActivity
        recorder = profiler.profile(
            activities={kinds.CPU, getattr(kinds, self.subject.device.type.upper(), kinds.CPU)},
            schedule=profiler.schedule(**schedule, repeat=1),
            record_shapes=True,
            with_stack=stacks,
            on_trace_ready=lambda recorded: recorded.export_chrome_trace(part),
        )
        self.report("profiling")
        with self.subject.phases(), recorder:
            for left in reversed(range(sum(schedule.values()))):
                yield
                if not left:  # torch takes it only while it records
                    recorder.add_metadata_json("trainedOn", f'"{self.subject.device.type}"')
                # While the profiler starts, workers would get ahead, which hides the usual waiting.
                with workers_stopped(self.subject.iterator):
                    recorder.step()
        os.replace(part, file)
        return str(file)

    def peak(self) -> Peak:
        """Peak memory since the warm-up, and recompilations since the first steps."""
        return Peak(*peak_bytes(self.subject.device), compile_counters().graphs - self.first_graphs)

    @property
    def _workers(self) -> int:
        return getattr(self.subject.loader, "num_workers", 0) or 0


@contextlib.contextmanager
def workers_stopped(iterator: Any) -> Iterator[None]:
    """A loader's workers do nothing meanwhile; those that have ended are left alone."""
    alive = [worker for worker in getattr(iterator, "_workers", ()) if worker.is_alive()]
    try:
        for worker in alive:
            _signal(worker, signal.SIGSTOP)
        yield
    finally:
        for worker in alive:
            _signal(worker, signal.SIGCONT)


def _signal(worker: Any, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.kill(worker.pid, number)
