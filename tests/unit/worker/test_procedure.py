"""Procedures under a clock that the test sets: every number is known to the digit."""

import contextlib
import itertools
from types import SimpleNamespace

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from perfkit.worker import procedure, session
from perfkit.worker.messages import Block
from perfkit.worker.procedure import Procedures, Step, drive

NOTHING = frozenset()


class Subject:
    """A training whose steps take known times."""

    taken = 0
    samples_per_step, batches_per_step = 4, 1.0
    device, iterator = torch.device("cpu"), None
    now, is_held = 0.0, False

    def __init__(self, wait=(0.0,), compute=(1.0,), marks=(NOTHING,), workers=0, ahead=0, **settings):
        self.wait, self.compute, self.marks = map(itertools.cycle, (wait, compute, marks))
        self.loader = SimpleNamespace(num_workers=workers, prefetch_factor=ahead)
        self.__dict__ |= settings
        self.notes, self.reports = [], []
        self.procedure = Procedures(self.reports.append, lambda: self.now)
        self.procedure.subject = self

    def step(self):
        waited = 0.0 if self.is_held else next(self.wait)
        seconds = waited + next(self.compute)
        self.now += seconds
        self.taken += 1
        return Step(seconds, waited, 4, marks=next(self.marks))

    @contextlib.contextmanager
    def hold(self):
        self.is_held = True
        yield
        self.is_held = False

    def phases(self):
        return contextlib.nullcontext()

    def note(self, text):
        self.notes.append(text)

    def run(self, job):
        return drive(job, self.step)

    def block(self, **settings):
        return self.run(self.procedure.block(**settings))


def queue(monkeypatch, states):
    """What the loader has ready, call by call."""
    monkeypatch.setattr(procedure, "ready", lambda iterator: next(states))
    monkeypatch.setattr(Procedures, "_wait_for_workers", lambda self: None)


def test_a_block_has_the_times_of_its_steps_and_of_the_device_s_end(monkeypatch):
    subject = Subject(wait=[0.25, 0.5])

    def synchronize(device):
        subject.now += 0.5 * subject.taken

    monkeypatch.setattr(procedure, "synchronize", synchronize)
    assert subject.block(samples=13) == Block(16, 5.5 + 2.0, [1.25, 1.5] * 2, [0.25, 0.5] * 2)
    assert subject.reports == ["measuring"]


def test_steps_of_a_block_follow_from_samples_seconds_workers_and_their_queue():
    subject = Subject(compute=[*[0.5] * 8, *[3.0] * 50])
    assert subject.procedure.steps_for(4, seconds=9.0) == 1, "nothing is known of the steps yet"
    subject.run(subject.procedure.warm_up(100))
    assert [subject.procedure.steps_for(samples, seconds=9.0) for samples in (4, 4 * 30)] == [18, 30]
    assert len(subject.block(samples=4 * 50).step_s) == 50
    assert subject.procedure.steps_for(4, seconds=9.0) == 3, "steps have grown"
    assert Subject(workers=3).procedure.steps_for(4 * 13, queues=0) == 15
    one = Subject(workers=1, ahead=4).procedure
    assert [one.steps_for(4, queues=queues) for queues in (0, 1, 2)] == [1, 4, 8]
    assert Subject(workers=1, ahead=4, batches_per_step=4.0).procedure.steps_for(4, queues=2) == 2


@pytest.mark.parametrize(
    ("device", "states", "steps"),
    [
        ("cpu", [6, 6], 6),
        ("cpu", [6, 4, 5, 6], 8),
        ("cpu", [1, 3, 3, 0], 8),
        ("cpu", [6, *[5] * 50], 6 + 3 * 6),  # within limits
        ("meta", [6, *[5] * 50], 2),  # beside an accelerator, workers that rest make no step faster
    ],
)
def test_a_block_ends_with_the_queue_as_full_as_it_started(monkeypatch, device, states, steps):
    """With two workers and three batches for each."""
    queue(monkeypatch, iter(states))
    monkeypatch.setattr(Procedures, "settle", lambda self: ())
    subject = Subject(workers=2, ahead=3, device=torch.device(device))
    assert len(subject.block(samples=8).step_s) == steps == subject.taken


@pytest.mark.parametrize(("full", "waits", "steps"), [(5, 0.0, 7), (4, 0.0, 25), (0, 0.25, 7), (0, 0.01, 25)])
def test_settling_ends_when_the_loader_is_waited_for_or_its_queue_is_full(monkeypatch, full, waits, steps):
    queue(monkeypatch, itertools.repeat(full))
    subject = Subject(wait=[waits], workers=2, ahead=3)
    subject.run(subject.procedure.settle())
    assert subject.taken == steps


def test_a_held_batch_is_trained_on_before_it_is_timed_and_nothing_is_waited_for():
    subject = Subject(wait=[0.25])
    held = subject.run(subject.procedure.ceiling(16))
    assert (held.step_s, held.data_wait_s, subject.taken) == ([1.0] * 4, [0.0] * 4, 4 + 3)


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
    assert len(subject.run(subject.procedure.warm_up(budget)).plain) == steps


def test_steps_with_something_else_in_them_do_not_count_unless_half_of_the_steps_have_it():
    subject = Subject(marks=[{"evaluation"}, NOTHING, NOTHING])
    taken = subject.block(samples=16)
    assert (len(taken.step_s), taken.seconds, subject.taken) == (4, 4.0, 6)
    always = Subject(marks=[{"checkpoint"}])
    assert len(always.block(samples=4).step_s) == 8
    assert always.notes == ["every step has checkpoint in it, so that is part of a step here"]
    half = Subject(marks=[{"new epoch"}, NOTHING])
    assert [len(half.block(samples=16).step_s) for _ in range(3)] == [4, 7, 4]
    assert half.notes == ["every second step has new epoch in it, so that is part of a step here"]


def test_ranks_do_what_rank_0_decides(monkeypatch):
    """Each rank by itself would take other numbers of steps, and wait for the others for ever."""
    monkeypatch.setattr(procedure, "world", lambda: 2)
    monkeypatch.setattr(torch.distributed, "broadcast", lambda tensor, source: tensor.fill_(7.0))
    assert Subject().procedure.steps_for(4) == 7


def test_gradients_stay_on_their_rank_also_where_the_program_says_when_they_are_averaged():
    model = DistributedDataParallel.__new__(DistributedDataParallel)
    torch.nn.Module.__init__(model)
    model.require_backward_grad_sync = True
    with session.without_averaging():
        model.require_backward_grad_sync = True
        assert model.require_backward_grad_sync is False
    assert model.require_backward_grad_sync is True


def test_batches_that_came_early_are_ready_too():
    queue = SimpleNamespace(qsize=lambda: 2)
    loaded = SimpleNamespace(_data_queue=queue, _task_info={1: (0,), 2: (1, "data")})
    assert (procedure.ready(loaded), procedure.ready(None)) == (3, 0)
