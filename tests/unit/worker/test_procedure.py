"""Procedures under a clock that the test sets: every number is known to the digit."""

import contextlib
import itertools
import signal
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from perfkit.worker import procedure, timeline
from perfkit.worker.messages import TimedSteps
from perfkit.worker.procedure import MeasuredStep, Procedures, drive
from perfkit.worker.session import WorkerSession

NOTHING = frozenset()


@dataclass(frozen=True)
class MarkedStep(MeasuredStep):
    """A step, and the other work in it."""

    marks: frozenset[str] = NOTHING


class Subject:
    """A training whose steps take known times."""

    loss = torch.tensor(1.0)
    taken = 0
    samples_per_step = 4
    device, iterator = torch.device("cpu"), None
    now, is_held = 0.0, False

    def __init__(
        self, wait=(0.0,), compute=(1.0,), marks=(NOTHING,), workers=0, ahead=0, kind=Procedures, **settings
    ):
        self.wait, self.compute, self.marks = map(itertools.cycle, (wait, compute, marks))
        self.loader = SimpleNamespace(num_workers=workers, prefetch_factor=ahead)
        self.__dict__ |= settings
        self.notes, self.reports = [], []
        self.procedure = kind(self.reports.append, lambda: self.now)
        self.procedure.subject = self

    def step(self):
        waited = 0.0 if self.is_held else next(self.wait)
        seconds = waited + next(self.compute)
        self.now += seconds
        self.taken += 1
        return MarkedStep(seconds, waited, 4, self.loss, next(self.marks))

    @contextlib.contextmanager
    def on_cached_batch(self):
        self.is_held = True
        yield
        self.is_held = False

    def phases(self):
        return contextlib.nullcontext()

    def note(self, text):
        self.notes.append(text)

    def run(self, job):
        return drive(job, self.step)

    def slice(self, samples=1, seconds=0.0):
        return self.run(self.procedure.slice(samples, seconds))


def test_a_slice_has_the_times_of_its_steps():
    subject = Subject(wait=[0.25, 0.5])
    assert subject.slice(samples=13) == TimedSteps(16, 5.5, [1.25, 1.5] * 2, [0.25, 0.5] * 2)
    assert subject.reports == ["measuring"]


def test_a_slice_has_the_fewest_whole_steps_and_batches_of_every_worker():
    subject = Subject(compute=[*[0.5] * 8, *[3.0] * 50])
    assert subject.procedure.steps_for(4, seconds=9.0) == 1, "nothing is known of the steps yet"
    subject.run(subject.procedure.warm_up(100))
    assert [subject.procedure.steps_for(samples, seconds=1.2) for samples in (1, 4 * 30)] == [3, 30]
    assert len(subject.slice(samples=4 * 50).step_s) == 50
    assert subject.procedure.steps_for(1, seconds=9.0) == 3, "steps have grown"
    assert Subject(workers=3).procedure.steps_for(4 * 13) == 15


def test_a_cached_batch_is_trained_on_before_it_is_timed_and_nothing_is_waited_for():
    subject = Subject(wait=[0.25])
    session = WorkerSession(SimpleNamespace(send=subject.reports.append))
    session.subject, session._clock = subject, lambda: subject.now
    cached = subject.run(session.cached_batch(16, 0.0))
    assert (cached.step_s, cached.data_wait_s, subject.taken) == ([1.0] * 4, [0.0] * 4, 4 + 3)


def test_a_worker_that_has_ended_is_sent_no_signal(monkeypatch):
    """A recycled number would belong to somebody else; a loader that was read to its end has ended workers."""
    sent = []
    monkeypatch.setattr(procedure.os, "kill", lambda pid, number: sent.append((pid, number)))
    workers = [SimpleNamespace(pid=pid, is_alive=lambda pid=pid: pid == 7) for pid in (7, 8)]
    with procedure.workers_stopped(SimpleNamespace(_workers=workers)):
        assert sent == [(7, signal.SIGSTOP)]
    assert sent == [(7, signal.SIGSTOP), (7, signal.SIGCONT)]

    def gone(pid, number):
        raise ProcessLookupError

    monkeypatch.setattr(procedure.os, "kill", gone)
    with procedure.workers_stopped(SimpleNamespace(_workers=workers)):
        pass


def test_a_program_that_ends_is_no_answer():
    def ends():
        raise StopIteration(7)

    def job():
        yield
        return 1

    with pytest.raises(StopIteration):
        drive(job(), ends)


class AheadOfItsDevice:
    """An accelerator whose host queues steps in no time; only what waits for it takes the host's time."""

    def __init__(self, monkeypatch, subject):
        self.subject, self.busy_until = subject, 0.0
        monkeypatch.setattr(timeline, "synchronize", lambda device: self.wait())
        monkeypatch.setattr(procedure, "reset_peak", lambda device: None)
        monkeypatch.setattr(timeline, "timing_event", lambda device: self.Event(self))
        subject.device = torch.device("cuda")

    def queue(self, seconds):
        self.busy_until = max(self.busy_until, self.subject.now) + seconds

    def wait(self):
        self.subject.now = max(self.subject.now, self.busy_until)

    class Event:
        def __init__(self, device):
            self.device, self.at = device, None

        def record(self):
            self.at = max(self.device.busy_until, self.device.subject.now)

        def elapsed_time(self, end):
            assert self.device.subject.now >= end.at, "read before the device has come to it"
            return 1e3 * (end.at - self.at)


def on_device(monkeypatch, device_s, **more):
    """A subject whose steps are launched in 1 ms; a marked one waits for the device."""
    subject = Subject(**more)
    device, each = AheadOfItsDevice(monkeypatch, subject), itertools.cycle(device_s)

    def step():
        start, marked = subject.now, next(subject.marks)
        subject.now += 0.001
        device.queue(next(each))
        if marked:
            device.wait()
            subject.now += 0.5  # an evaluation on the host
        return MarkedStep(subject.now - start, 0.0, 4, marks=marked)

    subject.step = step
    return subject


def test_warm_up_and_the_size_of_a_slice_go_by_the_device_s_clock(monkeypatch):
    times = [8.0] * 4 + [4.0] * 4 + [2.0] * 200
    subject = on_device(monkeypatch, times)
    warm = subject.run(subject.procedure.warm_up(1000))
    assert len(warm.steps) == 16, "launches take 1 ms each, and would look steady after 8 steps"
    assert subject.procedure.steps_for(1, seconds=5.9) == 3


def test_what_follows_the_last_step_of_a_training_that_ends_is_not_of_that_step():
    subject = Subject()
    job = subject.procedure.take(9, "measuring")
    next(job)
    for _ in range(3):
        job.send(subject.step())
    subject.now += 60.0  # a last evaluation
    subject.procedure.under_way.read_times()
    assert subject.procedure.under_way.timed().seconds == 3.0


@pytest.mark.parametrize(
    ("times", "budget", "steps"),
    [
        ([1.0] * 9, 100.0, 8),
        ([2.0] * 3 + [1.0] * 9, 100.0, 12),  # it is judged by whole windows
        ([0.7**n for n in range(9)], 2.0, 4),
        ([0.9**n for n in range(201)], 9e9, 200),
    ],
)
def test_warm_up_ends_when_two_windows_agree_or_its_budget_is_spent(times, budget, steps):
    subject = Subject(compute=times)
    assert len(subject.run(subject.procedure.warm_up(budget)).steps) == steps
