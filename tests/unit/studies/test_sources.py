"""How far a study is, and how long it takes at most: by its parts."""

import math
from dataclasses import replace

from perfkit.studies.planning import plan
from perfkit.studies.sources import Progress


def test_a_part_allows_for_what_comes_after_it_until_it_ends():
    said = []
    progress = Progress(said.append)
    with progress.part(1, 2, later_s=30.0):
        progress.reach(0.5, "AMP", left_s=10.0)
        progress.phase("measuring")
    progress.reach(1.0, left_s=5.0)
    progress.phase("measuring")
    assert [(update.fraction, update.left_s) for update in said] == [(0.75, 40.0), (1.0, 5.0)]
    assert said[0].describe() == "AMP: measuring, at most 0:40 left"
    assert replace(said[0], left_s=math.inf).describe() == "AMP: measuring", "until it is known"


def test_parts_are_parts_of_the_one_around_them():
    said = []
    progress = Progress(said.append)
    with progress.part(1, 2), progress.part(0, 2):
        progress.share("reading", 1.0)
    assert said[0].fraction == 0.75
    assert said[0].describe() == "reading", "before the first stage there is only the phase"


def test_a_single_name_is_one_and_not_the_name_of_each_letter():
    """`plan(stages="amp")` said that there is no stage 'a'."""
    ladder = plan("cifar_resnet18", "smoke", "amp", device="cpu")
    assert ladder.ladder.stages == ("amp",)
    assert ladder.keeping("amp").ladder.keep == ("amp",)


def test_a_plan_has_the_seed_that_it_was_given():
    assert [plan("photos", device="cpu", seed=seed).subject.seed for seed in (0, 7)] == [0, 7]
