"""Two recipes compared: pairs of processes, budgets, failures, stopping, stored runs."""

import contextlib
import math
import threading
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest

from perfkit.errors import Cancelled, InvalidValue, PerfkitError
from perfkit.results import stats
from perfkit.results.run import Pairing, Raw, Run, Simulated
from perfkit.results.store import RunStore
from perfkit.studies import compare as comparing
from perfkit.studies.compare import Candidate, compare, compare_stored, pairs_for
from perfkit.studies.sources import Progress

A, B = Candidate("A", {"batch_size": 8}), Candidate("B", {"batch_size": 64})


def trained(machine):
    """Batch size and seed of every training, in the order of their start."""
    return [(command["recipe"].batch_size, command["seed"] - 7) for command in machine.trainings]


def test_a_pair_of_processes_is_compared_and_stored(machine, where):
    result = compare(A, B, where, budget_s=0, store=RunStore())
    assert result.ratio.ratio == pytest.approx(2.0)
    assert (result.pairs, result.rounds) == (1, 5)
    assert result.pairing.noise == stats.aa_noise_bound(())
    assert {run.id for run in map(RunStore().get, (result.a.id, result.b.id))} == {result.a.id, result.b.id}
    assert compare_stored(*map(RunStore().get, (result.a.id, result.b.id))) == result


def test_either_side_starts_first_with_another_seed_in_every_pair(machine, where, monkeypatch):
    monkeypatch.setattr(RunStore, "noise", lambda *_: 0.03)
    restart = Mock()
    monkeypatch.setattr(comparing.server, "restart", restart)
    result = compare(A, B, where, budget_s=1e9, precision=0.02, store=RunStore())
    assert trained(machine)[:6] == [(8, 0), (64, 0), (64, 1), (8, 1), (8, 2), (64, 2)]
    assert (result.pairs, result.pairing.noise, restart.call_count) == (8, 0.03, 8)
    assert "in 8 pairs of processes, allowing for A/A noise of 3.0%" in result.describe()
    rates = [pair.rates for pair in result.pairing.pairs]
    assert all((own == 200).all() and (other == 100).all() for own, other in rates), "B is the own side"
    assert result.ratio == stats.ratio_over_pairs(rates, noise=0.03)
    assert RunStore().get(result.b.id) == result.b
    assert compare(A, B, where, budget_s=0, store=RunStore()).pairs == 5, (
        "the budget ends the pairs once there are five"
    )


def test_a_side_that_fails_ends_the_comparison_and_is_kept(machine, where):
    machine.fail("train", PerfkitError("broken", "fix it"))
    with pytest.raises(PerfkitError, match="A could not be compared: broken"):
        compare(A, B, where, budget_s=0, store=RunStore())
    assert [run.status for run in RunStore().runs()] == ["failed"]
    assert machine.alive() == []


@pytest.mark.parametrize(("pair", "kept"), [(1, 0), (3, 2)])
@pytest.mark.parametrize("how", [KeyboardInterrupt, Cancelled])
def test_what_was_measured_until_a_person_stops_it_is_kept(machine, where, pair, kept, how):
    stop = threading.Event()

    def fails(child, question):
        if question == "block" and len(machine.children) == 2 * pair:
            if how is KeyboardInterrupt:
                raise how
            stop.set()
            return Cancelled("stopped on request")
        return None

    machine.fails = fails
    with contextlib.nullcontext() if how is Cancelled and kept else pytest.raises(how):
        more = {"pairs": 4, "progress": Progress(cancelled=stop), "store": RunStore()}
        assert compare(A, B, where, budget_s=0, **more).pairs == kept
    runs = {run.title: run for run in RunStore().runs()}
    assert len(runs) == (2 if kept else 0)
    assert not kept or compare_stored(runs["A"], runs["B"]).pairs == kept
    assert machine.alive() == []


def test_runs_of_other_workloads_or_machines_are_not_compared(machine, where):
    result = compare(A, B, where, budget_s=0)
    model = Simulated(gpu="V100", host="article", model="1", constants="abc", band=0.15)
    others = {"device": "mps", "options": {"image_size": 64}, "machine": {"id": "m2"}, "simulated": model}
    for name, value in others.items():
        with pytest.raises(InvalidValue, match="differ in"):
            compare_stored(result.a, msgspec.structs.replace(result.b, **{name: value}))


@pytest.mark.parametrize(
    ("noise", "precision", "pairs"),
    [(0.0, 0.02, 1), (0.02, 0.02, 1), (0.021, 0.02, 6), (0.03, 0.02, 8), (0.3, 0.02, 12), (0.3, 0.0, 1)],
)
def test_as_many_pairs_of_processes_as_their_noise_calls_for(noise, precision, pairs):
    assert pairs_for(noise, precision) == pairs


@pytest.mark.parametrize("noise", [0.0, 0.024, 0.032])
def test_pairs_and_rounds_together_reach_the_precision(noise):
    """Simulated: pairs that differ for good, rounds that scatter by 5%; as much of both as is called for."""
    pairs = pairs_for(noise, 0.02)
    half_width = stats.rounds_part(stats.half_width_per_pair(0.02, pairs), noise)
    rounds = math.ceil((1.96 * math.sqrt(2) * 0.05 / half_width) ** 2)
    rng = np.random.default_rng(0)

    def ratio():
        for_good = rng.normal(1, noise / 1.96, pairs)
        rates = [(rng.normal(own, 0.05, rounds), rng.normal(1, 0.05, rounds)) for own in for_good]
        return stats.ratio_over_pairs(rates) if pairs > 1 else stats.ratio(*rates[0], paired=True)

    widths = [ratio().half_width for _ in range(100)]
    assert 0.016 < np.mean(widths) < 0.021


def test_of_runs_that_were_measured_apart_each_side_leaves_its_own_disturbed_rounds_out():
    clean, half = [100.0] * 10, [100.0] * 5 + [50.0] * 5
    a = stored_run("a", clean, [])
    b = stored_run("b", half, [0.0] * 5 + [0.5] * 5)
    assert compare_stored(a, b).ratio.ratio == compare_stored(b, a).ratio.ratio == pytest.approx(1.0)
    taken = stored_run("c", [50.0] * 10, [0.5] * 10)
    for pair in ((a, taken), (taken, a)):
        assert compare_stored(*pair).ratio.verdict == "disturbed"


def stored_run(name, rates, shares):
    about = {"session": name, "created": "", "stage": "x", "workload": "w", "device": "cpu", "recipe": {}}
    return Run(id=name, **about, raw=Raw(block_samples_per_s=rates, disturbed=shares))


@pytest.mark.usefixtures("data_dir")
def test_the_noise_of_stored_runs_is_the_largest_that_is_known_of_them():
    a, b = stored_run("a", [100.0] * 5, []), stored_run("b", [100.0] * 5, [])
    assert compare_stored(a, b).pairing.noise == stats.aa_noise_bound(())
    one = Pairing([1.0], [1.0], against="z", role="baseline", interleaved=True, noise=0.2)
    assert compare_stored(a, msgspec.structs.replace(b, pairings=[one])).pairing.noise == 0.2
    store = RunStore()
    store.add_noise("cpu", [stats.AAPair(0.3, 0.0)] * 4)
    assert compare_stored(a, b, store).pairing.noise == store.noise("cpu")
