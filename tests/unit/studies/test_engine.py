"""The engine with children that answer from a table: order, pairings, fallback, cancelling, laziness."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfkit.errors import PerfkitError, RunFailed
from perfkit.ladder.stages import Stage
from perfkit.program.recipe import Recipe
from perfkit.results import noise
from perfkit.results.run import Mechanism, Run
from perfkit.results.store import RunStore
from perfkit.studies.engine import Schedule, Trial, measure
from perfkit.studies.plan import Plan, Progress, plan
from perfkit.studies.setup import prepare
from perfkit.worker import messages
from tests.unit.studies.fakes import FakeMachine, install, out_of_memory

RATES = {8: 100.0, 16: 150.0, 32: 120.0, 64: 200.0}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> FakeMachine:
    return install(monkeypatch, FakeMachine(lambda recipe: RATES[recipe.batch_size]))


@pytest.fixture
def where(data_dir: Path) -> Plan:
    return plan("cifar_resnet18", "smoke", ["baseline"], device="cpu", seed=7)


def trial(where: Plan, size: int, reason: str = "", **schedule: Any) -> Trial:
    stage = Stage(f"b{size}", f"batch {size}", Recipe(batch_size=size), reason)
    return Trial(stage, Schedule(where.preset, **schedule), total=3)


def run_all(where: Plan, trials: list[Trial], **more: Any) -> list[Run]:
    with prepare(where, **more) as setup:
        return list(measure(trials, setup))


def test_blocks_of_a_trial_the_previous_one_and_the_baseline_alternate_in_random_order(
    machine: FakeMachine, where: Plan
) -> None:
    """By hand: the same generator shuffles, in each round, the own child, the previous and the baseline."""
    run_all(where, [trial(where, size) for size in (8, 16, 32)])
    generator, wanted = random.Random(7), []
    for others in ([0], [1, 0], [2, 1, 0]):
        for _ in range(where.preset.rounds):
            order = list(others)
            generator.shuffle(order)
            wanted += order
    assert machine.blocks() == wanted
    assert machine.alive() == []


def test_ratios_are_those_of_the_rounds(machine: FakeMachine, where: Plan) -> None:
    noise.save("cpu", 0.01)
    first, second, third = run_all(where, [trial(where, size) for size in (8, 16, 32)])
    assert first.pairings == []
    assert [(p.role, p.against) for p in second.pairings] == [("previous", first.id), ("baseline", first.id)]
    assert [(p.role, p.against) for p in third.pairings] == [("previous", second.id), ("baseline", first.id)]
    assert third.pairings[0].own_samples_per_s == [120.0] * 3
    assert third.pairings[0].other_samples_per_s == [150.0] * 3
    assert third.pairings[0].round_ratios == pytest.approx([0.8] * 3)
    assert all(p.interleaved and p.noise == 0.01 for p in third.pairings)
    assert third.raw.ceiling_samples_per_s == [240.0] * 3
    assert third.raw.warmup_steps == 3
    assert third.raw.step_s[:3] == [2.0, 0.5, 0.5]
    assert len({run.session for run in (first, second, third)}) == 1


def test_noise_that_was_never_measured_is_unknown(machine: FakeMachine, where: Plan) -> None:
    _, second = run_all(where, [trial(where, size) for size in (8, 16)])
    assert [p.noise for p in second.pairings] == [None, None]


def test_only_three_processes_live_and_each_trial_has_a_fresh_one(machine: FakeMachine, where: Plan) -> None:
    alive = []
    with prepare(where) as setup:
        assert machine.alive() == [0], "the child that has loaded the workload waits for the first trial"
        for _ in measure([trial(where, size) for size in (8, 16, 32, 64)], setup):
            alive.append(machine.alive())
    assert alive == [[0], [0, 1], [0, 2], [0, 3]]
    assert [child.stopped for child in machine.children] == [1, 1, 1, 1]


def test_against_the_baseline_alone_nothing_else_stays_alive(machine: FakeMachine, where: Plan) -> None:
    trials = [trial(where, size, baseline_only=True, ceiling=False) for size in (8, 16, 32)]
    *_, third = run_all(where, trials)
    assert {p.against for p in third.pairings} == {third.pairings[0].against}
    assert third.raw.ceiling_samples_per_s == []
    assert set(machine.blocks()[-6:]) == {0, 2}


def test_trials_are_drawn_one_at_a_time_by_the_results_so_far(machine: FakeMachine, where: Plan) -> None:
    runs: list[Run] = []
    drawn: list[int] = []

    def trials() -> Iterator[Trial]:
        for size in (8, 16, 32, 64):
            if runs and runs[-1].samples_per_s and runs[-1].samples_per_s.median > 140:
                return
            drawn.append(len(runs))
            yield trial(where, size)

    store = RunStore()
    with prepare(where) as setup:
        for run in measure(trials(), setup, store):
            assert store.get(run.id) == run, "kept before it is handed on"
            runs.append(run)
    assert drawn == [0, 1]
    assert [run.title for run in runs] == ["batch 8", "batch 16"]


def test_without_memory_for_all_a_trial_is_measured_alone(machine: FakeMachine, where: Plan) -> None:
    def fails(child: Any, command: messages.Command[Any]) -> Exception | None:
        crowded = isinstance(command, messages.Train) and machine.alive() != [child.number]
        return out_of_memory() if crowded else None

    machine.fails = fails
    first, second, third = run_all(where, [trial(where, size) for size in (8, 16, 32)])
    assert [run.status for run in (first, second, third)] == ["ok"] * 3
    for run in (second, third):
        assert not any(p.interleaved for p in run.pairings)
        assert "not interleaved" in " ".join(run.warnings)
    assert third.pairings[0].other_samples_per_s == [150.0] * 3, "what the other measured in its own time"
    assert third.pairings[1].other_samples_per_s == [100.0] * 3


def test_a_failing_trial_stops_no_other_and_is_compared_with_nothing(
    machine: FakeMachine, where: Plan
) -> None:
    def fails(child: Any, command: messages.Command[Any]) -> Exception | None:
        broken = isinstance(command, messages.MeasureBlock) and child.recipe.batch_size == 16
        return RunFailed("broken", "fix it") if broken else None

    machine.fails = fails
    first, second, third = run_all(where, [trial(where, size) for size in (8, 16, 32)])
    assert (second.status, second.reason) == ("failed", "broken. fix it")
    assert [p.against for p in third.pairings] == [first.id, first.id]
    assert machine.children[1].stopped == 1


def test_a_trial_that_cannot_act_starts_no_process(machine: FakeMachine, where: Plan) -> None:
    trials = [trial(where, 8), trial(where, 16, reason="no GPU"), trial(where, 32)]
    first, second, third = run_all(where, trials)
    assert (second.status, second.reason) == ("not_applicable", "no GPU")
    assert third.pairings[0].against == first.id
    assert len(machine.children) == 2


def test_a_switch_that_is_not_in_effect_is_an_error_not_a_slow_trial(
    machine: FakeMachine, where: Plan
) -> None:
    machine.mechanisms = [Mechanism("pin_memory", False, "batch is pageable")]
    (run,) = run_all(where, [trial(where, 8)])
    assert run.status == "failed"
    assert "the mechanism is not on: pin_memory (batch is pageable)" in run.reason
    assert machine.blocks() == []


def test_cancelling_keeps_what_was_finished_and_ends_every_process(machine: FakeMachine, where: Plan) -> None:
    cancelled = threading.Event()

    def follow(progress: Progress) -> None:
        if progress.stage == "batch 16" and progress.phase == "MeasureBlock":
            cancelled.set()

    trials = [trial(where, size) for size in (8, 16, 32)]
    first, second = run_all(where, trials, on_progress=follow, cancelled=cancelled)
    assert (first.status, second.status) == ("ok", "cancelled")
    assert machine.alive() == []


def test_an_interrupt_ends_every_process(machine: FakeMachine, where: Plan) -> None:
    def fails(child: Any, command: messages.Command[Any]) -> Exception | None:
        if child.number == 1 and isinstance(command, messages.MeasureBlock):
            raise KeyboardInterrupt
        return None

    machine.fails = fails
    with pytest.raises(KeyboardInterrupt):
        run_all(where, [trial(where, size) for size in (8, 16)])
    assert machine.alive() == []


def test_a_workload_that_cannot_be_loaded_raises_and_leaves_nothing(
    machine: FakeMachine, where: Plan
) -> None:
    machine.fails = lambda child, command: PerfkitError("no data", "download it")
    with pytest.raises(PerfkitError, match="no data"):
        run_all(where, [trial(where, 8)])
    assert machine.alive() == []


@pytest.mark.parametrize(("rates", "rounds"), [((150.0, 150.0), 10), ((150.0, 75.0), 39)])
def test_rounds_go_on_until_the_interval_is_narrow_or_the_budget_spent(
    machine: FakeMachine,
    where: Plan,
    monkeypatch: pytest.MonkeyPatch,
    rates: tuple[float, float],
    rounds: int,
) -> None:
    """A clock that ticks when it is read: exact ratios need 10 rounds; rates that jump never suffice."""
    clock = iter(range(10_000))
    monkeypatch.setattr("perfkit.studies.engine.time.monotonic", lambda: float(next(clock)))
    turns = iter(rates * 1000)
    machine.rate = lambda recipe: 100.0 if recipe.batch_size == 8 else next(turns)
    schedule = {"precision": 0.01, "budget_s": 39.5, "ceiling": False}
    _, second = run_all(where, [trial(where, size, **schedule) for size in (8, 16)])
    assert len(second.raw.block_samples_per_s) == rounds


def test_progress_rises_to_the_end_and_names_every_finished_run(machine: FakeMachine, where: Plan) -> None:
    seen: list[Progress] = []
    runs = run_all(where, [trial(where, size) for size in (8, 16, 32)], on_progress=seen.append)
    fractions = [progress.fraction for progress in seen]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert [progress.run for progress in seen if progress.run] == runs


def test_a_script_has_a_process_and_a_workload_of_its_own(machine: FakeMachine, where: Plan) -> None:
    trials = [replace(trial(where, 8), workload="a.py"), replace(trial(where, 16), workload="b.py")]
    run_all(replace(where, workload="a.py"), trials)
    assert [child.workload for child in machine.children] == ["a.py", "b.py"]


def test_the_time_limit_is_that_of_the_trial_for_all_that_are_measured(
    machine: FakeMachine, where: Plan
) -> None:
    run_all(replace(where, timeout_s=1000.0), [trial(where, size) for size in (8, 16)])
    first, second = machine.children
    assert first.deadline == second.deadline, "a block of the baseline may take until the new trial's limit"
