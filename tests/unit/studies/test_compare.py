"""Two recipes compared: pairs of processes, budgets, failures, stopping, stored runs."""

import contextlib
import itertools
import threading
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from perfkit import workloads
from perfkit.errors import Cancelled, InvalidValue, PerfkitError, WorkloadError
from perfkit.results import stats
from perfkit.results.store import RunStore
from perfkit.studies.climb import with_earlier
from perfkit.studies.compare import Candidate, compare, compare_candidates, compared, earlier_comparison
from perfkit.studies.sources import Progress
from tests.support.plans import on

A, B = Candidate("A", {"batch_size": 8}), Candidate("B", {"batch_size": 64})


def test_both_sides_are_compared_and_stored(machine, where):
    store = RunStore()
    result = compare_candidates(A, B, where.until(0), store=store)
    assert result.ratio.ratio == pytest.approx(2.0)
    assert (result.incarnations, result.rounds) == (1, 5)
    assert result.pairing.spread == stats.UNKNOWN
    stored = [store.get(run.id) for run in (result.a, result.b)]
    assert compared(stored, None) == result


def noisy(machine):
    plain, noise = machine.rate, np.random.default_rng(0)
    machine.rate = lambda recipe: plain(recipe) * noise.lognormal(0, 0.1)


def test_incarnations_go_on_until_the_precision_or_the_budget(machine, where):
    noisy(machine)
    known = compare_candidates(A, B, where.until(1e9, 0.03))
    assert known.ratio.half_width <= 0.031
    assert known.incarnations > 3
    machine.now = 0.0
    assert compare_candidates(A, B, where.until(20, 0.0)).rounds >= 5
    assert machine.now < 30


def test_a_plan_s_own_budget_and_precision_are_kept(machine, where):
    noisy(machine)
    assert compare("baseline", "batch_size=64", where.until(0)).rounds == stats.MIN_ROUNDS


def test_more_rounds_are_added_to_those_that_are_there(machine, where):
    noisy(machine)
    store = RunStore()
    first = compare_candidates(A, B, where.until(20, 0.0), store=store)
    known = earlier_comparison(A, B, where, store)
    assert known == first
    more = compare_candidates(A, B, where.until(20, 0.0), known, store=store)
    assert more.rounds > first.rounds and more.incarnations > first.incarnations
    assert more.pairing.own_samples_per_s[: first.rounds] == first.pairing.own_samples_per_s
    assert more.b.samples_per_s.value / more.a.samples_per_s.value == pytest.approx(more.ratio.ratio)
    assert store.get(more.b.id).pairings == more.b.pairings
    with pytest.raises(InvalidValue, match="no comparison of A with B is stored"):
        earlier_comparison(B, A, where, store)


def test_rates_divide_to_the_ratio_where_earlier_runs_have_different_rounds(machine, where):
    """As after a panel of recipes, where one came into the measurement later."""
    noisy(machine)
    first = compare_candidates(A, B, where.until(20, 0.0))
    fewer = structs.replace(first.a.raw, block_samples_per_s=[50.0], incarnations=[], disturbed=[])
    known = replace_a(first, structs.replace(first.a, raw=fewer))
    more = compare_candidates(A, B, where.until(20, 0.0), known)
    assert more.b.samples_per_s.value / more.a.samples_per_s.value == pytest.approx(more.ratio.ratio)


def replace_a(result, a):
    return structs.replace(result, a=a)


def other_preset(plan):
    return replace(plan, subject=replace(plan.subject, size=replace(plan.subject.size, name="quick")))


@pytest.mark.parametrize(
    "changed",
    [
        other_preset,
        lambda plan: on(plan, options={"samples": 64}),
        lambda plan: on(plan, seed=8),
        lambda plan: on(plan, workload="perfkit.workloads.tiny_gpt:TinyGPT"),
        lambda plan: plan.trying(settings={"channels_last": True}),
    ],
)
def test_rounds_of_anything_else_are_not_added(machine, where, changed):
    store = RunStore()
    compare_candidates(A, B, where.until(0), store=store)
    with pytest.raises(InvalidValue, match=r"no comparison of B with A is stored .*in the same way"):
        earlier_comparison(A, B, changed(where), store)
    assert earlier_comparison(A, B, where, store).rounds == 5


def test_rounds_of_code_that_has_changed_since_are_not_added(machine, where, monkeypatch):
    store = RunStore()
    first = compare_candidates(A, B, where.until(0), store=store)
    monkeypatch.setattr(workloads, "source", lambda name: b"edited")
    with pytest.raises(InvalidValue, match="no comparison of B with A is stored .*of the same code"):
        earlier_comparison(A, B, where, store)
    again = compare_candidates(A, B, where.until(0), store=store)
    assert again.a.code != first.a.code
    assert earlier_comparison(A, B, where, store) == again
    assert with_earlier([again.b], [first.b]) == [again.b]


def test_every_process_of_a_measurement_must_find_the_code_that_it_began_with(machine, where, monkeypatch):
    """A file that is saved meanwhile: its rounds would be those of two programs."""
    texts = itertools.count()
    monkeypatch.setattr(workloads, "source", lambda name: b"version %d" % next(texts))
    noisy(machine)
    result = compare_candidates(A, B, where.until(1e9, 0.03))
    assert result.incarnations > 1
    assert {asked["code"] for asked in machine.described} == {result.a.code} == {result.b.code}
    what = "the code of my:W has changed since this measurement began"
    second = len(machine.children) + 2  # the first process of the second incarnation
    machine.fail("describe", WorkloadError(what), when=lambda child: child.number >= second)
    with pytest.raises(PerfkitError, match=f"could not be compared: {what}"):
        compare_candidates(A, B, where.until(1e9, 0.03))


def test_rounds_of_another_machine_are_not_added(machine, where, monkeypatch):
    compare_candidates(A, B, where.until(0), store=RunStore())
    monkeypatch.setattr(RunStore, "machine_id", "another")
    with pytest.raises(InvalidValue, match="no comparison of B with A is stored"):
        earlier_comparison(A, B, where, RunStore())


def test_a_side_with_a_switch_that_cannot_act_is_refused(machine, where):
    """As it did: the plain loop was measured under the name of the switch."""
    pinned = Candidate("pin_memory=on", {"pin_memory": True})
    for sides in ((A, pinned), (pinned, A), (Candidate("workers=1", {"workers": 1}), pinned)):
        with pytest.raises(InvalidValue, match="pin_memory=on cannot be compared here: Pin memory"):
            compare_candidates(*sides, where.until(0))
    assert machine.slices() == []


@pytest.mark.parametrize("changes", [{"batch_size": 8}, {"batch_size": 8, "workers": 0}])
def test_a_switch_that_has_this_value_already_is_refused(machine, where, changes):
    """It would be the same recipe twice. Equal switches are meant so, and a different program is a difference."""
    for sides in ((A, Candidate("B", changes)), (Candidate("B", changes), A)):
        if changes == A.changes:
            assert compare_candidates(*sides, where.until(0)).rounds
            continue
        with pytest.raises(InvalidValue, match="have the same switches"):
            compare_candidates(*sides, where.until(0))
    assert compare_candidates(A, Candidate("B", changes, "edited"), where.until(0)).rounds


def test_a_recipe_that_is_compared_with_itself_takes_more_rounds_as_well(machine, where):
    store = RunStore()
    first = compare_candidates(A, A, where.until(0), store=store)
    assert (first.a.title, first.b.title) == ("A", "A (again)")
    assert earlier_comparison(A, A, where, store) == first


def test_a_side_that_fails_ends_the_comparison_and_is_kept(machine, where):
    machine.fail("train", PerfkitError("broken", "fix it"))
    with pytest.raises(PerfkitError, match="A could not be compared: broken"):
        compare_candidates(A, B, where.until(0), store=RunStore())
    assert [run.status for run in RunStore().runs()] == ["failed"]
    assert machine.alive() == []


@pytest.mark.parametrize("rounds", [0, 6])
@pytest.mark.parametrize("how", [KeyboardInterrupt, Cancelled])
def test_what_was_measured_until_a_person_stops_it_is_kept(machine, where, rounds, how):
    stop = threading.Event()

    def fails(child, question):
        if question == "slice" and len(machine.slices()) == 2 * rounds + 1:
            if how is KeyboardInterrupt:
                raise how
            stop.set()
            return Cancelled("stopped on request")
        return None

    machine.fails = fails
    store = RunStore()
    given = Progress(cancelled=stop)
    with contextlib.nullcontext() if how is Cancelled and rounds else pytest.raises(how):
        assert compare_candidates(A, B, where.until(1e9), progress=given, store=store).rounds == rounds
    assert (given.found.rounds if given.found else 0) == rounds
    runs = {run.title: run for run in store.runs()}
    assert len(runs) == (2 if rounds else 0)
    assert not rounds or compared([runs["A"], runs["B"]], None).rounds == rounds
    assert machine.alive() == []
