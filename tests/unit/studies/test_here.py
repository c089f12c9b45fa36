"""The measuring loop with children that answer from a table: rounds, memory, disturbance, stopping."""

import threading
from dataclasses import replace

import pytest

from perfkit.errors import Cancelled, PerfkitError, RunFailed
from perfkit.ladder.catalogue import Stage
from perfkit.recipe import Recipe
from perfkit.results import stats
from perfkit.results.run import Mechanism
from perfkit.results.store import RunStore
from perfkit.studies.inspect import parity
from perfkit.studies.rungs import again, described
from perfkit.studies.sources import Progress, opened
from tests.unit.studies.fakes import out_of_memory


def stage(size, reason=""):
    return Stage(f"b{size}", f"batch {size}", Recipe(batch_size=size), reason)


THREE = [stage(8), stage(16), stage(32)]


def measure(where, stages, rounds=3, **rule):
    with opened(where, Progress(), store=RunStore()) as source:
        return source.measure(stages, replace(where.preset, rounds=rounds, **rule))


def test_every_round_measures_one_block_of_each_stage_in_random_order(machine, where):
    measure(where, THREE, rounds=20)
    rounds = [machine.blocks()[at : at + 3] for at in range(0, 60, 3)]
    assert all(sorted(numbers) == [0, 1, 2] for numbers in rounds)
    assert len({tuple(numbers) for numbers in rounds}) == 6, "every order comes up"
    assert machine.alive() == []


def test_ratios_and_rates_are_those_of_the_same_rounds(machine, where):
    turns = iter(range(1000))
    plain = machine.rate
    machine.rate = lambda recipe: plain(recipe) * (1 + 0.001 * next(turns))
    first, second, third = measure(where, THREE)
    against = [[(one.role, one.against) for one in run.pairings] for run in (first, second, third)]
    baseline = ("baseline", first.id)
    assert against == [[], [("previous", first.id), baseline], [("previous", second.id), baseline]]
    by_id = {run.id: run.samples_per_s.value for run in (first, second, third)}
    for run in (second, third):
        for pairing in run.pairings:
            assert pairing.interleaved
            assert pairing.ratio.ratio == pytest.approx(by_id[run.id] / by_id[pairing.against], rel=1e-12)
    assert third.raw.step_s[:3] == [2.0, 0.5, 0.5]
    assert (third.raw.warmup_steps, third.raw.block_steps) == (3, [2, 2, 2])
    assert len(third.raw.ceiling_samples_per_s) == 3


@pytest.mark.parametrize(("rates", "rounds"), [((150.0, 150.0), 10), ((150.0, 75.0), 39)])
def test_rounds_end_with_narrow_intervals_or_the_budget(machine, where, monkeypatch, rates, rounds):
    """A clock that ticks once a round: exact ratios need 10 rounds; rates that jump never suffice."""
    now = [0.0]
    monkeypatch.setattr("perfkit.studies.here.time.monotonic", lambda: now[0])
    turns = iter(rates * 1000)

    def rate(recipe):
        now[0] += 0.5
        return 100.0 if recipe.batch_size == 8 else next(turns)

    machine.rate = rate
    _, second = measure(where, [stage(8), stage(16)], precision=0.01, part=0.0, budget_s=38.5, ceiling=False)
    assert len(second.raw.block_samples_per_s) == rounds


def test_the_time_limit_ends_the_rounds_but_not_the_least_number(machine, where):
    _, second = measure(where, [stage(8), stage(16)], precision=0.0, budget_s=1e9, limit_s=0.0)
    assert len(second.raw.block_samples_per_s) == 3


def test_processes_stay_alive_for_the_next_call_and_end_without_their_stage(machine, where):
    with opened(where, Progress()) as source:
        first = source.measure([stage(8), stage(16)], where.preset)
        assert machine.alive() == [0, 1]
        second = source.measure([stage(8), stage(32)], where.preset)
        assert machine.alive() == [0, 2]
        assert second[1].pairings[1].against == first[0].id == second[0].id
        source.renew()
        assert machine.alive() == []
        third = source.measure([stage(8), stage(32)], where.preset)
    assert third[0].id == first[0].id, "the baseline goes on in a new process"
    assert third[1].id != second[1].id
    assert [len(pairing.own_samples_per_s) for pairing in third[1].pairings] == [3, 3]


def test_the_baseline_in_another_process_is_the_machine_s_noise(machine, where):
    *_, last, row = measure(where, [*THREE, again(THREE[0])], rounds=5)
    assert row.is_again
    assert [pairing.role for pairing in row.pairings] == ["baseline"]
    assert RunStore().noise("cpu") == stats.aa_noise_bound([stats.AAPair(0.0, 0.0)])
    assert [pairing.noise for pairing in last.pairings] == [RunStore().noise("cpu")] * 2


def test_either_of_two_equal_processes_is_the_baseline(machine, where):
    machine.rate_of = lambda child: 0.9 if child.number == 0 else 1.0
    ratios = set()
    for seed in range(8):
        machine.children.clear()
        *_, row = measure(replace(where, seed=seed), [stage(8), again(stage(8))], rounds=5)
        ratios.add(round(row.pairings[0].ratio.ratio, 3))
    assert ratios == {0.9, 1.111}


def test_a_switch_that_is_not_in_effect_is_an_error_not_a_slow_stage(machine, where):
    machine.mechanisms = [Mechanism("pin_memory", False, "batch is pageable")]
    (run,) = measure(where, [stage(8)])
    assert run.status == "failed"
    assert "the mechanism is not on: pin_memory (batch is pageable)" in run.reason
    assert machine.blocks() == []
    assert machine.alive() == []


@pytest.mark.parametrize("question", ["train", "block", "peak"])
def test_a_failing_stage_stops_no_other_and_is_compared_with_nothing(question, machine, where):
    machine.fail(question, RunFailed("broken", "fix it"), lambda child: child.number == 1)
    first, second, third = measure(where, THREE)
    assert (second.status, second.reason) == ("failed", "broken. fix it")
    assert [pairing.against for pairing in third.pairings] == [first.id, first.id]
    assert machine.children[1].stopped


def test_a_workload_that_cannot_be_loaded_raises_and_leaves_nothing(machine, where):
    machine.fails = lambda child, question: PerfkitError("no data", "download it")
    with pytest.raises(PerfkitError, match="no data"):
        measure(where, THREE)
    assert machine.alive() == []


def test_without_memory_for_all_stages_are_measured_in_batches(machine, where, monkeypatch):
    """The machine is twice as fast in the second batch: ratios and rates do not show it."""
    monkeypatch.setattr("perfkit.studies.here.ThisMachine._is_crowded", lambda self, batch: len(batch) >= 2)
    plain = machine.rate
    machine.rate = lambda recipe: plain(recipe) * (2 if len(machine.children) > 2 else 1)
    first, second, third = measure(where, THREE)
    assert not third.pairings[0].interleaved
    assert third.pairings[0].ratio.ratio == pytest.approx(120 / 150)
    rates = [run.samples_per_s.value for run in (first, second, third) if run.samples_per_s]
    assert [rate / rates[0] for rate in rates] == pytest.approx([1.0, 1.5, 1.2])
    machine.taken = lambda: 0.4
    assert [one.ratio.verdict for one in measure(where, THREE, rounds=5)[2].pairings] == ["disturbed"] * 2


def test_a_gpu_s_memory_decides_how_many_train_at_once(machine, where, monkeypatch):
    """Each takes 30 of 100: beside two of them 45 more, which a third one might need, are not free."""
    alive, most = lambda: {one for one, asked in machine.asked if asked == "train"} & {*machine.alive()}, []
    free = lambda uuid: 100 - 30 * len(alive())
    monkeypatch.setattr("perfkit.studies.here.gpus.free_gpu_bytes", free)
    machine.rate = lambda recipe: most.append(len(alive())) or 100.0
    assert [run.status for run in measure(where, THREE)] == ["ok"] * 3
    assert set(most) == {2}


@pytest.mark.parametrize(("question", "number"), [("train", 2), ("block", 2), ("block", 0)])
def test_a_stage_that_lacks_memory_is_measured_beside_the_baseline_alone(question, number, machine, where):
    machine.fail(question, out_of_memory(), lambda child: child.number == number and len(machine.alive()) > 2)
    runs = measure(where, THREE)
    assert [run.status for run in runs] == ["ok"] * 3
    assert all(run.pairing("baseline").interleaved for run in runs[1:])
    assert machine.alive() == []


@pytest.mark.parametrize("question", ["train", "block"])
def test_what_fits_beside_nothing_is_measured_alone_and_says_so(question, machine, where):
    machine.fail(question, out_of_memory(), lambda child: len(machine.alive()) > 1)
    runs = measure(where, THREE)
    assert [run.status for run in runs] == ["ok"] * 3
    assert not any(pairing.interleaved for run in runs for pairing in run.pairings)
    assert all("not interleaved" in " ".join(run.warnings) for run in runs[1:])
    machine.fail(question, out_of_memory())
    assert [run.status for run in measure(where, THREE)] == ["failed"] * 3, "nor alone"
    assert machine.alive() == []


def test_what_stays_disturbed_says_so_and_names_who_did_it(machine, where):
    machine.taken = lambda: 0.4
    for run in measure(where, THREE, rounds=5)[1:]:
        assert run.disturbed == pytest.approx(0.4)
        assert {pairing.ratio.verdict for pairing in run.pairings} == {"disturbed"}
        assert "took 40% of the cores (chrome (process 7) 38%)" in run.warnings[0]


def test_rounds_go_on_until_enough_are_undisturbed(machine, where):
    shares = iter([*[0.4] * 4, *[0.0] * 1000])
    machine.taken = lambda: next(shares)
    _, second = measure(where, [stage(8), stage(16)], rounds=5, budget_s=1e9)
    assert len(second.raw.disturbed) == 7
    assert second.disturbed is None
    assert second.pairings[0].ratio.verdict == "faster"


def test_a_second_study_waits_for_the_device_says_so_and_can_give_up(machine, where):
    stop, said = threading.Event(), []

    def follow(update):
        said.append(update.phase)
        stop.set()

    with opened(where, Progress()):
        assert described(where, load=True).description.offers, "describing it disturbs nobody"
        with pytest.raises(Cancelled), opened(where, Progress(follow, stop)):
            pytest.fail("both have the device")
    assert said == ["waiting: another run uses cpu"]


def test_a_switch_that_is_not_in_effect_is_no_parity(machine, where):
    for is_on in (True, False):
        machine.mechanisms = [Mechanism("amp", is_on, "logits are of some type")]
        result = parity(where, "AMP", Recipe(batch_size=16, amp="bf16"))
        assert (result.ok, result.other_batch, result.exactness) == (is_on, True, "tolerance")
        assert ("amp: logits are of some type" in result.describe()) is not is_on
    assert machine.alive() == []
