"""How a training is measured, written once: warm-up, blocks, a held batch, a profile.

Each procedure is a generator that is sent every step that ends, and returns its answer. `drive` pulls the
steps of perfkit's program; a script sends its steps from where they end.
"""

import contextlib
import itertools
import math
import os
import signal
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import profiler

from perfkit import registry
from perfkit.worker.checks import compile_counters, peak_bytes, reset_peak, synchronize, world
from perfkit.worker.messages import Block, Peak

Job = Generator[None, Any, Any]
"""Is sent steps, returns an answer."""

WINDOW, MAX_WARMUP_STEPS = 4, 200
STEADY = 0.05
"""Of their median, by which two windows of steps differ at most where the time is steady."""
WAITS = 0.1
"""A loader's queue counts as empty once a step waits for more than this fraction of its time."""
MAX_SETTLING = 3
"""In multiples of the prefetched batches: the most steps before a loader's pace counts as steady, and by
which a block is extended until its queue is as full as at the start."""
FILLING_S = 2.0
"""How long workers are waited for that fill their queue."""
HELD_FIRST = 3
"""Steps on a held batch before it is timed: some batches may have been fetched ahead."""
MANY_MARKED = 8
"""Steps with something else in them that count from then on, if they are at least half of all steps."""


@dataclass(frozen=True)
class Step:
    """One step, from the end of the one before to its own end; a script's steps have more fields."""

    seconds: float
    waited: float
    """Seconds of it in which the loader was waited for."""
    samples: int
    loss: Any = None
    """A tensor on the device."""
    marks: frozenset[str] = frozenset()
    """What else happened in it, such as an evaluation."""


@dataclass
class Steps:
    """Consecutive steps, and the time they took with the device synchronised at both ends."""

    plain: list[Any] = field(default_factory=list)
    """Those that count."""
    marked: list[Any] = field(default_factory=list)
    """Those with something else in them, which are left out with their time."""
    seconds: float = 0.0
    device_step_s: list[float] = field(default_factory=list)
    """By the device's own clock (CUDA only)."""

    @property
    def step_s(self) -> list[float]:
        return [step.seconds for step in self.plain]

    @property
    def mean_s(self) -> float:
        return self.seconds / len(self.plain)

    def block(self) -> Block:
        return Block(
            samples=sum(step.samples for step in self.plain),
            seconds=max(self.seconds, 1e-9),
            step_s=self.step_s,
            data_wait_s=[step.waited for step in self.plain],
            device_step_s=self.device_step_s,
        )


Taking = Generator[None, Any, Steps]


def drive(job: Job, step: Callable[[], Any]) -> Any:
    """The answer of a procedure, whose steps are taken as it asks for them."""
    try:
        next(job)
        while True:
            job.send(step())
    except StopIteration as done:
        return done.value


class Procedures:
    """What every training can be asked, perfkit's own or a script.

    A question is a method, or a function at `module:name`, which gets this object first: an addition asks so.

    `report` is called with the phase that begins; the clock gives seconds.
    """

    subject: Any
    """A `Training` or a script, set before anything is measured.

    It has a `device`, a `loader` and the loader's `iterator`, which holds the worker processes,
    `samples_per_step` over all ranks and `batches_per_step` of one. While entered, `hold` repeats one batch
    on the device, and `phases` names the parts of a step for the profiler. `note` keeps a remark.
    """
    first_graphs = 0
    """Graphs that torch.compile had made before further ones counted as recompilations."""

    def __init__(self, report: Callable[[str], None], clock: Callable[[], float] = time.perf_counter) -> None:
        self.report = report
        self._clock = clock
        self._step_s = math.inf
        """A step of the end of the warm-up."""
        self._counts_marked, self._plain, self._marked = False, 0, 0
        self.under_way = Steps()
        """The steps of the last `take`: all that is known of it if the training ends meanwhile."""

    def answer(self, question: str, arguments: Mapping[str, Any]) -> Any:
        """The answer to a question, or the procedure that returns it."""
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
        device, ends = self.subject.device, list[torch.cuda.Event]()
        taken = self.under_way = Steps([*early])
        synchronize(device)
        start = self._clock()
        while True:
            if device.type == "cuda":  # the end of a step on the device's own timeline
                ends.append(torch.cuda.Event(enable_timing=True))
                ends[-1].record(torch.cuda.current_stream(device))
            steps = len(taken.plain)
            if steps >= count and (steps >= most or self.of_rank_0(enough())):
                break
            self._add((yield), taken)
        synchronize(device)
        taken.seconds = self._clock() - start + sum(step.seconds for step in early)
        taken.seconds -= sum(step.seconds for step in taken.marked)
        taken.device_step_s = [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(ends)]
        self.check(taken.plain)
        return taken

    def check(self, steps: Sequence[Any]) -> None:
        """Raises if steps do not train."""

    def _add(self, step: Any, taken: Steps) -> None:
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
            taken.plain, taken.marked = taken.plain + taken.marked, []

    def warm_up(self, budget_s: float) -> Taking:
        """Steps until their time is steady, or until the budget is spent; then a new memory peak begins."""
        window = max(WINDOW, self._workers)
        until = self._clock() + budget_s

        def is_warm() -> bool:
            step_s = self.under_way.step_s
            if len(step_s) % window:
                return False
            synchronize(self.subject.device)  # else the host runs ahead of the budget
            before, last = step_s[-2 * window : -window] or [0.0], step_s[-window:]
            difference = abs(statistics.median(before) - statistics.median(last))
            return self._clock() >= until or difference <= STEADY * statistics.median(before)

        warm = yield from self.take(window, "warm-up", MAX_WARMUP_STEPS, is_warm)
        self._step_s = self.of_rank_0(statistics.median((warm.device_step_s or warm.step_s)[-window:]))
        reset_peak(self.subject.device)
        return warm

    def block(self, samples: int, seconds: float = 0.0, queues: int = 1) -> Job:
        """One block of at least this many samples, for at least some seconds, judged by the steps before it.

        The training was idle: what was prefetched meanwhile is used up first. On a CPU with workers the block
        takes `queues` times the batches of their queue, and continues, within limits, until that is as full
        as at the start: otherwise the steps on some batches would count without the work of loading as many,
        which competes with the model for the cores. If 0, the queue is left as it is. With an accelerator it
        is empty at the start, and the loader's pace shows at once.
        """
        subject = self.subject
        on_cpu = subject.device.type == "cpu"
        if queues or not on_cpu:
            yield from self.settle()
        before, surplus = ready(subject.iterator), list[int]()
        queues *= on_cpu
        steps = self.steps_for(samples, seconds, queues)
        most = steps + MAX_SETTLING * self._queue_steps if queues else 0

        def is_as_full() -> bool:
            surplus.append(ready(subject.iterator) - before)
            return surplus[-1] * surplus[0] <= 0

        taken = yield from self.take(steps, "measuring", most, is_as_full)
        self._step_s = self.of_rank_0(statistics.median(taken.device_step_s or taken.step_s))  # it may grow
        self._wait_for_workers()
        return taken.block()

    def steps_for(self, samples: int, seconds: float = 0.0, queues: int = 1) -> int:
        """Steps of a block: a multiple of the number of workers, which deliver one batch each per round."""
        needed = math.ceil(samples / max(1, self.subject.samples_per_step))
        steps = max(1, needed, math.ceil(seconds / self._step_s), queues * self._queue_steps)
        workers = max(1, self._workers)
        return int(self.of_rank_0(math.ceil(steps / workers) * workers))

    def settle(self) -> Job:
        """Uses up what was prefetched while the training was idle, until it trains as in a long run.

        Those batches are trained on: after dropping them, the workers would refill the queue at full speed
        on the model's cores, which they do not in a steady run. Then, on a CPU, steps are taken until the
        queue is empty and they wait, or until it is as full as workers that keep up leave it: batches left
        over from the pause would make a slow loader look fast.
        """
        subject = self.subject

        def is_settled() -> bool:
            last = self.under_way.plain[-1]
            waits = last.waited > WAITS * last.seconds
            return waits or ready(subject.iterator) > self._prefetched - self._workers

        steps, on_cpu = self._queue_steps, subject.device.type == "cpu"
        if steps:
            most = (1 + MAX_SETTLING) * steps + 1 if on_cpu else 0
            yield from self.take(steps + on_cpu, "settling", most, is_settled)

    def ceiling(self, samples: int) -> Job:
        """Steps on one batch that is already on the device, without a loader."""
        with self.subject.hold():
            yield from self.take(HELD_FIRST, "ceiling")
            self._wait_for_workers()
            return (yield from self.take(self.steps_for(samples, queues=0), "ceiling")).block()

    def profile(self, path: str, stacks: bool, **schedule: int) -> Job:
        """Takes steps with the profiler, and writes a trace of the active ones for each rank: its path.

        `schedule` is that of `torch.profiler.schedule`: wait, warmup, active.
        """
        if rank := int(os.environ.get("RANK", "0")):
            path = path.replace(".json", f".rank{rank}.json")
        folder, name = os.path.split(path)
        part = os.path.join(folder, f"part-{name}")  # a file that is there is complete
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
            for _ in range(sum(schedule.values())):
                yield
                with _workers_stopped(self.subject.iterator):
                    recorder.step()
        os.replace(part, path)
        return path

    def peak(self) -> Peak:
        """Peak memory since the warm-up, and recompilations since the first steps."""
        return Peak(*peak_bytes(self.subject.device), compile_counters().graphs - self.first_graphs)

    @property
    def _workers(self) -> int:
        return getattr(self.subject.loader, "num_workers", 0) or 0

    @property
    def _prefetched(self) -> int:
        """The number of batches that the loader's queue holds."""
        return self._workers * (getattr(self.subject.loader, "prefetch_factor", 0) or 0)

    @property
    def _queue_steps(self) -> int:
        """Steps for which the loader's queue holds batches."""
        batches_per_step: float = self.subject.batches_per_step
        return math.ceil(self._prefetched / max(1.0, batches_per_step))

    def _wait_for_workers(self) -> None:
        """Waits until the loader's queue is full: on a CPU its workers would slow down what comes next."""
        until, iterator = time.monotonic() + FILLING_S, self.subject.iterator
        while 0 < ready(iterator) < self._prefetched and time.monotonic() < until:
            time.sleep(0.01)

    def of_rank_0(self, value: float) -> float:
        """The value of rank 0: after different numbers of steps, ranks would wait for ever."""
        if world() == 1:
            return value
        shared = torch.tensor([value], device=self.subject.device, dtype=torch.float64)
        torch.distributed.broadcast(shared, 0)
        return float(shared.item())


def ready(iterator: Any) -> int:
    """Batches that the loader's workers have ready; 0 where that cannot be known."""
    with contextlib.suppress(AttributeError, NotImplementedError):  # macOS cannot tell
        early = sum(len(task) == 2 for task in iterator._task_info.values())  # they wait for their turn
        return int(iterator._data_queue.qsize()) + early
    return 0


# ---------------------------------------------------------------- the profiler


@contextlib.contextmanager
def _workers_stopped(iterator: Any) -> Iterator[None]:
    """While the profiler starts, workers would get ahead, which hides the usual waiting."""
    pids = [worker.pid for worker in getattr(iterator, "_workers", ())]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
