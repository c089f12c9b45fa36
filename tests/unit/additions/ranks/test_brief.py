"""Steps that are only timed: which, and what ends them."""

from collections import defaultdict
from types import SimpleNamespace

import pytest

from perfkit.additions.ranks import brief as briefs
from perfkit.additions.ranks.brief import ONLY_TIMED, BriefSteps
from perfkit.additions.ranks.messages import LIMIT


class Training:
    """A training whose steps are only timed from here on; the clock is that of this test."""

    def __init__(self, monkeypatch, count=200):
        self.now, self.noted, self.full = 0.0, [], []
        monkeypatch.setattr(briefs, "clock", lambda: self.now)
        step = SimpleNamespace(spent=defaultdict(float), updated=0.0, marks=set())
        self.optimizer, self.other = object(), object()
        steps = SimpleNamespace(count=count, since=0.0, now=step)
        self.script = SimpleNamespace(steps=steps, optimizers=[self.other, self.optimizer])
        self.brief = BriefSteps(self.script, self.noted)
        self.brief.begin("as usual")

    def hook(self, part, is_usual=lambda *given: True):
        def full(*given):
            self.full.append(part)

        return self.brief.timed(part, lambda *given: self.takes(1.0), full, is_usual)

    def takes(self, seconds):
        self.now += seconds


@pytest.fixture
def training(monkeypatch):
    return Training(monkeypatch)


def test_the_same_steps_are_noted_on_every_rank_by_their_numbers(monkeypatch):
    are_brief = {count: Training(monkeypatch, count).brief.is_on for count in range(2 * LIMIT.every)}
    noted = {count + 1 for count, is_brief in are_brief.items() if not is_brief}
    first = set(range(1, LIMIT.first + 1))
    assert noted == first | {LIMIT.every + each for each in range(1, LIMIT.noted + 1)}
    assert set(LIMIT.weighed) <= noted, "weights are compared in steps that are noted"


def test_round_numbers_of_steps_do_not_always_miss_those_that_are_noted():
    """As where an evaluation comes every 500 steps."""
    for period in (50, 100, 250, 500, 1000):
        assert {period * n % LIMIT.every for n in range(LIMIT.every)} == set(range(LIMIT.every))


def test_passes_are_timed_and_a_step_ends_with_its_last_optimizer(training):
    fetch, backward, step = map(training.hook, ("waiting", "backward", "optimizer"))
    fetch()
    backward()
    backward()
    step(training.other)
    assert not training.noted
    step(training.optimizer)
    (noted,) = training.noted
    parts = {"waiting": 1.0, "forward": 0.0, "backward": 2.0, "optimizer": 2.0, "exchange": 0.0}
    assert noted == (201, (5.0, parts), "as usual")
    assert (training.script.steps.count, training.script.steps.since) == (201, 5.0)
    assert (training.full, training.brief.part) == ([], "")


def test_a_part_within_another_one_is_not_counted_twice(training):
    """As a forward pass that is computed again in the backward pass."""
    again = training.hook("forward")
    backward = training.brief.timed("backward", again, None, lambda: True)
    backward()
    assert training.brief.spent == dict.fromkeys(briefs.TIMED, 0.0) | {"backward": 1.0}


def test_what_is_not_usual_is_noted_with_the_rest_of_its_step(training):
    training.hook("forward")()
    evaluated = training.hook("forward", lambda: False)
    evaluated()
    assert training.full == ["forward"]
    assert not training.brief.is_on
    now = training.script.steps.now
    assert (now.spent["forward"], now.marks) == (1.0, {ONLY_TIMED})
    training.hook("optimizer")(training.optimizer)
    assert training.full == ["forward", "optimizer"]


@pytest.mark.parametrize("more", [(), ("a closure",)])
def test_an_optimizer_that_is_new_or_computes_is_noted(training, more):
    hook = training.brief._time_optimizer(lambda step: hooked, None)
    hook(training.optimizer if more else object(), *more)
    assert not training.brief.is_on


def hooked(*given):
    """The hook of an optimizer, around torch's own function."""


hooked.__wrapped__ = hooked


def test_a_model_that_is_set_to_evaluate_is_noted_and_one_that_is_set_to_train_is_not(training):
    training.brief.on_mode(True)
    assert training.brief.is_on
    training.brief.on_mode(False)
    assert not training.brief.is_on


def test_steps_are_noted_again_after_those_that_were_only_timed(training):
    training.script.steps.count = LIMIT.every - 1
    training.hook("optimizer")(training.optimizer)
    assert not training.brief.is_on
    assert training.script.steps.now.marks == {ONLY_TIMED}, "its batch may have been fetched before"
