"""The harness under a clock that the test sets: every number is known to the digit."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from perfkit.errors import RunFailed
from perfkit.recipe import Recipe
from perfkit.worker import profiler
from perfkit.worker.harness import Device, Harness
from perfkit.worker.messages import RecordProfile


class FakeClock:
    """Says what time it is; work takes the time that the fakes below say it takes."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


class FakeDevice(Device):
    """Finishes queued work when it is synchronised, as an accelerator does."""

    def __init__(self, clock: FakeClock, queued_per_step: float = 0.0) -> None:
        super().__init__(torch.device("cpu"))
        self.clock = clock
        self.queued = 0.0
        self.queued_per_step = queued_per_step
        self.synchronized = 0

    def synchronize(self) -> None:
        self.clock.spend(self.queued)
        self.queued = 0.0
        self.synchronized += 1


class FakeLoader:
    """Batches that take `seconds` to fetch; the batch carries its number."""

    def __init__(self, clock: FakeClock, seconds: list[float], batch_size: int) -> None:
        self.clock, self.seconds, self.batch_size = clock, itertools.cycle(seconds), batch_size
        self.fetched = 0

    def __iter__(self) -> Any:
        for _ in range(10):
            self.clock.spend(next(self.seconds))
            self.fetched += 1
            yield torch.full((self.batch_size, 1), float(self.fetched)), torch.zeros(self.batch_size)


class FakeTraining:
    """A training whose step takes a known time on host and device."""

    def __init__(self, clock: FakeClock, fetch: list[float], compute: float, recipe: Recipe) -> None:
        self.clock, self.compute, self.recipe = clock, compute, recipe
        self.device = torch.device("cpu")
        self.loader = FakeLoader(clock, fetch, recipe.batch_size)
        self.seen: list[float] = []
        self.loss = 1.0
        self.fake_device: FakeDevice | None = None

    def batches(self, source: Any) -> Any:
        return iter(source)

    def step(self, batches: Any) -> torch.Tensor:
        for _ in range(self.recipe.accumulation):
            inputs, _ = next(batches)
            self.seen.append(float(inputs[0, 0]))
            self.clock.spend(self.compute)
        if self.fake_device:
            self.fake_device.queued += self.fake_device.queued_per_step
        return torch.tensor(self.loss)


def harness(
    fetch: list[float], compute: float, queued: float = 0.0, **switches: Any
) -> tuple[Harness, FakeTraining]:
    clock = FakeClock()
    training = FakeTraining(clock, fetch, compute, Recipe(**{"batch_size": 4, **switches}))
    device = training.fake_device = FakeDevice(clock, queued)
    return Harness(training, clock, device), training  # type: ignore[arg-type]


def test_a_step_is_its_wait_plus_its_work() -> None:
    measured, _ = harness([0.25, 0.5], compute=1.0)
    block = measured.block(samples=16)
    assert block.step_s == [1.25, 1.5, 1.25, 1.5]
    assert block.data_wait_s == [0.25, 0.5, 0.25, 0.5]
    assert block.seconds == 5.5
    assert block.samples_per_s == 16 / 5.5


def test_a_block_ends_when_the_device_has_finished() -> None:
    measured, _ = harness([0.0], compute=1.0, queued=0.5)
    block = measured.block(samples=8)
    assert block.step_s == [1.0, 1.0]  # the host does not wait within a block
    assert block.seconds == 3.0
    assert measured.device.synchronized == 2  # type: ignore[attr-defined]


def test_samples_are_rounded_up_to_whole_steps() -> None:
    measured, training = harness([0.0], compute=1.0)
    assert measured.block(samples=9).samples == 12
    assert len(training.seen) == 3


def test_a_block_has_a_whole_number_of_turns_of_the_workers() -> None:
    measured, _ = harness([0.0], compute=1.0, workers=3)
    assert measured.steps_for(4 * 13) == 15


def test_a_block_lasts_as_long_as_is_asked_by_the_steps_of_the_warm_up() -> None:
    measured, _ = harness([0.0], compute=0.5)
    assert measured.steps_for(4, seconds=9.0) == 1, "nothing is known of the steps yet"
    measured.warm_up(seconds=100)
    assert measured.steps_for(4, seconds=9.0) == 18
    assert measured.steps_for(4 * 30, seconds=9.0) == 30


def test_a_block_is_longer_than_the_queue_of_the_workers() -> None:
    measured, _ = harness([0.0], compute=1.0, workers=1, prefetch_factor=4)
    assert (measured.steps_for(4), measured.steps_for(4, queues=2)) == (4, 8)
    measured, _ = harness([0.0], compute=1.0, workers=1, prefetch_factor=4, accumulation=4)
    assert measured.steps_for(16, queues=2) == 2
    assert measured.ceiling(samples=16).samples == 16


def test_without_asking_for_a_full_queue_a_block_is_as_short_as_its_samples() -> None:
    measured, training = harness([0.0], compute=1.0, workers=1, prefetch_factor=4)
    assert len(measured.block(samples=8, settle=True, queues=0).step_s) == 2
    assert training.seen == [1, 2]


def test_accumulation_makes_one_step_of_several_batches() -> None:
    measured, training = harness([0.25], compute=1.0, accumulation=2)
    block = measured.block(samples=16)
    assert block.step_s == [2.5, 2.5]
    assert block.data_wait_s == [0.5, 0.5]
    assert training.seen == [1, 2, 3, 4]


def test_the_ceiling_takes_no_batch_but_the_one_it_holds() -> None:
    measured, training = harness([0.25], compute=1.0)
    ceiling = measured.ceiling(samples=16)
    assert ceiling.data_wait_s == [0.0] * 4
    assert ceiling.samples_per_s == 4.0
    assert training.loader.fetched == 1
    assert measured.ceiling(samples=4).samples_per_s == 4.0
    assert training.loader.fetched == 1


def test_beside_an_accelerator_settling_drops_what_was_prefetched() -> None:
    measured, training = harness([0.25], compute=1.0, workers=2, prefetch_factor=3)
    training.device = torch.device("cuda")
    block = measured.block(samples=8, settle=True)
    assert training.seen == [*range(7, 7 + 2 + 2)]  # six dropped, two steps that are not measured
    assert block.step_s == [1.25] * 2


def test_on_a_cpu_settling_trains_on_what_was_prefetched() -> None:
    measured, training = harness([0.25], compute=1.0, workers=2, prefetch_factor=3)
    block = measured.block(samples=8, settle=True)
    assert training.seen == [*range(1, 1 + 7 + 6)]
    assert block.step_s == [1.25] * 6


@pytest.mark.parametrize(("ready", "settling"), [(5, 7), (4, 6 + 3 * 6 + 1), (0, 6 + 3 * 6 + 1)])
def test_steps_that_do_not_wait_settle_until_the_queue_is_full_again(
    monkeypatch: pytest.MonkeyPatch, ready: int, settling: int
) -> None:
    """Two workers with three batches each: at most two of the six are being made when they keep up."""
    measured, training = harness([0.0], compute=1.0, workers=2, prefetch_factor=3)
    monkeypatch.setattr(measured.source, "ready", lambda: ready)
    measured.block(samples=8, settle=True)
    assert len(training.seen) == settling + 6


@pytest.mark.parametrize(
    ("device", "queue", "steps"),
    [
        ("cpu", [6, 6], 6),
        ("cpu", [6, 4, 5, 6], 8),
        ("cpu", [1, 3, 3, 0], 8),
        ("cpu", [6, *[5] * 50], 6 + 3 * 6),  # within limits
        ("cuda", [6, *[5] * 50], 2),  # beside it, workers that rest make no step faster
    ],
)
def test_a_block_ends_with_the_queue_as_full_as_it_started(
    monkeypatch: pytest.MonkeyPatch, device: str, queue: list[int], steps: int
) -> None:
    """Of two workers with three batches each."""
    measured, training = harness([0.25], compute=1.0, workers=2, prefetch_factor=3)
    training.device = torch.device(device)
    states = iter(queue)
    monkeypatch.setattr(measured.source, "ready", lambda: next(states))
    block = measured.block(samples=8)
    assert block.step_s == [1.25] * steps
    assert (block.samples, block.seconds) == (4 * steps, 1.25 * steps)
    assert len(training.seen) == steps


def test_without_workers_one_step_settles() -> None:
    measured, training = harness([0.0], compute=1.0)
    measured.block(samples=8, settle=True)
    assert len(training.seen) == 3


def test_first_steps_keep_their_losses_and_count_into_no_block() -> None:
    measured, training = harness([0.25], compute=1.0)
    block, losses = measured.first_steps(3)
    assert losses == [1.0, 1.0, 1.0]
    assert block.step_s == [1.25] * 3
    assert training.seen == [1, 2, 3]


def test_warm_up_ends_when_two_windows_agree() -> None:
    measured, _ = harness([0.0], compute=1.0)
    assert len(measured.warm_up(seconds=100).step_s) == 6


def test_warm_up_ends_when_its_budget_is_spent() -> None:
    measured, training = harness([0.0], compute=1.0)

    def slower_and_slower(batches: Any, step: Any = training.step) -> torch.Tensor:
        training.compute *= 0.7
        return step(batches)  # type: ignore[no-any-return]

    training.step = slower_and_slower  # type: ignore[method-assign]
    assert len(measured.warm_up(seconds=1.5).step_s) == 3


def test_a_loss_that_is_not_finite_is_an_error_with_a_remedy() -> None:
    measured, training = harness([0.0], compute=1.0)
    training.loss = float("nan")
    with pytest.raises(RunFailed, match=r"loss became nan.*learning rate"):
        measured.block(samples=8)


def test_progress_tells_phase_and_step() -> None:
    told: list[tuple[str, int, int]] = []
    measured, _ = harness([0.0], compute=1.0)
    measured.progress = lambda *event: told.append(event[:3])
    measured.block(samples=8)
    assert told == [("measuring", 1, 2), ("measuring", 2, 2)]


def test_writing_the_trace_is_no_part_of_the_profiled_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    measured, training = harness([0.25], compute=1.0)
    monkeypatch.setattr(profiler, "_write", lambda recorded, path: training.clock.spend(500.0))
    command = RecordProfile(
        path="trace.json", wait=0, warmup=1, active=2, shapes=False, memory=False, stacks=False
    )
    report = profiler.profile(measured, command)
    first, *_, last = report.marks
    assert training.clock.now > 500.0
    assert last - first == 2.5
