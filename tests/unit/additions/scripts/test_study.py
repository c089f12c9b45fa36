"""Scripts as a source of runs: their own settings, and whether two runs of one train the same."""

import shlex
from dataclasses import replace
from types import SimpleNamespace

import pytest

from perfkit.additions.referee.match import Terms, two_scripts
from perfkit.additions.scripts import study
from perfkit.additions.scripts.study import Pace, Pacer, ScriptStarter
from perfkit.additions.scripts.watched import Launch
from perfkit.ladder.catalogue import PRESETS, Budget, Slice, Stage
from perfkit.recipe import Recipe
from perfkit.results.run import Run
from perfkit.studies import here
from perfkit.studies.sources import Progress
from perfkit.worker.messages import TimedSteps


def run(losses, workers=0, **more):
    recipe = Recipe(workers=workers).to_dict()
    about = {"session": "s", "created": "", "stage": "s", "workload": "t.py", "device": "cpu"}
    return Run(id=str(workers), **about, recipe=recipe, losses=losses, **more)


def test_a_script_is_measured_as_it_was_when_its_study_began(tmp_path):
    file = tmp_path / "train.py"
    file.write_bytes(b"old")
    launch = Launch(str(file))
    plan = study.script_plan(ScriptStarter(launch), "smoke")
    starter = plan.source().starter
    own = two_scripts(launch, launch, Terms("smoke")).b.program
    file.write_bytes(b"saved meanwhile")
    for each in (starter.launch, own):
        assert dict(each.replaced) == {file: b"old"} and each.code == plan.subject.code
    assert study.script_plan(ScriptStarter(launch), "smoke").subject.code != plan.subject.code
    assert launch.frozen().frozen() == launch.frozen(), "what is replaced already stays"


def test_new_processes_of_a_script_need_no_zygote(monkeypatch):
    """Each would import torch, for nobody, while the scripts start."""
    prepared = []
    monkeypatch.setattr(here.zygote, "prepare", lambda *about: prepared.append(about))
    session = study.ScriptSession(study.ScriptSource(None, starter=ScriptStarter(None)), Progress())
    session.renew([Stage("baseline", "baseline", Recipe())])
    assert prepared == []


def test_slow_steps_make_fewer_rounds_and_the_budget_stays():
    quick = replace(PRESETS["quick"].rule, budget=Budget(20.0))
    assert study.affordable(quick, 0.01) == quick
    for step_s, left, losses in ((0.5, Budget(18.0), 4), (15.0, None, 2)):
        slow = study.affordable(quick, step_s)
        assert (slow.rounds, slow.budget, slow.loss_steps, slow.slice) == (2, left, losses, Slice(samples=1))


def test_equal_losses_prove_the_same_training():
    plain = run([2.0, 1.0])
    assert study.losses(plain, run([2.0, 1.0], workers=2)).ok
    assert not study.losses(plain, run([2.0, 1.1], workers=2)).ok
    assert study.losses(plain, run([2.0, 1.1], workers=2, facts={"data": "drawn"})).ok


def test_a_data_set_with_a_generator_explains_other_losses_with_workers():
    facts = {"data": "held", "generators": "rng"}
    check = study.losses(run([2.0, 1.0], facts=facts), run([2.0, 1.5], workers=2, facts=facts))
    assert (
        not check.ok and "(rng)" in check.evidence and "to compare fairly, seed a generator" in check.evidence
    )
    check = study.losses(run([2.0, 1.0], facts=facts), run([2.0, 1.5], facts=facts))
    assert "rng" not in check.evidence, "with as many workers it explains nothing"


class Child:
    """A script that has trained on some samples."""

    def __init__(self, place):
        self.place = place
        self.line = SimpleNamespace(closed=False)

    def ask(self, question, samples):
        assert question == "reach"
        self.place = max(self.place, samples)
        return self.place


def paced(**paces):
    """A pacer of scripts that are this fast, and the scripts."""
    pacer = Pacer()
    children = [Child(pace.began_at) for pace in paces.values()]
    pacer._paces = dict(zip(children, paces.values(), strict=True))
    return pacer, *children


def test_both_sides_take_equal_steps_of_an_epoch():
    pacer, slow, fast = paced(slow=Pace(32, 0.09, 320), fast=Pace(32, 0.01, 960))
    assert pacer.slice_of(slow, 1, 0.3) == 192, "together as long as two slices of 0.3 s"
    assert slow.place == 960, "it has gone on to where the other one begins"
    slow.place += 192
    assert pacer.slice_of(fast, 1, 0.3) == 192 and fast.place == 960
    fast.place += 192
    pacer._paces[slow].note(TimedSteps(32, 0.03, [0.03], [0.0]))
    assert pacer.slice_of(fast, 1, 0.3) == 480, "it is as fast as its newest slice was"
    assert fast.place == 1152, "it begins the next round"
    assert pacer.slice_of(slow, 1, 0.3) == 480, "a round has slices of one size"


def test_a_side_that_has_failed_is_given_no_part_of_a_round():
    pacer, slow, fast = paced(slow=Pace(32, 0.09, 960), fast=Pace(32, 0.01, 320))
    slow.line.closed = True
    assert pacer.slice_of(fast, 1, 0.3) == 960, "a slice of 0.3 s of its own"
    assert fast.place == 320


def test_the_first_slice_is_sized_by_the_device_s_clock():
    """By the host's, steps that are only launched would look so short that the slice took minutes."""
    pacer, on_gpu, on_cpu = Pacer(), Child(0), Child(0)
    launched = TimedSteps(64, 1.0, [0.001] * 2, [0.0] * 2, [0.5] * 2)
    for child, warmup in ((on_gpu, launched), (on_cpu, TimedSteps(64, 1.0, [0.25] * 2, [0.0] * 2))):
        pacer.add(child, SimpleNamespace(warmup=warmup, samples_per_step=32))
    assert [pacer._paces[child].step_s for child in (on_gpu, on_cpu)] == [0.5, 0.25]


def test_a_script_that_has_ended_is_forgotten_when_another_one_comes():
    pacer, old = paced(old=Pace(32, 0.09, 960))
    old.line.closed = True
    new = Child(0)
    pacer.add(new, SimpleNamespace(warmup=TimedSteps(64, 1.0, [0.25] * 2, [0.0] * 2), samples_per_step=32))
    assert [*pacer._paces] == [new]
    assert new.before_slice(1, 0.5) == 64 and new.place == 0


def test_a_side_that_is_far_behind_stays_there():
    pacer, slow, _ = paced(slow=Pace(32, 0.5, 320), fast=Pace(32, 0.01, 3200))
    pacer.slice_of(slow, 1, 0.3)
    assert slow.place == 320, "45 s would be lost"


@pytest.mark.parametrize(
    ("ours", "ok", "evidence"), [([2.0, 1.7, 1.0], True, "as near as"), ([9.0, 9.1, 9.0], False, "further")]
)
def test_losses_of_other_random_numbers_are_compared_by_their_means(ours, ok, evidence):
    check = study.mean_losses(ours, [2.0, 1.5, 1.0])
    assert check.ok is ok and evidence in check.evidence and "not compared one by one" in check.evidence


def test_a_command_is_shown_as_it_can_be_typed(tmp_path):
    """Arguments with blanks had no quotes, and `["a b"]` was stored as `["a", "b"]` was."""
    file = tmp_path / "train.py"
    file.touch()
    one, two = Launch(str(file), ("a b",)), Launch(str(file), ("a", "b"))
    assert shlex.split(one.describe()) == ["python", str(file), "a b"]
    assert one.describe() != two.describe()
