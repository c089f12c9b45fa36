"""Comparisons on a made-up machine: pairs of processes, order of start, what is stored, how many pairs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfkit.errors import InvalidValue, PerfkitError
from perfkit.recipe import Recipe
from perfkit.results import noise as kept_noise
from perfkit.results import stats as statistics
from perfkit.results.store import RunStore
from perfkit.studies import compare as comparing
from perfkit.studies.compare import Candidate, compare, compare_stored, pairs_for, target_half_width
from perfkit.studies.plan import Plan, Progress, plan
from perfkit.worker import messages
from tests.unit.studies.fakes import FakeMachine, install, out_of_memory

A, B = Candidate("A", Recipe(batch_size=8)), Candidate("B", Recipe(batch_size=16))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> FakeMachine:
    monkeypatch.setattr(comparing.fork, "restart", lambda: None)
    return install(monkeypatch, FakeMachine(lambda recipe: 100.0 if recipe.batch_size == 8 else 120.0))


@pytest.fixture
def where(data_dir: Path) -> Plan:
    return plan("cifar_resnet18", "smoke", device="cpu")


def trained(machine: FakeMachine) -> list[tuple[int, int]]:
    """Batch size and seed of every training, in the order of their start."""
    commands = [command for _, command in machine.asked if isinstance(command, messages.Train)]
    return [(command.recipe["batch_size"], command.seed) for command in commands]


def test_a_pair_of_processes_is_compared_and_stored(machine: FakeMachine, where: Plan) -> None:
    found = compare(A, B, where, budget_s=0)
    assert found.ratio.ratio == pytest.approx(1.2)
    assert (found.pairs, found.rounds) == (1, 5)
    assert (found.pairing.noise, found.pairing.assumed) == (statistics.aa_noise_bound(()), True)
    assert "A/A noise 4.3% assumed: perfkit noise measures it" in found.describe()
    assert [run.id for run in reversed(RunStore().runs())] == [found.a.id, found.b.id]
    assert compare_stored(*map(RunStore().get, (found.a.id, found.b.id))) == found


def test_a_clear_effect_is_precise_enough_only_where_that_is_asked(machine: FakeMachine, where: Plan) -> None:
    rounds = []
    for part in (0.0, 0.15):
        numbers = np.random.default_rng(0)
        machine.rate = lambda recipe, r=numbers: 20.0 * recipe.batch_size**2 * float(r.normal(1, 0.1))  # type: ignore[misc]
        rounds.append(compare(A, B, where, budget_s=1e9, precision=0.05, pairs=1, part=part).rounds)
    assert rounds[1] < 10 < rounds[0]


def test_either_side_starts_first_with_another_seed_in_every_pair(
    machine: FakeMachine, where: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_noise, "load", lambda device: 0.03)
    seen: list[float] = []
    found = compare(A, B, where, budget_s=1e9, precision=0.02, on_progress=lambda p: seen.append(p.fraction))
    assert trained(machine)[:6] == [(8, 0), (16, 0), (16, 1), (8, 1), (8, 2), (16, 2)]
    assert (found.pairs, found.pairing.noise) == (8, 0.03)
    rates = [pair.rates for pair in found.pairing.pairs]
    assert all((own == 120).all() and (other == 100).all() for own, other in rates), (
        "B is always the own side"
    )
    assert found.ratio == statistics.ratio_over_pairs(rates, noise=0.03)
    assert len(RunStore().runs()) == 2, "the runs of the first pair, with the rounds of all"
    assert RunStore().get(found.b.id) == found.b
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_further_pairs_measure_rates_alone(machine: FakeMachine, where: Plan) -> None:
    compare(A, B, where, budget_s=0, pairs=2)
    ceilings = [number for number, command in machine.asked if isinstance(command, messages.MeasureCeiling)]
    assert set(ceilings) == {0, 1}
    blocks = machine.blocks()
    assert [blocks.count(number) for number in range(4)] == [5, 5, 5, 5]


@pytest.mark.parametrize(("budget_s", "pairs"), [(0.0, 5), (1e9, 8)])
def test_the_budget_ends_the_pairs_once_there_are_five(
    machine: FakeMachine, where: Plan, budget_s: float, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A/A noise of 3% calls for 8."""
    monkeypatch.setattr(kept_noise, "load", lambda device: 0.03)
    assert compare(A, B, where, budget_s).pairs == pairs


def test_without_memory_for_both_the_rounds_are_sequential(machine: FakeMachine, where: Plan) -> None:
    def fails(child: Any, command: messages.Command[Any]) -> Exception | None:
        crowded = isinstance(command, messages.Train) and machine.alive() != [child.number]
        return out_of_memory() if crowded else None

    machine.fails = fails
    found = compare(A, B, where, budget_s=0, pairs=2)
    assert not found.pairing.interleaved
    assert found.ratio.ratio == pytest.approx(1.2)
    assert [len(pair.other_samples_per_s) for pair in found.pairing.pairs] == [5, 5]


def test_a_side_that_fails_ends_the_comparison_and_is_kept(machine: FakeMachine, where: Plan) -> None:
    machine.fails = lambda child, command: (
        PerfkitError("broken", "fix it") if isinstance(command, messages.Train) else None
    )
    with pytest.raises(PerfkitError, match="A could not be compared: broken"):
        compare(A, B, where, budget_s=0)
    assert [run.status for run in RunStore().runs()] == ["failed"]
    assert machine.alive() == []


def test_what_an_interrupted_comparison_has_measured_is_kept(machine: FakeMachine, where: Plan) -> None:
    def stop(progress: Progress) -> None:
        if len(machine.children) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(A, B, where, budget_s=0, pairs=4, on_progress=stop)
    b, a = RunStore().runs()
    assert compare_stored(a, b).pairs == 2, "both pairs that were finished"
    assert machine.alive() == []


def test_noise_is_what_equal_processes_differ_by(machine: FakeMachine, where: Plan) -> None:
    found = comparing.measure_noise(where, pairs=2, budget_s=0)
    assert [one.ratio.ratio for one in found] == [1.0, 1.0]
    same = statistics.AAPair(0.0, 0.0)
    assert kept_noise.load("cpu") == statistics.aa_noise_bound([same, same])
    assert trained(machine) == [(8, 0), (8, 0), (8, 1), (8, 1)]


@pytest.mark.parametrize(
    ("text", "message"), [("tea", "cannot compare 'tea'"), ("workers=x", "Allowed: a whole number")]
)
def test_what_cannot_be_compared_is_refused(where: Plan, text: str, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        comparing.candidate(text, where)


@pytest.mark.parametrize(
    ("noise", "precision", "pairs"),
    [
        (0.0, 0.02, 1),
        (0.02, 0.02, 1),
        (0.021, 0.02, 6),
        (0.03, 0.02, 8),
        (0.06, 0.02, 12),
        (0.3, 0.02, 12),
        (0.3, 0.0, 1),
    ],
)
def test_as_many_pairs_of_processes_as_their_noise_calls_for(
    noise: float, precision: float, pairs: int
) -> None:
    assert pairs_for(noise, precision) == pairs


@pytest.mark.parametrize("noise", [0.0, 0.024, 0.032])
def test_pairs_and_rounds_together_reach_the_precision(noise: float) -> None:
    """Simulated: pairs that differ for good, rounds that scatter by 5%; as much of both as is called for."""
    pairs = pairs_for(noise, 0.02)
    rounds = math.ceil((1.96 * math.sqrt(2) * 0.05 / target_half_width(0.02, pairs, noise)) ** 2)
    rng = np.random.default_rng(0)

    def found() -> statistics.Ratio:
        for_good = rng.normal(1, noise / 1.96, pairs)
        rates = [(rng.normal(own, 0.05, rounds), rng.normal(1, 0.05, rounds)) for own in for_good]
        return statistics.ratio_over_pairs(rates) if pairs > 1 else statistics.ratio(*rates[0], paired=True)

    widths = [found().half_width for _ in range(100)]
    assert 0.016 < np.mean(widths) < 0.021
