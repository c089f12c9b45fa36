"""Procedures under a clock that the test sets: every number is known to the digit."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from perfkit.worker import procedure
from perfkit.worker.procedure import Job, Procedure, Steps, drive


@dataclass
class Step:
    seconds: float
    waited: float
    samples: int = 4
    marks: frozenset[str] = frozenset()


@dataclass
class Subject:
    """A training whose steps take known times; `queue` is what its loader has ready, call by call."""

    wait: Iterator[float] = field(default_factory=lambda: itertools.repeat(0.0))
    compute: Iterator[float] = field(default_factory=lambda: itertools.repeat(1.0))
    marks: Iterator[frozenset[str]] = field(default_factory=lambda: itertools.repeat(frozenset()))
    workers: int = 0
    prefetched: int = 0
    batches_per_step: float = 1.0
    samples_per_step: int = 4
    device: torch.device = torch.device("cpu")
    iterator: Any = None
    unfinished: float = 0.0
    """Seconds that the device needs after each step, until it is synchronised."""
    now: float = 0.0
    queued: float = 0.0
    taken: int = 0
    held: bool = False
    notes: list[str] = field(default_factory=list)
    told: list[tuple[str, int, int]] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def step(self) -> Step:
        waited = 0.0 if self.held else next(self.wait)
        seconds = waited + next(self.compute)
        self.now += seconds
        self.queued += self.unfinished
        self.taken += 1
        return Step(seconds, waited, marks=next(self.marks))

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        self.held = True
        yield
        self.held = False

    def phases(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def check(self, steps: Sequence[Any]) -> None:
        pass

    def note(self, text: str) -> None:
        self.notes.append(text)

    @property
    def procedure(self) -> Procedure:
        return Procedure(
            self, lambda phase, done, total, _: self.told.append((phase, done, total)), self.clock
        )

    def run(self, job: Job) -> Any:
        return drive(job, self.step)


@pytest.fixture(autouse=True)
def _a_device_that_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Subject]]:
    subjects: list[Subject] = []

    def synchronize(device: torch.device) -> None:
        for subject in subjects:
            subject.now, subject.queued = subject.now + subject.queued, 0.0

    monkeypatch.setattr(procedure, "synchronize", synchronize)
    yield subjects


def block(subject: Subject, **more: Any) -> dict[str, Any]:
    steps: Steps = subject.run(subject.procedure.block(**{"settle": False, **more}))
    return steps.block()


def queue(monkeypatch: pytest.MonkeyPatch, states: Iterator[int]) -> None:
    monkeypatch.setattr(procedure, "ready", lambda iterator: next(states))
    monkeypatch.setattr(Procedure, "_wait_for_workers", lambda self: None)


def test_a_block_has_the_times_of_its_steps_and_ends_when_the_device_has_finished(
    _a_device_that_is_waited_for: list[Subject],
) -> None:
    subject = Subject(wait=itertools.cycle([0.25, 0.5]), unfinished=0.5)
    _a_device_that_is_waited_for.append(subject)
    assert block(subject, samples=13) == {
        "samples": 16,
        "seconds": 5.5 + 4 * 0.5,
        "step_s": [1.25, 1.5, 1.25, 1.5],
        "data_wait_s": [0.25, 0.5, 0.25, 0.5],
        "device_step_s": [],
    }
    assert subject.told[-1] == ("measuring", 4, 4)


def test_a_block_lasts_as_long_as_is_asked_by_the_steps_of_the_warm_up() -> None:
    subject = Subject(compute=itertools.repeat(0.5))
    own = subject.procedure
    assert own.steps_for(4, seconds=9.0) == 1, "nothing is known of the steps yet"
    subject.run(own.warm_up(100))
    assert (own.steps_for(4, seconds=9.0), own.steps_for(4 * 30, seconds=9.0)) == (18, 30)


def test_a_block_has_whole_turns_of_the_workers_and_is_longer_than_their_queue() -> None:
    assert Subject(workers=3).procedure.steps_for(4 * 13, queues=0) == 15
    own = Subject(workers=1, prefetched=4).procedure
    assert (own.steps_for(4, queues=0), own.steps_for(4), own.steps_for(4, queues=2)) == (1, 4, 8)
    assert Subject(workers=1, prefetched=4, batches_per_step=4.0).procedure.steps_for(4, queues=2) == 2


@pytest.mark.parametrize(
    ("device", "states", "steps"),
    [
        ("cpu", [6, 6], 6),
        ("cpu", [6, 4, 5, 6], 8),
        ("cpu", [1, 3, 3, 0], 8),
        ("cpu", [6, *[5] * 50], 6 + 3 * 6),  # within limits
        ("mps", [6, *[5] * 50], 2),  # beside an accelerator, workers that rest make no step faster
    ],
)
def test_a_block_ends_with_the_queue_as_full_as_it_started(
    monkeypatch: pytest.MonkeyPatch, device: str, states: list[int], steps: int
) -> None:
    """With two workers and three batches for each."""
    subject = Subject(workers=2, prefetched=6, device=torch.device(device))
    queue(monkeypatch, iter(states))
    assert len(block(subject, samples=8)["step_s"]) == steps == subject.taken


@pytest.mark.parametrize(("full", "waits", "steps"), [(5, 0.0, 7), (4, 0.0, 25), (0, 0.25, 7), (0, 0.01, 25)])
def test_settling_ends_when_the_loader_is_waited_for_or_has_its_queue_full_again(
    monkeypatch: pytest.MonkeyPatch, full: int, waits: float, steps: int
) -> None:
    subject = Subject(wait=itertools.repeat(waits), workers=2, prefetched=6)
    queue(monkeypatch, itertools.repeat(full))
    subject.run(subject.procedure.settle())
    assert subject.taken == steps


def test_a_queue_that_is_left_as_it_is_makes_a_block_as_short_as_its_samples() -> None:
    subject = Subject(workers=1, prefetched=4)
    assert len(block(subject, samples=8, settle=True, queues=0)["step_s"]) == 2 == subject.taken


def test_a_held_batch_is_trained_on_before_it_is_timed_and_nothing_is_waited_for() -> None:
    subject = Subject(wait=itertools.repeat(0.25))
    held = subject.run(subject.procedure.held(16)).block()
    assert (held["step_s"], held["data_wait_s"], subject.taken) == ([1.0] * 4, [0.0] * 4, 4 + 3)
    assert not subject.held


@pytest.mark.parametrize(
    ("compute", "budget", "steps"),
    [
        (itertools.repeat(1.0), 100.0, 8),
        ((0.7**n for n in itertools.count()), 2.0, 4),
        ((0.9**n for n in itertools.count()), 9e9, 200),
    ],
)
def test_warm_up_ends_when_two_windows_agree_or_its_budget_is_spent(
    compute: Any, budget: float, steps: int
) -> None:
    subject = Subject(compute=iter(compute))
    assert len(subject.run(subject.procedure.warm_up(budget)).plain) == steps


def test_steps_with_something_else_in_them_do_not_count_nor_does_their_time() -> None:
    marks = itertools.cycle([frozenset({"evaluation"}), frozenset[str](), frozenset[str]()])
    subject = Subject(marks=marks)
    taken = block(subject, samples=16)
    assert (len(taken["step_s"]), taken["seconds"], subject.taken) == (4, 4.0, 6)


def test_where_every_step_has_something_else_in_it_that_is_what_a_step_is() -> None:
    subject = Subject(marks=itertools.repeat(frozenset({"checkpoint"})))
    assert len(block(subject, samples=4)["step_s"]) == 20
    assert subject.notes == ["every step has checkpoint in it, so that is part of a step here"]


def test_writing_the_trace_is_no_part_of_the_profiled_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject()

    def slow(recorded: object, path: str) -> None:
        subject.now += 500

    monkeypatch.setattr(procedure, "_write", slow)
    report = subject.run(
        subject.procedure.profile(
            "x.json", wait=0, warmup=1, active=2, shapes=False, memory=False, stacks=False
        )
    )
    assert (subject.now > 500, report["marks"][-1] - report["marks"][0]) == (True, 2.0)
    assert report["plain_step_s"] == 1.0


def test_ranks_do_what_rank_0_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank by itself would take other numbers of steps, and wait for the others for ever."""
    monkeypatch.setattr(procedure, "world", lambda: 2)
    monkeypatch.setattr(torch.distributed, "broadcast", lambda tensor, source: tensor.fill_(7.0))
    assert Subject().procedure.steps_for(4) == 7


def test_gradients_stay_on_their_rank_also_where_the_program_says_when_they_are_averaged() -> None:
    class Model(torch.nn.Linear):
        require_backward_grad_sync: bool

    model = Model(1, 1)
    model.require_backward_grad_sync = True
    with procedure._without_averaging(model):
        model.require_backward_grad_sync = True
        assert model.require_backward_grad_sync is False
    assert (model.require_backward_grad_sync, type(model)) == (True, Model)


def test_batches_that_came_early_are_ready_too() -> None:
    class Loaded:
        def __init__(self, waiting: int, tasks: dict[int, Any]) -> None:
            self._data_queue = type("Queue", (), {"qsize": staticmethod(lambda: waiting)})
            self._task_info = tasks

    assert procedure.ready(Loaded(2, {1: (0,), 2: (1, "data")})) == 3
    assert procedure.ready(None) == 0


_: Callable[[procedure.Subject], None] = lambda subject: None
