"""Scripts as a source of runs: their own settings, and whether two runs of one train the same."""

from dataclasses import replace

import pytest

from perfkit.additions.scripts import messages, study
from perfkit.ladder.catalogue import PRESETS
from perfkit.recipe import Recipe
from perfkit.results.run import Run


def run(losses, workers=0, **more):
    recipe = Recipe(workers=workers).to_dict()
    about = {"session": "s", "created": "", "stage": "s", "workload": "t.py", "device": "cpu"}
    return Run(id=str(workers), **about, recipe=recipe, losses=losses, **more)


def test_slow_steps_make_fewer_rounds_and_the_budget_stays():
    quick = replace(PRESETS["quick"].rule, budget_s=20.0)
    assert study.affordable(quick, 0.01) == quick
    for step_s, left_s, losses in ((0.5, 18.0, 4), (15.0, 0.0, 2)):
        slow = study.affordable(quick, step_s)
        assert (slow.rounds, slow.budget_s, slow.loss_steps, slow.slice_samples) == (2, left_s, losses, 1)


def test_equal_losses_prove_the_same_training():
    plain = run([2.0, 1.0])
    assert study.losses(plain, run([2.0, 1.0], workers=2)).ok
    assert not study.losses(plain, run([2.0, 1.1], workers=2)).ok
    assert study.losses(plain, run([2.0, 1.1], workers=2, facts={"data": messages.RANDOM_DATA})).ok


@pytest.mark.parametrize(
    ("ours", "ok", "evidence"), [([2.0, 1.7, 1.0], True, "as near as"), ([9.0, 9.1, 9.0], False, "further")]
)
def test_losses_of_other_random_numbers_are_compared_by_their_means(ours, ok, evidence):
    check = study.mean_losses(ours, [2.0, 1.5, 1.0])
    assert check.ok is ok and evidence in check.evidence and "not compared one by one" in check.evidence
