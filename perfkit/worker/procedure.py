"""How a training is measured, written once: warm-up, blocks, a held batch, a profile, ranks.

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
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from perfkit.results.run import Communication
from perfkit.worker.device import compile_counters, peak_bytes, synchronize, world
from perfkit.worker.messages import Block, Peak, Progress, SyncReport
from perfkit.worker.syncs import detect_syncs

Job = Generator[None, Any, Any]
"""Is sent steps, returns an answer."""

WINDOW, MAX_WARMUP_STEPS = 4, 200
STEADY = 0.05
WAITS = 0.1
"""A loader's queue counts as empty once a step waits for more than this fraction of its time."""
MAX_SETTLING = 3
"""In multiples of the prefetched batches: the most steps before a loader's pace counts as steady, and by
which a block is extended until its queue is as full as at the start."""
FILLING_S = 2.0
"""How long workers are waited for that fill their queue."""
HELD_FIRST = 3
"""Steps on a held batch before it is timed: some batches may have been fetched ahead."""
ALL_MARKED = 20
"""After this many steps with something else in each of them, those are what a step is."""
ROUNDS = 5
PROGRESS_S = 0.1
SMALL = 1 << 12
"""Bytes of the collective whose time is the latency."""


@dataclass(frozen=True)
class Step:
    """One step, from the end of the one before to its own end; a script's steps have more fields."""

    seconds: float
    waited: float
    """Seconds of it in which the loader was waited for."""
    samples: int
    loss: torch.Tensor | None = None
    marks: frozenset[str] = frozenset()
    """What else happened in it, such as an evaluation."""


class Subject(Protocol):
    """The training to measure: a `Training`, or a script.

    `samples_per_step` is over all ranks, `batches_per_step` of one. `prefetched` is the number of batches
    that the loader's queue holds. `hold` repeats one batch on the device, `phases` names the parts of a step
    for the profiler, `check` raises if steps do not train, `note` keeps a remark.
    """

    @property
    def samples_per_step(self) -> int: ...
    @property
    def batches_per_step(self) -> float: ...
    @property
    def workers(self) -> int: ...
    @property
    def prefetched(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def iterator(self) -> Any: ...
    def hold(self) -> AbstractContextManager[None]: ...
    def phases(self) -> AbstractContextManager[None]: ...
    def check(self, steps: Sequence[Any]) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass
class Steps:
    """Consecutive steps, and the time they took with the device synchronised at both ends."""

    plain: list[Any] = field(default_factory=list)
    """Those that count."""
    all: list[Any] = field(default_factory=list)
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


class Procedure:
    """The measuring of one training.

    Args:
        subject: the training.
        report: called with progress, a few times a second.
        clock: gives seconds.
    """

    def __init__(
        self,
        subject: Subject,
        report: Callable[[Progress], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._subject = subject
        self._report = report
        self._clock = clock
        self._reported_at = -math.inf
        self._step_s = math.inf
        """A step of the end of the warm-up."""
        self._counts_marked = False
        self.under_way = Steps()
        """The steps of the last `take`: all that is known of it if the training ends meanwhile."""

    @property
    def device(self) -> torch.device:
        return self._subject.device

    def tell(self, phase: str, done: int, total: int) -> None:
        """Reports progress, not too often."""
        now = self._clock()
        if done == total or now - self._reported_at >= PROGRESS_S:
            self._reported_at = now
            self._report(Progress(phase, done, total))

    def take(
        self, count: int, phase: str, most: int = 0, enough: Callable[[], bool] = lambda: True
    ) -> Taking:
        """Takes `count` steps, then continues until `enough()` or `most` steps.

        Steps in which something else happened are left out, with their time.
        """
        device, ends = self._subject.device, list[torch.cuda.Event]()
        taken = self.under_way = Steps()
        synchronize(device)
        start = self._clock()
        _mark(ends, device)
        while len(taken.plain) < count or (len(taken.plain) < most and not self.agreed(enough())):
            step = yield
            _mark(ends, device)
            self._add(step, taken)
            done = len(taken.plain)
            self.tell(phase, done, max(count, done))
        synchronize(device)
        marked = 0.0 if self._counts_marked else sum(step.seconds for step in taken.all if step.marks)
        taken.seconds = self._clock() - start - marked
        taken.device_step_s = [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(ends)]
        self._subject.check(taken.plain)
        return taken

    def _add(self, step: Any, taken: Steps) -> None:
        taken.all.append(step)
        if self._counts_marked or not step.marks:
            taken.plain.append(step)
        elif not taken.plain and len(taken.all) >= ALL_MARKED:
            self._counts_marked = True
            marks = " and ".join(sorted(set().union(*(each.marks for each in taken.all))))
            self._subject.note(f"every step has {marks} in it, so that is part of a step here")
            taken.plain.extend(taken.all)

    def first_steps(self, early: list[Any], count: int) -> Taking:
        """The first steps, whose losses are those of the exported script; `early` ones have been taken."""
        steps = yield from self.take(max(0, count - len(early)), "first steps")
        steps.plain[:0] = early
        steps.seconds += sum(step.seconds for step in early)
        self._subject.check(steps.plain)
        return steps

    def warm_up(self, budget_s: float) -> Taking:
        """Steps until their time is steady, or until the budget is spent."""
        window = max(WINDOW, self._subject.workers)
        until = self._clock() + budget_s

        def is_warm() -> bool:
            if len(self.under_way.plain) % window:
                return False
            synchronize(self._subject.device)  # else the host runs ahead of the budget
            return self._clock() >= until or _is_steady(self.under_way.step_s, window)

        warm = yield from self.take(window, "warm-up", MAX_WARMUP_STEPS, is_warm)
        self._step_s = self.of_rank_0(statistics.median(warm.step_s[-window:]))
        return warm

    def block(self, samples: int, seconds: float = 0.0, settle: bool = True, queues: int = 1) -> Taking:
        """Measures one block of at least this many samples, for at least some seconds.

        On a CPU it continues, within limits, until the loader's queue is as full as at the start. Otherwise
        it would contain the steps on some batches without the work of loading as many, which competes with
        the model for the cores.

        Args:
            samples: how many, rounded up to whole steps and, with workers, to one batch of each.
            seconds: how long, judged by the steps of the warm-up.
            settle: the training was idle: first use up what was prefetched meanwhile.
            queues: with workers, on a CPU, at least this many times the batches that their queue holds; if 0,
                the queue is left as it is. With an accelerator it is empty at the start, and the loader's
                pace shows at once.
        """
        subject = self._subject
        on_cpu = subject.device.type == "cpu"
        if settle and (queues or not on_cpu):
            yield from self.settle()
        before, surplus = ready(subject.iterator), list[int]()
        steps = self.steps_for(samples, seconds, queues if on_cpu else 0)
        most = steps + MAX_SETTLING * self._queue_steps if on_cpu and queues else 0

        def is_as_full() -> bool:
            surplus.append(ready(subject.iterator) - before)
            return surplus[-1] * surplus[0] <= 0

        taken = yield from self.take(steps, "measuring", most, is_as_full)
        self._step_s = self.of_rank_0(statistics.median(taken.step_s))  # those of a script may grow
        self._wait_for_workers()
        return taken

    def steps_for(self, samples: int, seconds: float = 0.0, queues: int = 1) -> int:
        """Steps of a block: a multiple of the number of workers, which deliver one batch each per round."""
        needed = math.ceil(samples / max(1, self._subject.samples_per_step))
        steps = max(1, needed, math.ceil(seconds / self._step_s), queues * self._queue_steps)
        workers = max(1, self._subject.workers)
        return int(self.of_rank_0(math.ceil(steps / workers) * workers))

    def settle(self) -> Job:
        """Uses up what was prefetched while the training was idle, until it trains as in a long run.

        Those batches are trained on: after dropping them, the workers would refill the queue at full speed
        on the model's cores, which they do not in a steady run. Then, on a CPU, steps are taken until the
        queue is empty and they wait, or until it is as full as workers that keep up leave it: batches left
        over from the pause would make a slow loader look fast.
        """
        subject = self._subject
        if not subject.prefetched:
            return
        yield from self.take(self._queue_steps, "settling")

        def is_settled() -> bool:
            last = self.under_way.plain[-1]
            waits = last.waited > WAITS * last.seconds
            return waits or ready(subject.iterator) > subject.prefetched - subject.workers

        if subject.device.type == "cpu":
            yield from self.take(1, "settling", MAX_SETTLING * self._queue_steps + 1, is_settled)

    def held(self, samples: int) -> Taking:
        """Measures steps on one batch that is already on the device, without a loader."""
        with self._subject.hold():
            yield from self.take(HELD_FIRST, "ceiling")
            self._wait_for_workers()
            return (yield from self.take(self.steps_for(samples, queues=0), "ceiling"))

    def profile(
        self, path: str, wait: int, warmup: int, active: int, stacks: bool
    ) -> Generator[None, Any, str]:
        """Takes steps with the profiler, and writes a trace of the active ones for each rank: its path."""
        if rank := int(os.environ.get("RANK", "0")):
            path = path.replace(".json", f".rank{rank}.json")
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._subject.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        recorder = torch.profiler.profile(
            activities=activities,
            schedule=torch.profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=1),
            record_shapes=True,
            with_stack=stacks,
            on_trace_ready=lambda recorded: _write(recorded, path),
        )
        total = wait + warmup + active
        with self._subject.phases(), recorder:
            for step in range(1, total + 1):
                yield
                with _workers_stopped(self._subject.iterator):
                    recorder.step()
                self.tell("profiling", step, total)
        return path

    def communication(self, samples: int, model: Any, times: int) -> Generator[None, Any, Communication]:
        """What averaging gradients between the ranks costs: steps with it and without, the collectives alone.

        The exposed time is the difference of the two steps, which needs no profiler and holds for gloo and
        NCCL alike; the rest of the collectives' own time was hidden behind the computation. Steps without it
        let the weights of the ranks drift apart; they get those of rank 0 again.

        Args:
            samples: of each block.
            model: the `DistributedDataParallel` module.
            times: how often a step averages.
        """
        with_it, without = list[float](), list[float]()
        steps = self.steps_for(samples)
        for _ in range(ROUNDS):
            with_it.append((yield from self.take(steps, "ranks")).mean_s)
            with _without_averaging(model):
                without.append((yield from self.take(steps, "ranks")).mean_s)
        with torch.no_grad():
            for value in itertools.chain(model.parameters(), model.buffers()):
                torch.distributed.broadcast(value, 0)
        gradients = sum(p.nbytes for p in model.parameters() if p.requires_grad)
        full, rest = divmod(gradients, model.bucket_bytes_cap)
        buckets = [model.bucket_bytes_cap] * full + [rest]
        device, compute_s = self._subject.device, statistics.median(without)
        start_s, alone_s = (_reduce_s(sizes, device) for sizes in ([SMALL], buckets))
        rank_compute_s: list[Any] = [None] * world()
        torch.distributed.all_gather_object(rank_compute_s, compute_s)
        return Communication(
            bytes_per_step=gradients * times,
            step_s=statistics.median(with_it),
            compute_s=compute_s,
            alone_s=alone_s * times,
            rank_compute_s=rank_compute_s,
            start_s=start_s,
        )

    @property
    def _queue_steps(self) -> int:
        """Steps for which the loader's queue holds batches."""
        return math.ceil(self._subject.prefetched / max(1.0, self._subject.batches_per_step))

    def _wait_for_workers(self) -> None:
        """Waits until the loader's queue is full: on a CPU its workers would slow down what comes next."""
        until, iterator = time.monotonic() + FILLING_S, self._subject.iterator
        while 0 < ready(iterator) < self._subject.prefetched and time.monotonic() < until:
            time.sleep(0.01)

    def of_rank_0(self, value: float) -> float:
        """The value of rank 0: after different numbers of steps, ranks would wait for ever."""
        if world() == 1:
            return value
        shared = torch.tensor([value], device=self._subject.device, dtype=torch.float64)
        torch.distributed.broadcast(shared, 0)
        return float(shared.item())

    def agreed(self, decision: bool) -> bool:
        """The decision of rank 0."""
        return bool(self.of_rank_0(float(decision)))


class CommonQuestions:
    """What every training can be asked, perfkit's own or a script: each public method is a question.

    One that needs steps is a procedure, carried out by whoever has the steps.
    """

    _procedure: Procedure
    _first_graphs = 0
    """Graphs that torch.compile had made before further ones counted as recompilations."""

    def block(self, **settings: Any) -> Job:
        """A block of steps; see `Procedure.block`."""
        return (yield from self._procedure.block(**settings)).block()

    def ceiling(self, samples: int) -> Job:
        """Steps on a batch that is already on the device, without the loader."""
        return (yield from self._procedure.held(samples)).block()

    def peak(self) -> Peak:
        """Peak memory since the warm-up, and recompilations since the first steps."""
        graphs = compile_counters().graphs - self._first_graphs
        return Peak(*peak_bytes(self._procedure.device), graphs)

    def syncs(self, steps: int) -> Job:
        """Copies and waits between host and device in some steps."""
        with detect_syncs() as syncs:
            for _ in range(steps):
                yield
        return SyncReport(syncs.sorted(), steps, str(self._procedure.device))

    def profile(self, **settings: Any) -> Job:
        """Records some steps with the profiler into a trace file; see `Procedure.profile`."""
        return self._procedure.profile(**settings)


def _mark(ends: list[torch.cuda.Event], device: torch.device) -> None:
    """Records the end of a step on the device's own timeline."""
    if device.type == "cuda":
        ends.append(torch.cuda.Event(enable_timing=True))
        ends[-1].record()


def _is_steady(step_s: Sequence[float], window: int) -> bool:
    """Whether the medians of the last two windows of steps differ by at most 5%."""
    if len(step_s) < 2 * window:
        return False
    before = statistics.median(step_s[-2 * window : -window])
    return abs(before - statistics.median(step_s[-window:])) <= STEADY * before


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


def _write(recorded: Any, path: str) -> None:
    """Writes beside the path first: a file that is there is complete."""
    stem, dot, suffix = path.rpartition(".json")
    part = f"{stem}.part{dot}{suffix}"
    recorded.export_chrome_trace(part)
    os.replace(part, path)


# ---------------------------------------------------------------- ranks


@contextlib.contextmanager
def _without_averaging(model: Any) -> Iterator[None]:
    """Keeps gradients on their rank, also where the program itself says when they are averaged."""
    plain = type(model)
    silent = property(lambda self: False, lambda self, value: None)
    before = model.__dict__.pop("require_backward_grad_sync")
    model.__class__ = type(plain.__name__, (plain,), {"require_backward_grad_sync": silent})
    try:
        yield
    finally:
        model.__class__ = plain
        model.require_backward_grad_sync = before


def _reduce_s(sizes: list[int], device: torch.device) -> float:
    """Median seconds of collectives of these sizes, one after the other, with nothing else running."""
    tensors = [torch.zeros(max(1, size // 4), device=device) for size in sizes]
    seconds = []
    for _ in range(ROUNDS + 1):
        torch.distributed.barrier()
        synchronize(device)
        start = time.perf_counter()
        for tensor in tensors:
            torch.distributed.all_reduce(tensor)
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])
