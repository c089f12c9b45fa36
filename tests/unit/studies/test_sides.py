"""Sides with children that answer from a table: turns, rounds, incarnations, memory, disturbance, stopping."""

import contextlib
import itertools
import os
import threading
from dataclasses import replace

import numpy as np
import pytest

from perfkit.errors import Cancelled, PerfkitError, RunFailed, StoreError, TrainingEnded
from perfkit.ladder.catalogue import Stage
from perfkit.process.child import environment_of
from perfkit.recipe import Recipe
from perfkit.results import stats
from perfkit.results.schema import Mechanism
from perfkit.results.store import RunStore
from perfkit.show import sentences
from perfkit.studies import here
from perfkit.studies.compare import Candidate, compare_candidates
from perfkit.studies.sources import Progress
from perfkit.studies.staging import again, loaded
from perfkit.studies.starting import LAST_ANSWER_S
from tests.unit.studies.fakes import out_of_memory


def stage(size, reason=""):
    return Stage(f"b{size}", f"batch {size}", Recipe(batch_size=size), reason)


THREE = [stage(8), stage(16), stage(32)]


def ruled(where, rounds, budget_s=0, precision=0.05, part=0.2):
    """The rule of a plan with other numbers."""
    return replace(where.until(budget_s, precision, part).rule, rounds=rounds)


def measure(where, stages, rounds=3, **rule):
    with where.open() as session:
        return session.measure(stages, ruled(where, rounds, **rule))


def test_every_round_has_one_slice_of_each_side_in_an_order_of_its_own(machine, where):
    measure(where, THREE, rounds=40)
    rounds = [machine.slices()[at : at + 3] for at in range(0, 120, 3)]
    assert all(sorted(numbers) == [0, 1, 2] for numbers in rounds)
    assert len({tuple(numbers) for numbers in rounds}) == 6, "every order comes up"
    assert machine.alive() == []


def test_the_seed_of_a_recipe_decides_neither_who_starts_nor_who_is_first(machine, where):
    """As it did: the same seed gave the same schedule."""
    firsts = set()
    for _ in range(12):
        machine.children.clear(), machine.asked.clear(), machine.trainings.clear()
        measure(where, THREE, rounds=1)
        started = tuple(each["recipe"].batch_size for each in machine.trainings)
        firsts.add((started, tuple(machine.slices())))
    assert len(firsts) > 4
    assert {each["seed"] for each in machine.trainings} == {where.subject.seed}


def test_only_the_side_whose_turn_it_is_runs(machine, where):
    """Each child asserts it when it is asked, from its start to the last question."""
    measure(where, THREE, rounds=5)
    assert all(child.stopped for child in machine.children)


def test_ratios_and_rates_are_those_of_the_same_rounds(machine, where):
    turns = iter(range(1000))
    plain = machine.rate
    machine.rate = lambda recipe: plain(recipe) * (1 + 0.001 * next(turns))
    first, second, third = measure(where, THREE)
    against = [[(one.role, one.against) for one in run.pairings] for run in (first, second, third)]
    compared = [("previous", first.id), ("baseline", first.id)]
    assert against == [[], compared, compared]
    by_id = {run.id: run.samples_per_s.value for run in (first, second, third)}
    for run in (second, third):
        for pairing in run.pairings:
            assert pairing.interleaved
            assert pairing.ratio.ratio == pytest.approx(by_id[run.id] / by_id[pairing.against], rel=1e-12)
    assert third.raw.step_s[:3] == [2.0, 0.5, 0.5]
    assert (third.raw.warmup_steps, third.raw.block_steps) == (3, [2, 2, 2])
    assert len(third.raw.ceiling_samples_per_s) == 3


def test_rates_agree_with_the_ratio_in_a_disturbed_room_of_several_incarnations(machine, where):
    shares = itertools.cycle([0.0, 0.3, 0.02, 0.0, 0.12, 0.4, 0.0])
    machine.taken = lambda: next(shares)
    noise = np.random.default_rng(1)
    plain = machine.rate
    machine.rate = lambda recipe: plain(recipe) * noise.lognormal(0, 0.1)
    first, second = measure(where, [stage(8), stage(16)], rounds=5, budget_s=200, precision=0.001, part=0.0)
    assert len(second.raw.incarnations) > 2
    ratio = second.samples_per_s.value / first.samples_per_s.value
    assert second.speedup("baseline").ratio == pytest.approx(ratio, rel=1e-12)


def test_what_others_took_in_the_slices_of_a_third_side_is_nothing_to_the_other_two(machine, where):
    def taken():
        child = machine.children[machine.slices()[-1]]
        return 0.4 if machine.batch_of(child) == 32 else 0.0

    machine.taken = taken
    first, second, third = measure(where, THREE, rounds=5)
    assert set(second.pairing("baseline").disturbed) == {0.0}
    assert set(third.pairing("baseline").disturbed) == {0.4}
    assert [set(run.raw.disturbed) for run in (first, second, third)] == [{0.0}, {0.0}, {0.4}]


def test_processes_are_renewed_while_there_is_time_and_each_incarnation_starts_anew(machine, where):
    noise = np.random.default_rng(0)
    plain = machine.rate
    machine.rate = lambda recipe: plain(recipe) * noise.lognormal(0, 0.1)
    _, second = measure(where, [stage(8), stage(16)], rounds=5, budget_s=100, precision=0.001, part=0.0)
    incarnations = second.raw.incarnations
    assert len(incarnations) >= 3 and min(incarnations) >= 5
    assert len(machine.children) == 2 * len(incarnations)
    lives = [machine.generations[at : at + 2] for at in range(0, len(machine.generations), 2)]
    assert lives[0] == [0, 0], "the shared zygote, which has imported torch"
    assert all(own == other for own, other in lives)
    assert len({own for own, _ in lives}) == len(lives), "forks of one zygote are alike"
    assert len(machine.prepared) == 2 * len(lives), "all zygotes of a life start at once"
    losses = [each["loss_steps"] for each in machine.trainings]
    assert losses[:2] == [where.rule.loss_steps] * 2 and set(losses[2:]) == {1}, "they are known by then"
    assert sum(incarnations) == len(second.raw.block_samples_per_s) == len(second.raw.disturbed)
    assert len(second.raw.further_warmup_s) == len(incarnations) - 1
    assert machine.now < 130, "within the budget, but for what was under way"


def test_rounds_of_which_each_takes_longer_than_the_budget_are_two(machine, where):
    """As where an evaluation of a script is under way: five would take many times what was asked for."""
    plain = machine.rate
    machine.rate = lambda recipe: plain(recipe) / 1000
    _, second = measure(where, [stage(8), stage(16)], rounds=5, budget_s=1, precision=0.001, part=0.0)
    assert second.raw.incarnations == [2]


def test_where_starting_is_dear_there_is_one_incarnation(machine, where):
    noise = np.random.default_rng(0)
    plain = machine.rate
    machine.rate = lambda recipe: plain(recipe) * noise.lognormal(0, 0.1)
    machine.start_s = 60.0
    _, second = measure(where, [stage(8), stage(16)], rounds=5, budget_s=130, precision=0.001, part=0.0)
    assert len(second.raw.incarnations) == 1
    assert second.raw.incarnations[0] >= 20, "the time that is left goes into rounds"


def test_what_was_compiled_once_does_not_make_the_next_start_dear(machine, where):
    noise = np.random.default_rng(0)
    plain = machine.rate
    machine.rate = lambda recipe: plain(recipe) * noise.lognormal(0, 0.1)
    machine.compile_s = 60.0
    compiled = Stage("compile", "compile", Recipe(batch_size=8, compile=True))
    _, second = measure(where, [stage(8), compiled], rounds=5, budget_s=130, precision=0.001, part=0.0)
    assert len(second.raw.incarnations) >= 3


def test_a_store_that_cannot_be_read_costs_no_rounds(machine, where, monkeypatch):
    def fail(*_):
        raise StoreError("the store cannot be read", "repair it")

    monkeypatch.setattr(RunStore, "spread", fail)
    with pytest.raises(StoreError), where.open(store=RunStore()) as session:
        session.measure([stage(8), stage(16)], where.rule)
    assert machine.slices() == [], "it is told before anything is measured"


def test_rounds_end_when_the_ratio_is_known(machine, where):
    _, second = measure(where, [stage(8), stage(16)], rounds=5, precision=0.1, budget_s=1000)
    assert len(second.raw.block_samples_per_s) == stats.ENDING_ROUNDS
    assert second.speedup("previous").verdict == "faster"


def test_without_a_budget_there_are_so_many_rounds_and_no_verdict_below_five(machine, where):
    _, second = measure(where, [stage(8), stage(16)], rounds=3)
    assert len(second.raw.block_samples_per_s) == 3
    assert second.speedup("previous").verdict == "undecided"


def test_the_baseline_in_another_process_is_this_machine_s_noise(machine, where):
    machine.rate_of = lambda child: 1.03 if child.number % 2 else 1.0
    with where.open(store=RunStore()) as session:
        *_, row = session.measure([stage(8), again(stage(8))], replace(where.rule, rounds=5))
    assert row.is_again
    assert [pairing.role for pairing in row.pairings] == ["baseline"]
    known = RunStore().spread("cpu")
    pair = stats.AAPair(float(np.log(1.03)), 0.0)
    assert known.freedom == stats.UNKNOWN.freedom + 1
    assert known.sd == pytest.approx(stats.spread_of([pair]).sd)


def test_two_sides_differ_as_far_as_equal_processes_of_the_more_variable_one(machine, where):
    pair = stats.AAPair(0.2, 0.0)
    RunStore().add_aa_pairs("cpu", "default", False, [pair])
    keeps = Recipe(allocator="keep")
    with where.open(store=RunStore()) as session:
        assert session.spread([keeps, keeps]) == stats.UNKNOWN
        assert session.spread([keeps, Recipe()]) == stats.spread_of([pair])


def test_either_of_two_equal_processes_is_the_baseline(machine, where):
    machine.rate_of = lambda child: 0.9 if child.number == 0 else 1.0
    ratios = set()
    for _ in range(12):
        machine.children.clear()
        *_, row = measure(where, [stage(8), again(stage(8))], rounds=5)
        ratios.add(round(row.pairings[0].ratio.ratio, 3))
    assert ratios == {0.9, 1.111}


def test_a_switch_that_is_not_in_effect_is_an_error_not_a_slow_stage(machine, where):
    machine.mechanisms = [Mechanism("pin_memory", False, "batch is pageable")]
    (run,) = measure(where, [stage(8)])
    assert run.status == "failed"
    assert "the switch is not in effect: pin_memory (batch is pageable)" in run.reason
    assert machine.slices() == []
    assert machine.alive() == []


@pytest.mark.parametrize("question", ["train", "slice"])
def test_a_failing_stage_stops_no_other_and_is_compared_with_nothing(question, machine, where):
    problem = RunFailed("broken", "fix it")
    machine.fails = lambda child, asked: (
        problem if asked == question and machine.batch_of(child) == 16 else None
    )
    first, second, third = measure(where, THREE)
    assert (second.status, second.reason) == ("failed", "broken. fix it")
    assert [pairing.against for pairing in third.pairings] == [first.id, first.id]
    assert machine.alive() == []


@pytest.mark.parametrize(
    ("question", "lacks"), [("cached_batch", "its rate on a cached batch"), ("peak", "its peak memory")]
)
def test_a_side_that_fails_after_its_rounds_keeps_them(question, lacks, machine, where):
    """A cached batch is one more on the device, so memory runs out there first; all rounds were thrown away."""
    machine.fail(question, out_of_memory(), lambda child: machine.batch_of(child) == 16)
    first, second, third = measure(where, THREE, rounds=5)
    assert [run.status for run in (first, second, third)] == ["ok"] * 3
    assert second.speedup("baseline").ratio == pytest.approx(1.5)
    assert second.ceiling_samples_per_s is None and third.ceiling_samples_per_s
    assert f"{lacks} is not known: no memory. lower batch_size" in second.warnings
    assert (second.peak_memory_bytes is None) == (question == "peak")
    assert machine.alive() == []


def test_a_training_that_ends_on_a_cached_batch_ends_the_measurement_as_one_that_ends_in_a_slice(
    machine, where
):
    """It went on with new processes, which ended in the same way."""
    machine.fail("cached_batch", TrainingEnded("it has ended"), lambda child: machine.batch_of(child) == 16)
    still_answer = []
    with where.open() as session:
        rule = ruled(where, rounds=5, budget_s=100, precision=0.001, part=0.0)
        runs = session.measure(THREE, rule, lambda side: still_answer.append(side.child is not None))
    assert isinstance(session.stopped, TrainingEnded)
    assert [len(run.raw.block_samples_per_s) for run in runs] == [len(machine.slices()) / 3] * 3
    assert runs[1].ceiling_samples_per_s is None
    assert "its rate on a cached batch is not known: it has ended" in runs[1].warnings
    assert still_answer == [True] * 3
    assert machine.alive() == []


def test_a_training_that_ends_while_it_starts_again_leaves_all_their_earlier_rounds(machine, where):
    """It was called failed, and its rounds were lost."""
    is_later = lambda child: machine.batch_of(child) == 16 and machine.generations[child.number]
    machine.fail("train", TrainingEnded("it has ended"), is_later)
    with where.open() as session:
        runs = session.measure(THREE, ruled(where, rounds=5, budget_s=100, precision=0.001, part=0.0))
    assert isinstance(session.stopped, TrainingEnded)
    assert [run.status for run in runs] == ["ok"] * 3
    assert [len(run.raw.incarnations) for run in runs] == [1] * 3
    assert machine.alive() == []


def test_whoever_asks_at_the_end_learns_what_has_ended_a_side(machine, where):
    machine.fail("peak", RunFailed("killed"), lambda child: machine.batch_of(child) == 16)
    ended_by = {}
    with where.open() as session:
        session.measure(
            THREE, ruled(where, rounds=3), lambda side: ended_by.update({side.stage.name: str(side.ended_by)})
        )
    assert ended_by == {"b8": "None", "b16": "killed", "b32": "None"}


def test_nothing_is_compared_with_a_baseline_that_failed_nor_is_it_this_machine_s_noise(machine, where):
    """The one after it was called the baseline, and noise the difference of two recipes."""
    is_last_slice = lambda child: machine.batch_of(child) == 8 and machine.slices().count(child.number) == 5
    machine.fail("slice", RunFailed("killed"), is_last_slice)
    plain, other = stage(8), replace(again(stage(64)), title="the same, in a process that is not killed")
    with where.open(store=RunStore()) as session:
        runs = session.measure([plain, stage(16), stage(32), other], replace(where.rule, rounds=5))
    assert [run.status for run in runs] == ["failed", "ok", "ok", "ok"]
    roles = [[pairing.role for pairing in run.pairings] for run in runs]
    assert roles == [[], [], [], []]
    assert RunStore().spread("cpu") == stats.UNKNOWN


def test_a_workload_that_cannot_be_loaded_raises_and_leaves_nothing(machine, where):
    machine.fails = lambda child, question: PerfkitError("no data", "download it")
    with pytest.raises(PerfkitError, match="no data"):
        measure(where, THREE)
    assert machine.alive() == []


def test_sides_that_memory_does_not_hold_together_take_turns_and_say_so(machine, where, monkeypatch):
    """The machine is twice as fast in every second life of a process: ratios of turns hold it in their width."""
    monkeypatch.setattr("perfkit.studies.starting.Starter._is_crowded", lambda *_: True)
    first, second, third = measure(where, THREE, rounds=5)
    assert not third.pairings[0].interleaved
    assert third.pairings[0].ratio.ratio == pytest.approx(120 / 100)
    assert all("took turns" in " ".join(run.warnings) for run in (first, second, third))
    assert max(len(alive) for alive in machine.history) == 1


def one_of_two_goes(problem, slices, order, machine, monkeypatch):
    """Of two sides in turns, the one with batches of 8 has this problem after so many slices."""
    monkeypatch.setattr("perfkit.studies.starting.Starter._is_crowded", lambda *_: True)
    monkeypatch.setattr("perfkit.studies.sides.Bench.shuffled", lambda self, sides: sides[::order])
    goes = lambda child: machine.batch_of(child) == 8 and machine.slices().count(child.number) > slices
    machine.fail("slice", problem, goes)


@pytest.mark.parametrize("order", [1, -1], ids=["the first one ends", "the last one ends"])
@pytest.mark.parametrize("slices", [4, 0])
def test_a_training_that_ends_in_its_turn_leaves_the_others_theirs(
    slices, order, machine, where, monkeypatch
):
    """They were called stopped, as if by a person. One that ends in its first slice has failed."""
    one_of_two_goes(TrainingEnded("it has ended"), slices, order, machine, monkeypatch)
    with where.open() as session:
        first, second = session.measure([stage(8), stage(16)], ruled(where, rounds=9))
    if slices:
        assert isinstance(session.stopped, TrainingEnded)
        assert (first.status, second.status) == ("ok", "ok")
        assert len(first.raw.block_samples_per_s) == second.pairings[0].sizes[0] == slices
    else:
        assert (first.status, first.reason, second.status) == ("failed", "it has ended", "ok")
        assert len(second.raw.block_samples_per_s) == 9, "as many as if it were measured alone"
    assert machine.alive() == []


@pytest.mark.parametrize("order", [1, -1], ids=["the first one fails", "the last one fails"])
@pytest.mark.parametrize("slices", [0, 2])
def test_a_side_that_fails_in_its_turn_takes_no_rounds_from_the_other(
    slices, order, machine, where, monkeypatch
):
    """The other took as many rounds as it had begun."""
    one_of_two_goes(RunFailed("broken"), slices, order, machine, monkeypatch)
    first, second = measure(where, THREE[:2], rounds=9)
    assert (first.status, second.status) == ("failed", "ok")
    assert second.raw.sizes == [9]


def test_a_side_that_failed_to_start_holds_no_memory_that_the_next_one_lacks(machine, where, monkeypatch):
    """It was counted as alive: sides took turns that fit together."""
    monkeypatch.setattr("perfkit.studies.sides.Bench.shuffled", lambda self, sides: list(sides))
    problems = {8: RunFailed("broken"), 16: out_of_memory()}
    machine.fails = lambda child, asked: problems.get(machine.batch_of(child)) if asked == "train" else None
    first, second, third = measure(where, THREE)
    assert [run.status for run in (first, second, third)] == ["failed", "failed", "ok"]
    assert "took turns" not in " ".join(third.warnings)


def test_a_gpu_s_memory_decides_whether_sides_train_together(machine, where, monkeypatch):
    """Each takes 30 of 100: with two of them, 45 more, which a third one might need, are not free.

    So the second and the third one take part with the first one in turn.
    """
    free, machine.gpu = lambda uuid: 100 - 30 * len(machine.alive()), "GPU-fake"
    monkeypatch.setattr("perfkit.studies.starting.gpus.free_gpu_bytes", free)
    assert [run.pairings[0].interleaved for run in measure(where, THREE[:2])[1:]] == [True]
    runs = measure(where, THREE)
    assert [run.status for run in runs] == ["ok"] * 3
    assert all(run.pairings[0].interleaved for run in runs[1:])
    assert max(len(alive) for alive in machine.history) == 2


def test_a_first_side_that_fails_on_a_gpu_stops_no_other(machine, where, monkeypatch):
    """Then nobody is alive whose memory could be compared with what is free."""
    machine.gpu = "GPU-fake"
    monkeypatch.setattr("perfkit.studies.starting.gpus.free_gpu_bytes", lambda uuid: 100)
    machine.fails = lambda child, question: (
        RunFailed("no", "x") if (child.number, question) == (0, "train") else None
    )
    assert sorted(run.status for run in measure(where, THREE)) == ["failed", "ok", "ok"]


def test_on_a_gpu_whose_free_memory_nobody_knows_two_sides_at_most_are_alive(machine, where, monkeypatch):
    """A Jetson, or NVML without permission: what is not known is not enough for everybody."""
    machine.gpu = "GPU-fake"
    monkeypatch.setattr("perfkit.studies.starting.gpus.free_gpu_bytes", lambda uuid: None)
    assert [run.pairings[0].interleaved for run in measure(where, THREE[:2])[1:]] == [True]
    runs = measure(where, THREE)
    assert [run.status for run in runs] == ["ok"] * 3
    assert all(run.pairings[0].interleaved for run in runs[1:])
    assert max(len(alive) for alive in machine.history) == 2


def test_on_a_gpu_that_takes_one_process_the_sides_take_turns(machine, where, monkeypatch):
    """As clusters set it: the second process would fail, and its message names no memory."""
    machine.gpu = "GPU-fake"
    monkeypatch.setattr("perfkit.studies.starting.gpus.holds_one_process", lambda uuid: uuid == "GPU-fake")
    runs = measure(where, THREE)
    assert [run.status for run in runs] == ["ok"] * 3
    assert not any(run.pairings[0].interleaved for run in runs[1:])
    assert max(len(alive) for alive in machine.history) == 1


@pytest.mark.parametrize("question", ["train", "slice"])
def test_sides_take_part_a_few_at_a_time_where_memory_does_not_hold_all(question, machine, where):
    machine.fail(question, out_of_memory(), lambda child: len(machine.alive()) > 2)
    base, *runs = measure(where, [*THREE, stage(64)], rounds=5)
    assert [len(run.raw.block_samples_per_s) for run in runs] == [5, 5, 5]
    for run, rate in zip(runs, (150, 120, 200), strict=True):
        assert {(pairing.against, pairing.interleaved) for pairing in run.pairings} == {(base.id, True)}
        assert run.speedup("previous").ratio == pytest.approx(rate / 100)
        assert len(run.raw.ceiling_samples_per_s) == 5 and run.peak_memory_bytes and len(run.losses) == 2
    assert machine.alive() == []


def test_a_side_whose_ratio_is_known_leaves_the_time_to_the_others(machine, where):
    noise = np.random.default_rng(0)
    plain = machine.rate
    is_noisy = lambda recipe: recipe.batch_size == 32
    machine.rate = lambda recipe: plain(recipe) * (noise.lognormal(0, 0.3) if is_noisy(recipe) else 1.0)
    _, known, noisy = measure(where, THREE, rounds=5, budget_s=60, precision=0.05)
    assert len(known.raw.incarnations) < len(noisy.raw.incarnations)
    assert known.speedup("previous").ratio == pytest.approx(1.5)


@pytest.mark.parametrize("question", ["train", "slice"])
def test_what_fits_with_nothing_else_takes_turns_and_what_does_not_fit_alone_fails(question, machine, where):
    machine.fail(question, out_of_memory(), lambda child: len(machine.alive()) > 1)
    runs = measure(where, THREE)
    assert [run.status for run in runs] == ["ok"] * 3
    assert not any(pairing.interleaved for run in runs for pairing in run.pairings)
    machine.fail(question, out_of_memory())
    assert [run.status for run in measure(where, THREE)] == ["failed"] * 3
    assert machine.alive() == []


@pytest.mark.parametrize("question", ["train", "slice"])
def test_a_side_that_starts_again_after_a_crowded_life_has_all_its_first_losses(question, machine, where):
    """What it had reported was forgotten, so a single loss was all that was left as the proof of it."""
    machine.fail(question, out_of_memory(), lambda child: len(machine.alive()) > 1)
    assert [run.losses for run in measure(where, THREE, rounds=5)] == [[2.3, 2.2]] * 3


def test_on_a_gpu_that_takes_one_process_all_first_losses_are_kept(machine, where, monkeypatch):
    machine.gpu = "GPU-fake"
    monkeypatch.setattr("perfkit.studies.starting.gpus.holds_one_process", lambda uuid: uuid == "GPU-fake")
    assert [run.losses for run in measure(where, THREE)] == [[2.3, 2.2]] * 3


def test_nothing_more_is_asked_of_sides_that_turned_out_crowded(machine, where, monkeypatch):
    """What a source asks once would be of a life that was forgotten, and has taken no steps."""
    asked = []

    def ask_more(side):
        asked.append((side.stage.name, (side.child.number, "slice") in machine.asked))

    machine.fail("train", out_of_memory(), lambda child: len(machine.alive()) > 1)
    with where.open() as session:
        session.measure(THREE, ruled(where, rounds=3), ask_more)
    assert set(asked) == {(each.name, True) for each in THREE}


def test_whoever_is_interrupted_does_not_wait_for_a_long_last_answer(machine, where):
    """A side that evaluates for minutes answers nothing until it has ended: Ctrl-C seemed to do nothing."""
    patience = {}

    def ask_more(side):
        patience[side.stage.name] = side.child.timeout_s

    machine.fail("slice", KeyboardInterrupt(), lambda child: len(machine.slices()) > 4)
    with pytest.raises(KeyboardInterrupt), where.open() as session:
        session.measure(THREE, ruled(where, rounds=3), ask_more)
    assert patience == {each.name: LAST_ANSWER_S for each in THREE}


def test_a_life_that_turned_out_crowded_leaves_nothing(machine, where, monkeypatch):
    """Two of three were warm, and a round was taken, before the third one needed too much."""
    utilization = []
    sampler = contextlib.nullcontext(utilization)
    monkeypatch.setattr("perfkit.studies.measurement.gpus.sample_utilization", lambda uuid: sampler)

    def fails(child, question):
        utilization.append(20.0)
        is_late = question == "slice" and len(machine.alive()) > 1 and len(machine.slices()) > 4
        return out_of_memory() if is_late else None

    machine.fails = fails
    runs = measure(where, THREE, rounds=5)
    assert [run.status for run in runs] == ["ok"] * 3
    for run in runs:
        assert len(run.raw.further_warmup_s) == len(run.raw.sizes) - 1
        assert len(run.raw.gpu_utilization_nvml) == len(run.raw.block_samples_per_s)


def test_what_was_alive_together_once_keeps_its_rounds_where_memory_runs_short_later(machine, where):
    machine.fail("train", out_of_memory(), lambda child: child.number > 1 and len(machine.alive()) > 1)
    _, run = measure(where, THREE[:2], rounds=5, budget_s=1000, precision=1e-6)
    (pairing, _) = run.pairings
    assert pairing.interleaved and "took turns" not in " ".join(run.warnings)
    assert (pairing.sizes, run.raw.further_warmup_s) == ([5], [])


def test_a_disturbed_room_is_a_remark_that_names_who_did_it_and_never_the_verdict(machine, where):
    machine.taken = lambda: 0.4
    for run in measure(where, THREE, rounds=10)[1:]:
        assert run.disturbed == pytest.approx(0.4)
        assert (
            "other programs took 40% of the cores (chrome (process 7) 38%), so this holds only under that load"
            in sentences.disturbance(run)
        )
        assert run.speedup("baseline").verdict in ("faster", "slower", "undecided")


def test_a_side_that_has_just_had_its_slice_is_no_other_program_on_the_gpu(machine, where, monkeypatch):
    """A sample of NVML covers up to a second, so it may hold the slice before: the next one seemed disturbed."""
    machine.gpu = "GPU-fake"
    own = []
    monkeypatch.setattr("perfkit.studies.starting.gpus.free_gpu_bytes", lambda uuid: 1 << 40)
    monkeypatch.setattr(
        "perfkit.studies.slices.gpus.taken_gpu_share", lambda uuid, since, pids: own.append(set(pids)) or 0.0
    )
    measure(where, THREE, rounds=2)
    assert own == [{1000, 1001, 1002}] * 6


def test_a_slice_that_others_mostly_took_is_taken_again_and_the_cleaner_one_counts(machine, where):
    shares = iter([0.9, 0.0, 0.1, *[0.0] * 100])
    machine.taken = lambda: next(shares)
    first, second = measure(where, [stage(8), stage(16)], rounds=1, budget_s=1e-9 + 10, precision=9.0)
    assert max([*first.raw.disturbed, *second.raw.disturbed]) == pytest.approx(0.1)
    assert len(machine.slices()) == 2 * len(second.raw.disturbed) + 1


def test_the_utilization_of_a_slice_that_is_taken_again_counts_once(machine, where, monkeypatch):
    samples, shares = [], iter([0.9, 0.0, 0.1, *[0.0] * 100])
    sampler = contextlib.nullcontext(samples)
    monkeypatch.setattr("perfkit.studies.measurement.gpus.sample_utilization", lambda uuid: sampler)
    machine.fails = lambda child, asked: samples.append(99.0 if len(machine.slices()) == 1 else 20.0)
    machine.taken = lambda: next(shares)
    runs = measure(where, [stage(8), stage(16)], rounds=1, budget_s=1e-9 + 10, precision=9.0)
    for run in runs:
        assert run.raw.gpu_utilization_nvml == [20.0] * len(run.raw.block_samples_per_s)


def test_a_second_study_waits_for_the_device_says_so_and_can_give_up(machine, where):
    stop, said = threading.Event(), []

    def follow(update):
        said.append(update)
        stop.set()

    with where.open():
        assert loaded(where).description.offers, "describing it disturbs nobody"
        with pytest.raises(Cancelled), where.open(Progress(follow, stop)):
            pytest.fail("both have the device")
    (waiting,) = said
    assert waiting.is_waiting and waiting.phase.startswith("waiting: ")
    assert waiting.phase.endswith(f"(process {os.getpid()}) uses the cores")


def test_a_study_that_ends_leaves_no_environment_but_the_plain_one(machine, where, monkeypatch):
    needed = []
    monkeypatch.setattr(here.zygote, "end_unneeded", needed.append)
    with where.open() as session:
        session.measure([stage(8), replace(stage(16), recipe=Recipe(wait_policy="passive"))], where.rule)
        assert not needed, "its own are needed until then"
    (environment,) = needed
    assert environment == environment_of({}) and "OMP_WAIT_POLICY" not in environment
    assert machine.alive() == []


def test_it_says_how_long_it_takes_at_most(machine, where):
    said = []
    with where.open(Progress(lambda update: said.append(update.left_s))) as session:
        session.progress.later_s = 100.0
        rule = ruled(where, rounds=5, budget_s=50, precision=0.001, part=0.0)
        session.measure([stage(8), stage(16)], rule)
    known = [left for left in said if left is not None]
    assert max(known) <= 150 and min(known) >= 100
    assert known == sorted(known, reverse=True)


def test_a_gpu_is_as_busy_as_it_is_in_slices_not_on_a_cached_batch(machine, where, monkeypatch):
    """Which keeps it busy always, so that a loop that waits for data looked busier than it is."""
    samples = []
    sampler = contextlib.nullcontext(samples)
    monkeypatch.setattr("perfkit.studies.measurement.gpus.sample_utilization", lambda uuid: sampler)
    machine.fails = lambda child, asked: samples.append(20.0 if asked == "slice" else 99.0)
    runs = measure(where, THREE, rounds=5)
    assert 99.0 in samples
    assert [run.raw.gpu_utilization_nvml for run in runs] == [[20.0] * 5] * 3


def test_a_person_who_stops_it_keeps_the_rounds_until_then(machine, where):
    stop = threading.Event()

    def taken():
        if len(machine.slices()) == 12:
            stop.set()
        return 0.0

    machine.taken = taken
    with where.open(Progress(cancelled=stop)) as session:
        runs = session.measure([stage(8), stage(16)], replace(where.rule, rounds=50))
    assert isinstance(session.stopped, Cancelled)
    assert [len(run.raw.block_samples_per_s) for run in runs] == [6, 6]
    assert machine.alive() == []


def test_zygotes_and_sides_that_have_just_ended_are_not_other_programs(machine, where, monkeypatch):
    """Those of each generation import torch while the sides are measured."""
    alive, left_out = set(), []
    monkeypatch.setattr("perfkit.studies.measurement.zygote.pids", lambda: set(alive))
    monkeypatch.setattr(here.zygote, "prepare", lambda variables, generation: alive.add(5000 + generation))
    monkeypatch.setattr(here.zygote, "end_generation", lambda generation: alive.discard(5000 + generation))
    monkeypatch.setattr(
        "perfkit.machine.cores.OtherPrograms.busiest",
        lambda self, pids: left_out.append(set(pids)) or ("x", 0.0),
    )
    machine.rate_of = lambda child: 1.0 + 0.2 * (child.number % 3)
    sides = Candidate("A", {"batch_size": 8}), Candidate("B", {"batch_size": 64})
    result = compare_candidates(*sides, where.until(60, 0.001))
    zygotes = {pid for pid in left_out[-1] if pid >= 5000}
    assert result.incarnations > 1 and len(zygotes) == result.incarnations
    children = set.union(*(child.pids() for child in machine.children))
    assert children <= left_out[-1], "they have ended, but may be listed still"


def test_zygotes_of_an_incarnation_that_is_interrupted_are_not_other_programs(machine, where, monkeypatch):
    alive, left_out = set(), []
    monkeypatch.setattr("perfkit.studies.measurement.zygote.pids", lambda: set(alive))
    monkeypatch.setattr(here.zygote, "prepare", lambda variables, generation: alive.add(5000 + generation))
    monkeypatch.setattr(
        "perfkit.machine.cores.OtherPrograms.busiest",
        lambda self, pids: left_out.append(set(pids)) or ("x", 0.0),
    )
    machine.rate_of = lambda child: 1.0 + 0.2 * (child.number % 3)
    machine.fail("slice", Cancelled("stopped"), lambda child: machine.generations[child.number])
    sides = Candidate("A", {"batch_size": 8}), Candidate("B", {"batch_size": 64})
    assert compare_candidates(*sides, where.until(60, 0.001)).incarnations == 1
    assert {5000 + generation for generation in machine.generations} <= left_out[-1]
