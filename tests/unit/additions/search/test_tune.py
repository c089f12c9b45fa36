"""The search for the fastest recipe: groups of switches, halving, memory, parity, stopping."""

import itertools
import threading
from dataclasses import replace

import pytest

from perfkit.additions.search.tune import SPACE as SPACE_OF_ALL
from perfkit.additions.search.tune import tune
from perfkit.errors import Cancelled, InvalidValue, RunFailed
from perfkit.recipe import Recipe
from perfkit.results.parity import Check, Parity
from perfkit.results.store import RunStore
from perfkit.show import document, terminal
from perfkit.studies.sources import Progress
from tests.support.plans import on
from tests.unit.studies.conftest import machine, where

SPACE = {"workers": (0, 1, 2), "batch_size": (8, 16), "amp": ("off", "bf16"), "channels_last": (False, True)}
SAME = Parity("same", "bitwise", [], False, {})


@pytest.fixture
def search(machine, monkeypatch):
    """bf16 doubles the speed and each worker adds a tenth, but the machine slows down all the time."""
    pace = iter(range(100_000, 0, -1))

    def rate(recipe):
        factor = (2.0 if recipe.amp == "bf16" else 1.0) * (1 + recipe.workers / 10)
        return 100 * factor * 0.9**recipe.channels_last * next(pace) / 100_000

    machine.rate = rate
    monkeypatch.setattr("perfkit.additions.search.tune.study.parity", lambda *asked, progress: SAME)
    return machine


@pytest.fixture
def plan(where):
    return replace(where, rule=replace(where.rule, rounds=5))


def test_the_fastest_recipe_is_found_and_measured_afresh(search, plan):
    seen = []
    tuned = tune(plan, SPACE, progress=Progress(seen.append), store=RunStore())
    best = Recipe.from_dict(tuned.best.recipe)
    assert (best.amp, best.workers, best.channels_last) == ("bf16", 2, False)
    assert tuned.parity == SAME
    assert tuned.gain
    assert tuned.gain.ratio == pytest.approx(2 * 1.2, rel=0.01)
    base = next(run for run in tuned.tried if not run.pairings)
    rate = tuned.best.samples_per_s.value
    assert rate == pytest.approx(base.samples_per_s.value * tuned.gain.ratio), "rates and gain agree"
    assert len(tuned.best.raw.block_samples_per_s) == 10, "the finals take twice the rounds"
    assert tuned.best in tuned.tried[-2:], "and fresh processes, which are the last"
    rows = [[*map(str, row)][:2] for row in document.find(tuned.sections(), document.Table, "tried").rows]
    assert rows[0] == [best.describe(Recipe(batch_size=8)), "✓"], "the fastest first"
    assert len(rows) == len({tuple(run.recipe.items()) for run in tuned.tried}), "one line for a recipe"
    words = terminal.text(tuned.sections())
    assert (
        "Compared with the baseline: 2.4" in words
        and "as fast" in words
        and "Parity: on equal batches" in words
    )
    stored = RunStore().runs()
    assert {run.id for run in tuned.tried} <= {run.id for run in stored}
    fractions = [update.fraction for update in seen]
    assert fractions == sorted(fractions)
    assert search.alive() == []


def test_after_the_budget_the_first_recipes_are_measured_afresh_and_nothing_else(search, plan):
    tuned = tune(plan, SPACE, budget_s=-1)
    assert (tuned.settings, len(search.children)) == ("workers=2", 1 + 2 + 2)
    assert tuned.notes == ["No time was left to try batch_size, amp, channels_last: raise the budget"]


def test_nothing_above_the_memory_cap_is_picked(search, plan):
    space = {"batch_size": (8, 20), "amp": ("off", "bf16")}
    tuned = tune(plan, space, memory_cap_bytes=10_000)
    assert tuned.best.recipe["batch_size"] == 8
    assert {run.recipe["batch_size"] for run in tuned.tried} == {8, 20}
    for least in (100, 0):  # no memory is a cap, too
        with pytest.raises(InvalidValue, match="nothing fits under the memory cap"):
            tune(plan, space, memory_cap_bytes=least)


@pytest.mark.parametrize("wrong", [{"wrkers": (1,)}, {"workers": ("many",)}])
def test_a_name_or_value_that_is_not_allowed_is_refused_before_anything_is_measured(search, plan, wrong):
    with pytest.raises(InvalidValue, match="workers"):
        tune(plan, {"channels_last": (False, True), **wrong})
    assert search.children == []


def test_a_memory_cap_is_refused_where_no_peak_is_known(search, plan):
    with pytest.raises(InvalidValue, match="peak memory of a training on mps is not known"):
        tune(on(plan, device="mps"), memory_cap_bytes=10_000)


def test_the_search_is_kept_if_parity_fails(search, plan, monkeypatch):
    def fails(*_, progress):
        raise RunFailed("out of memory in float64", "use a smaller batch")

    monkeypatch.setattr("perfkit.additions.search.tune.study.parity", fails)
    tuned = tune(plan, SPACE)
    assert tuned.parity is None
    assert "could not be checked: out of memory in float64" in tuned.notes[0]


def test_a_recipe_that_trains_differently_is_not_picked(search, plan, monkeypatch):
    def parity(plan, title, recipe, progress):
        return Parity(title, "tolerance", [Check("losses", recipe.amp == "off", "they differ")], False, {})

    monkeypatch.setattr("perfkit.additions.search.tune.study.parity", parity)
    search.rate = lambda recipe: 100.0 * 2**recipe.channels_last * (1 + (recipe.amp == "bf16"))
    tuned = tune(plan, {"channels_last": (False, True), "amp": ("off", "bf16")})
    assert tuned.settings == "channels_last=on", "the fastest one that trains the same"
    assert tuned.parity.ok
    assert tuned.notes[0].startswith("Faster, but not picked: channels_last=on, amp=bf16: NOT the same")
    none = tune(plan, {"amp": ("off", "bf16")})
    assert (none.settings, none.gain, none.parity) == ("the baseline", None, None)


def test_a_recipe_that_is_not_clearly_faster_is_not_picked(search, plan):
    """Channels last is 5% faster by its mean, with an interval that holds 1."""
    noise = itertools.cycle([0.6, 1.4, 1.0, 0.8, 1.3])
    search.rate = lambda recipe: 105.0 * next(noise) if recipe.channels_last else 100.0
    tuned = tune(plan, {"channels_last": (False, True)})
    measured = tuned.tried[-1].speedup("baseline")
    assert measured.ratio != 1 and measured.low < 1 < measured.high
    assert (tuned.settings, tuned.gain) == ("the baseline", None)


def test_the_default_space_has_no_switch_that_changes_training():
    assert not {"batch_size", "accumulation", "ranks"} & {*SPACE_OF_ALL}


def test_where_nothing_can_be_measured_it_says_so(search, plan):
    search.fails = lambda child, question: RunFailed("no training", "") if question == "train" else None
    with pytest.raises(InvalidValue, match="nothing could be measured"):
        tune(plan, SPACE)


def test_values_that_are_not_tried_are_noted_with_the_reason(search, plan, monkeypatch):
    monkeypatch.setattr("perfkit.additions.search.tune.cores.usable_cores", lambda: 2)
    tuned = tune(plan, {"workers": (0, 2, 5), "pin_memory": (False, True)})
    assert tuned.notes == [
        "Not tried: workers=5 (more than two for each of 2 cores); pin_memory=on (needs a CUDA device (this run is on cpu))."
    ]
    assert {run.recipe["workers"] for run in tuned.tried} == {0, 2}


def test_a_space_of_which_nothing_can_be_tried_says_why(search, plan):
    with pytest.raises(InvalidValue) as refused:
        tune(plan, {"pin_memory": (True,)})
    assert (
        refused.value.what
        == "nothing could be measured. Not tried: pin_memory=on (needs a CUDA device (this run is on cpu))"
    )


def test_more_workers_than_are_tried_may_be_set(search, plan, monkeypatch):
    monkeypatch.setattr("perfkit.additions.search.tune.cores.usable_cores", lambda: 2)
    tuned = tune(plan.trying(settings={"workers": 5}), {"channels_last": (False, True)})
    assert {run.recipe["channels_last"] for run in tuned.tried} == {False, True}


def test_a_search_that_is_stopped_keeps_what_it_has(search, plan):
    stop = threading.Event()
    search.fails = lambda child, question: stop.set() if len(search.children) == 8 else None
    tuned = tune(plan, SPACE, progress=Progress(cancelled=stop))
    assert tuned.notes == ["The search was stopped, so parity was not checked"]
    assert tuned.parity is None
    assert search.alive() == []


def test_what_a_search_has_found_is_there_after_ctrl_c(search, plan):
    """Its runs were stored, and the command showed nothing of them."""

    def interrupt(child, question):
        if len(search.children) == 8:
            raise KeyboardInterrupt

    search.fails = interrupt
    progress = Progress()
    with pytest.raises(KeyboardInterrupt):
        tune(plan, SPACE, progress=progress)
    assert progress.found.notes == ["The search was stopped, so parity was not checked"]
    assert search.alive() == []


def test_what_was_measured_before_an_error_is_kept(search, plan):
    search.fails = lambda child, question: 1 / 0 if len(search.children) == 8 else None
    with pytest.raises(ZeroDivisionError):
        tune(plan, SPACE, store=RunStore())
    assert RunStore().runs()


def test_a_search_that_is_stopped_at_once_has_nothing(search, plan):
    stop = threading.Event()
    search.fails = lambda child, question: stop.set() if question == "train" else None
    with pytest.raises(Cancelled):
        tune(plan, SPACE, progress=Progress(cancelled=stop))
