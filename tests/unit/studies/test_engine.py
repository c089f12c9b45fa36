"""The engine with children that answer from a table: rounds, pairings, heats, disturbance, cancelling."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfkit.errors import PerfkitError, RunFailed
from perfkit.ladder.stages import AGAIN, Stage
from perfkit.recipe import Recipe
from perfkit.results import noise, stats
from perfkit.results.run import Mechanism, Run
from perfkit.results.store import RunStore
from perfkit.studies.engine import Schedule, Trial, measure
from perfkit.studies.plan import Plan, Progress, plan
from perfkit.studies.setup import prepare
from perfkit.worker import messages
from tests.unit.studies.fakes import FakeMachine, install, out_of_memory

ONLY_3 = "only 3 rounds: a smoke test, not enough for a verdict; use the preset quick or paper"
RATES = {8: 100.0, 16: 150.0, 32: 120.0, 64: 200.0}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> FakeMachine:
    return install(monkeypatch, FakeMachine(lambda recipe: RATES[recipe.batch_size]))


@pytest.fixture
def where(data_dir: Path) -> Plan:
    return plan("cifar_resnet18", "smoke", ["baseline"], device="cpu", seed=7)


def trial(size: int, reason: str = "", total: int = 3) -> Trial:
    return Trial(Stage(f"b{size}", f"batch {size}", Recipe(batch_size=size), reason), total)


def run_all(
    where: Plan, trials: list[Trial], schedule: dict[str, Any] | None = None, **more: Any
) -> list[Run]:
    with prepare(where, **more) as setup:
        return list(measure(trials, setup, Schedule(where.preset, **(schedule or {}))))


def three() -> list[Trial]:
    return [trial(size) for size in (8, 16, 32)]


def against(run: Run) -> list[tuple[str, str]]:
    return [(pairing.role, pairing.against) for pairing in run.pairings]


# ---------------------------------------------------------------- rounds


def test_every_round_measures_one_block_of_each_trial_in_random_order(
    machine: FakeMachine, where: Plan
) -> None:
    preset = replace(where.preset, rounds=20)
    run_all(replace(where, preset=preset), three())
    rounds = [machine.blocks()[at : at + 3] for at in range(0, 60, 3)]
    assert all(sorted(one) == [0, 1, 2] for one in rounds)
    assert len({tuple(one) for one in rounds}) == 6, "every order comes up"
    assert machine.alive() == []


def test_ratios_and_rates_are_those_of_the_same_rounds(machine: FakeMachine, where: Plan) -> None:
    turns = iter(range(1000))
    machine.rate = lambda recipe: RATES[recipe.batch_size] * (1 + 0.001 * next(turns))
    first, second, third = run_all(where, three())
    assert first.pairings == []
    assert against(second) == [("previous", first.id), ("baseline", first.id)]
    assert against(third) == [("previous", second.id), ("baseline", first.id)]
    for run in (second, third):
        for pairing in run.pairings:
            other = first if pairing.against == first.id else second
            assert pairing.interleaved
            assert run.samples_per_s
            assert other.samples_per_s
            wanted = run.samples_per_s.value / other.samples_per_s.value
            assert pairing.ratio.ratio == pytest.approx(wanted, rel=1e-12)
    assert third.raw.warmup_steps == 3
    assert third.raw.step_s[:3] == [2.0, 0.5, 0.5]
    assert third.raw.block_steps == [2, 2, 2]
    assert len(third.raw.ceiling_samples_per_s) == 3
    assert len({run.session for run in (first, second, third)}) == 1


@pytest.mark.parametrize(("rates", "rounds"), [((150.0, 150.0), 10), ((150.0, 75.0), 39)])
def test_rounds_go_on_until_every_interval_is_narrow_or_the_budget_spent(
    machine: FakeMachine,
    where: Plan,
    monkeypatch: pytest.MonkeyPatch,
    rates: tuple[float, float],
    rounds: int,
) -> None:
    """A clock that ticks once a round: exact ratios need 10 rounds; rates that jump never suffice."""
    now = [0.0]
    monkeypatch.setattr("perfkit.studies.heat.time.monotonic", lambda: now[0])
    turns = iter(rates * 1000)

    def rate(recipe: Recipe) -> float:
        now[0] += 0.5
        return 100.0 if recipe.batch_size == 8 else next(turns)

    machine.rate = rate
    schedule = {"precision": 0.01, "budget_s": 38.5, "ceiling": False}
    _, second = run_all(where, [trial(8), trial(16)], schedule)
    assert len(second.raw.block_samples_per_s) == rounds
    assert second.pairings[0].seconds == pytest.approx(rounds)


def test_a_clear_effect_is_not_measured_for_longer_than_it_takes_to_see_it(
    machine: FakeMachine, where: Plan
) -> None:
    """Ratios scatter by 14%: 5% is reached after 30 rounds; three times as fast is clear after 10."""
    counts = []
    for part in (0.0, 0.15):
        numbers = np.random.default_rng(0)
        machine.rate = lambda recipe, r=numbers: float(  # type: ignore[misc]
            100.0 * (3 if recipe.batch_size == 64 else 1) * r.normal(1, 0.1)
        )
        schedule = {"precision": 0.05, "part": part, "budget_s": 1e9, "again": True}
        first, *_ = run_all(where, [trial(8), trial(64)], schedule)
        counts.append(len(first.raw.block_samples_per_s))
    assert counts[0] > 30
    assert counts[1] < 15


def test_how_much_of_the_rounds_is_done_is_judged_by_their_scatter(machine: FakeMachine, where: Plan) -> None:
    numbers, shares = np.random.default_rng(0), list[float]()
    machine.rate = lambda recipe: float(RATES[recipe.batch_size] * numbers.normal(1, 0.1))
    schedule = {"precision": 0.05, "budget_s": 1e9}
    first, _ = run_all(
        where, [trial(8, total=2), trial(16, total=2)], schedule,
        on_progress=lambda now: shares.append(now.fraction) if "round" in now.stage else None,
    )  # fmt: skip
    rounds = len(first.raw.block_samples_per_s)
    assert rounds > 15
    half = shares[len(shares) // 2]
    assert 0.3 < half < 0.8, "half of the time, about half of the work"
    assert shares == sorted(shares)


def test_the_study_s_limit_ends_the_rounds_but_not_the_least_number(
    machine: FakeMachine, where: Plan
) -> None:
    _, second = run_all(where, [trial(8), trial(16)], {"precision": 0.0, "budget_s": 1e9, "limit_s": 0.0})
    assert len(second.raw.block_samples_per_s) == where.preset.rounds


# ---------------------------------------------------------------- the baseline again


def test_the_baseline_is_measured_again_last_and_is_the_machine_s_noise(
    machine: FakeMachine, where: Plan
) -> None:
    where = replace(where, preset=replace(where.preset, rounds=5))
    *_, last, again = run_all(where, three(), {"again": True})
    assert (again.stage, again.title, again.recipe) == (
        AGAIN,
        "batch 8 (again)",
        Recipe(batch_size=8).to_dict(),
    )
    assert [pairing.role for pairing in again.pairings] == ["baseline"]
    same = stats.AAPair(0.0, 0.0)
    assert noise.load("cpu") == stats.aa_noise_bound([same])
    assert [pairing.noise for pairing in last.pairings] == [noise.load("cpu")] * 2


def test_of_the_two_equal_processes_either_is_the_baseline(machine: FakeMachine, where: Plan) -> None:
    """The one that was started first may be slower for good."""
    machine.rate = lambda recipe: RATES[recipe.batch_size]
    ratios = set()
    for seed in range(12):
        machine.children.clear()
        started = {0: 0.98}
        machine.rate_of = lambda child, known=started: known.get(child.number, 1.0)
        *_, again = run_all(replace(where, seed=seed), [trial(8), trial(16)], {"again": True})
        ratios.add(round(again.pairings[0].ratio.ratio, 2))
    assert ratios == {0.98, 1.02}


def test_rounds_go_on_until_the_shown_interval_is_narrow_noise_included(
    machine: FakeMachine, where: Plan
) -> None:
    """On a first run the A/A noise is known only from the row of this ladder."""
    shown = []
    for adds_noise in (False, True):
        noise._file().unlink(missing_ok=True)
        random_numbers = np.random.default_rng(0)
        machine.rate = lambda recipe, r=random_numbers: float(RATES[recipe.batch_size] * r.normal(1, 0.07))  # type: ignore[misc]
        schedule = {"precision": 0.05, "budget_s": 1e9, "again": True, "adds_noise": adds_noise}
        _, second, _ = run_all(where, [trial(8), trial(16)], schedule)
        shown.append(second.pairings[0].ratio.half_width)
    assert shown[0] > 0.055
    assert shown[1] < 0.052


def test_nothing_is_measured_again_where_nothing_was_compared(machine: FakeMachine, where: Plan) -> None:
    (only,) = run_all(where, [trial(8)], {"again": True})
    assert only.stage == "b8"
    runs = run_all(where, [trial(8), trial(16, reason="no GPU")], {"again": True})
    assert [run.status for run in runs] == ["ok", "not_applicable"]


def test_noise_that_was_never_measured_is_taken_from_elsewhere_on_a_cpu(
    machine: FakeMachine, where: Plan
) -> None:
    for device, expected in (("cpu", stats.aa_noise_bound(())), ("mps", None)):
        _, second = run_all(replace(where, device=device), [trial(8), trial(16)])
        assert [p.noise for p in second.pairings] == [expected, expected]
        assert [p.assumed for p in second.pairings] == [device == "cpu"] * 2


# ---------------------------------------------------------------- other programs


def test_a_disturbed_block_is_measured_again(machine: FakeMachine, where: Plan) -> None:
    shares = iter([0.5, 0.0, *[0.0] * 100])
    machine.taken = lambda: next(shares)
    runs = run_all(where, [trial(8), trial(16)], {"budget_s": 1e9})
    assert sum(len(run.raw.repeated_samples_per_s) for run in runs) == 1
    assert [run.raw.disturbed for run in runs] == [[0.0] * 3] * 2
    assert [run.warnings for run in runs] == [[ONLY_3]] * 2


def test_what_stays_disturbed_says_so_and_names_who_did_it(machine: FakeMachine, where: Plan) -> None:
    machine.taken = lambda: 0.4
    where = replace(where, preset=replace(where.preset, rounds=5))
    runs = run_all(where, three(), {"budget_s": 0.05})
    for run in runs[1:]:
        assert run.disturbed == pytest.approx(0.4)
        assert {pairing.ratio.verdict for pairing in run.pairings} == {"disturbed"}
        assert "took 40% of the cores (chrome (process 7) 38%)" in run.warnings[0]


def test_rounds_go_on_until_enough_are_undisturbed(machine: FakeMachine, where: Plan) -> None:
    where = replace(where, preset=replace(where.preset, rounds=5))
    shares = iter([*[0.4] * 4, *[0.0] * 1000])
    machine.taken = lambda: next(shares)
    _, second = run_all(where, [trial(8), trial(16)], {"budget_s": 1e9})
    assert len(second.raw.disturbed) > 5
    assert second.disturbed is None
    assert second.pairings[0].ratio.verdict == "faster"


# ---------------------------------------------------------------- heats


def test_in_heats_of_one_trials_are_drawn_by_the_results_so_far(machine: FakeMachine, where: Plan) -> None:
    runs: list[Run] = []
    drawn: list[int] = []

    def trials() -> Iterator[Trial]:
        for size in (8, 16, 32, 64):
            if runs and runs[-1].samples_per_s and runs[-1].samples_per_s.value > 140:
                return
            drawn.append(len(runs))
            yield trial(size)

    store = RunStore()
    with prepare(where) as setup:
        for run in measure(trials(), setup, Schedule(where.preset, together=1), store):
            assert store.get(run.id) == run, "kept before it is handed on"
            runs.append(run)
    assert drawn == [0, 1]
    assert [run.title for run in runs] == ["batch 8", "batch 16"]


@pytest.mark.parametrize(("together", "alive"), [(1, 2), (2, 3), (None, 4)])
def test_only_a_heat_and_the_baseline_live_at_a_time(
    together: int | None, alive: int, machine: FakeMachine, where: Plan
) -> None:
    most = []
    machine.rate = lambda recipe: most.append(len(machine.alive())) or RATES[recipe.batch_size]  # type: ignore[func-returns-value]
    runs = run_all(where, [trial(size) for size in (8, 16, 32, 64)], {"together": together})
    assert max(most) == alive
    assert [child.stopped for child in machine.children] == [1, 1, 1, 1]
    assert [run.title for run in runs] == ["batch 8", "batch 16", "batch 32", "batch 64"]


def test_what_was_not_alive_together_is_compared_relative_to_the_baseline(
    machine: FakeMachine, where: Plan
) -> None:
    """The machine is twice as fast in the second heat: ratios and rates do not show it."""
    machine.rate = lambda recipe: RATES[recipe.batch_size] * (2 if len(machine.children) > 2 else 1)
    first, second, third = run_all(where, three(), {"together": 1})
    assert (third.pairings[0].interleaved, third.pairings[0].relative) == (False, True)
    assert third.pairings[0].ratio.ratio == pytest.approx(120 / 150)
    assert [run.samples_per_s.value for run in (first, second, third)] == pytest.approx([100, 150, 120])  # type: ignore[union-attr]
    assert not any("interleaved" in warning for warning in third.warnings)


def test_where_memory_runs_short_a_heat_ends_before_the_next_trial(
    machine: FakeMachine, where: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfkit.studies.heat.Heat.is_crowded", lambda heat: len(machine.alive()) >= 2)
    runs = run_all(where, [trial(size) for size in (8, 16, 32)])
    assert [run.status for run in runs] == ["ok"] * 3
    assert runs[2].pairings[0].relative


def test_a_trial_that_lacks_memory_beside_the_others_gets_their_place(
    machine: FakeMachine, where: Plan
) -> None:
    def fails(child: Any, command: messages.Command[Any]) -> Exception | None:
        crowded = isinstance(command, messages.Train) and len(machine.alive()) > 2
        return out_of_memory() if crowded else None

    machine.fails = fails
    _, second, third = run_all(where, three())
    assert second.pairings[0].interleaved
    assert third.pairings[0].relative


def test_without_memory_beside_the_baseline_a_trial_is_measured_alone(
    machine: FakeMachine, where: Plan
) -> None:
    def fails(child: Any, command: messages.Command[Any]) -> Exception | None:
        crowded = isinstance(command, messages.Train) and machine.alive() != [child.number]
        return out_of_memory() if crowded else None

    machine.fails = fails
    runs = run_all(where, three())
    assert [run.status for run in runs] == ["ok"] * 3
    for run in runs[1:]:
        assert not any(p.interleaved or p.relative for p in run.pairings)
        assert "not interleaved" in " ".join(run.warnings)
    assert runs[2].pairings[0].other_samples_per_s == [150.0] * 3, "what the other measured in its own time"
    assert runs[2].pairings[1].other_samples_per_s == [100.0] * 3
    assert machine.alive() == []


# ---------------------------------------------------------------- failing, stopping


@pytest.mark.parametrize("command_type", [messages.Train, messages.MeasureBlock, messages.ReadPeak])
def test_a_failing_trial_stops_no_other_and_is_compared_with_nothing(
    command_type: type, machine: FakeMachine, where: Plan
) -> None:
    def fails(child: Any, command: messages.Command[Any]) -> Exception | None:
        broken = isinstance(command, command_type) and child.number == 1
        return RunFailed("broken", "fix it") if broken else None

    machine.fails = fails
    first, second, third = run_all(where, three())
    assert (second.status, second.reason) == ("failed", "broken. fix it")
    assert against(third) == [("previous", first.id), ("baseline", first.id)]
    assert machine.children[1].stopped == 1


def test_a_trial_that_cannot_act_starts_no_process(machine: FakeMachine, where: Plan) -> None:
    first, second, third = run_all(where, [trial(8), trial(16, reason="no GPU"), trial(32)])
    assert (second.status, second.reason) == ("not_applicable", "no GPU")
    assert third.pairings[0].against == first.id
    assert len(machine.children) == 2


def test_who_draws_the_trials_hears_at_once_what_cannot_be_measured(
    machine: FakeMachine, where: Plan
) -> None:
    failed: list[str] = []
    with prepare(where) as setup:
        trials = (trial(size, reason="no GPU" * (size == 16)) for size in (8, 16, 32))
        list(measure(trials, setup, Schedule(where.preset), None, lambda stage: failed.append(stage.name)))
    assert failed == ["b16"]


def test_a_switch_that_is_not_in_effect_is_an_error_not_a_slow_trial(
    machine: FakeMachine, where: Plan
) -> None:
    machine.mechanisms = [Mechanism("pin_memory", False, "batch is pageable")]
    (run,) = run_all(where, [trial(8)])
    assert run.status == "failed"
    assert "the mechanism is not on: pin_memory (batch is pageable)" in run.reason
    assert machine.blocks() == []
    assert machine.alive() == []


def test_cancelled_before_the_first_round_nothing_was_measured(machine: FakeMachine, where: Plan) -> None:
    cancelled = threading.Event()

    def follow(progress: Progress) -> None:
        if progress.stage == "batch 16" and progress.phase == "Train":
            cancelled.set()

    runs = run_all(where, three(), on_progress=follow, cancelled=cancelled)
    assert [run.status for run in runs] == ["cancelled"] * 2
    assert runs[0].reason == "stopped before its first round; its warm-up ran at 16 samples/s"
    assert machine.alive() == []


@pytest.mark.parametrize("how", [threading.Event, KeyboardInterrupt])
def test_stopped_in_the_rounds_trials_keep_those_that_are_complete(
    how: Any, machine: FakeMachine, where: Plan
) -> None:
    cancelled, runs = threading.Event(), list[Run]()

    def fails(child: Any, command: messages.Command[Any]) -> Exception | None:
        if isinstance(command, messages.MeasureBlock) and len(machine.blocks()) == 8:
            if how is KeyboardInterrupt:
                raise KeyboardInterrupt
            cancelled.set()
        return None

    machine.fails = fails
    with prepare(where, cancelled=cancelled) as setup:
        trials = measure(three(), setup, Schedule(where.preset))
        for run in trials if how is not KeyboardInterrupt else _until_interrupted(trials):
            runs.append(run)
    assert [run.status for run in runs] == ["ok"] * 3
    assert [len(run.raw.block_samples_per_s) for run in runs] == [2] * 3
    assert machine.alive() == []


def _until_interrupted(runs: Iterator[Run]) -> Iterator[Run]:
    with pytest.raises(KeyboardInterrupt):
        yield from runs


def test_a_workload_that_cannot_be_loaded_raises_and_leaves_nothing(
    machine: FakeMachine, where: Plan
) -> None:
    machine.fails = lambda child, command: PerfkitError("no data", "download it")
    with pytest.raises(PerfkitError, match="no data"):
        run_all(where, [trial(8)])
    assert machine.alive() == []


# ---------------------------------------------------------------- progress, limits, scripts


@pytest.mark.parametrize("together", [1, None])
def test_progress_rises_to_the_end_and_names_every_finished_run(
    together: int | None, machine: FakeMachine, where: Plan
) -> None:
    seen: list[Progress] = []
    runs = run_all(where, three(), {"together": together}, on_progress=seen.append)
    fractions = [progress.fraction for progress in seen]
    assert fractions == sorted(fractions)
    assert fractions[-1] == pytest.approx(1.0)
    assert [progress.run for progress in seen if progress.run] == runs


def test_a_script_has_a_process_and_a_workload_of_its_own(machine: FakeMachine, where: Plan) -> None:
    trials = [replace(trial(8), workload="a.py"), replace(trial(16), workload="b.py")]
    run_all(replace(where, workload="a.py"), trials)
    assert [child.workload for child in machine.children] == ["a.py", "b.py"]


def test_the_time_limit_is_that_of_a_block_once_all_are_warm(machine: FakeMachine, where: Plan) -> None:
    before = time.monotonic()
    run_all(replace(where, timeout_s=1000.0), [trial(8), trial(16)])
    assert all(before + 1000 < child.deadline < time.monotonic() + 1000 for child in machine.children)  # type: ignore[operator]
