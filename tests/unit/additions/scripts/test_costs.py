"""What watching a script may not cost: both sides of a comparison must be looked at for nothing while timed."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from perfkit.additions.referee.witness import Witness
from perfkit.additions.scripts import hooks, questions
from perfkit.additions.scripts.questions import Questions
from perfkit.additions.scripts.script import Script, ScriptStep
from perfkit.additions.scripts.training import Models
from perfkit.worker.messages import TimedSteps
from perfkit.worker.procedure import drive
from tests.support.settings import settings


@pytest.fixture
def script():
    return Script(settings(toggles={"amp": "bf16"}), None)


def asked_of(script, observers=()):
    """The questions to a script of which nothing is noted but its steps."""
    account = SimpleNamespace(counting=nullcontext)
    return Questions(script, None, None, None, account, dict.fromkeys(observers), lambda phase: None)


def test_no_graph_is_walked_in_steps_that_are_timed(script, monkeypatch):
    """An eager model has hundreds of nodes, a compiled one has one: looking would speak for compiling."""
    monkeypatch.setattr(hooks, "wrap", lambda *_: None)
    witness = Witness(script)
    loss = torch.nn.Linear(3, 2)(torch.ones(1, 3)).sum()
    script.is_timed = True
    witness.on_graph(loss, False)
    assert not witness._leaves
    script.is_timed = False
    witness.on_graph(loss, False)
    assert sorted(witness._leaves.values()) == [2, 6], "weight and bias"


@pytest.mark.parametrize(("steps", "looks"), [(4, 4), (1, 1)])
def test_a_slice_is_timed_and_a_step_before_it_is_looked_at(steps, looks):
    """Before every slice of four steps, and before every fourth one that is shorter."""
    asked, taken = asked_of(SimpleNamespace(is_timed=False), ["one"]), []
    asked.steps_for = lambda samples, seconds: steps

    def take(count, phase):
        taken.append((count, asked.subject.is_timed))
        yield
        return SimpleNamespace(step_s=[0.1], timed=lambda: "timed")

    asked.take = take
    for _ in range(4):
        assert [*asked.slice(8, 0.5)]
    assert taken.count((steps, True)) == 4, "what is measured"
    assert taken.count((1, False)) == looks
    assert not asked.subject.is_timed


def test_a_step_that_fails_leaves_no_slice_timed():
    asked = asked_of(SimpleNamespace(is_timed=False), ["one"])
    asked.steps_for = lambda samples, seconds: 1

    def take(count, phase):
        yield
        raise ArithmeticError

    asked.take = take
    with pytest.raises(ArithmeticError):
        [*asked.slice(8, 0.5)]
    assert not asked.subject.is_timed


def test_a_call_of_the_model_lists_no_parameters(script, monkeypatch):
    """With hundreds of them that takes as long as small kernels do, on the side with the switch alone."""
    model = torch.nn.Linear(3, 2)
    models = Models.__new__(Models)
    models._script, models._device_type, models._batch = script, "cpu", 0
    monkeypatch.setattr(Script, "parameters", lambda script: pytest.fail("they were listed"))
    script.steps.count = 3  # the first ones are examined
    inside = []

    def call(given):
        inside.append(torch.is_autocast_enabled("cpu"))
        return model(given)

    output = models._called(model, call, torch.ones(4, 3))
    assert inside == [True] and output.dtype == torch.float32
    assert script.steps.inputs.given == 4


def test_steps_before_the_last_optimizer_has_joined_are_not_those_that_are_timed():
    """The first steps of a GAN may train its discriminator alone."""
    asked, taken = asked_of(SimpleNamespace(updates=SimpleNamespace(optimizers=["D"]))), []
    asked.early = [SimpleNamespace(seconds=1.0)]

    def take(count, phase, most, enough):
        taken.append([*asked.subject.updates.optimizers])
        asked.subject.updates.optimizers = ["D", "G"]
        asked.under_way = SimpleNamespace(
            counted=[1], timed=lambda: TimedSteps(len(taken), 1.0, [1.0], [0.0])
        )
        yield

    asked.take = take
    procedure = asked.observe(steps=4, seconds=10.0)
    with pytest.raises(StopIteration) as end:
        while True:
            next(procedure)
    assert taken == [["D"], ["D", "G"]] and end.value.value.block.samples == 2


@pytest.mark.parametrize(("plain_from", "ends_at"), [(99, 54.0), (1, 27.0)])
def test_where_each_step_compiles_the_steps_within_the_limit_are_those_that_are_observed(
    plain_from, ends_at, monkeypatch
):
    """A budget of 30 s ended after 260 s, when eight steps of 27 s had compiled."""
    now, notes = [0.0], []
    monkeypatch.setattr(questions, "clock", lambda: now[0])
    about = {
        "device": torch.device("cpu"),
        "note": notes.append,
        "updates": SimpleNamespace(optimizers=["Adam"]),
    }
    asked = asked_of(SimpleNamespace(**about))
    asked.early = [ScriptStep(seconds=27.0)]

    def step():
        now[0] += 27.0
        marks = set() if now[0] / 27.0 >= plain_from else {"compilation"}
        return ScriptStep(seconds=27.0, samples=8, marks=marks)

    seen = drive(asked.observe(steps=60, seconds=6.0, limit_s=30.0), step)
    assert now[0] == ends_at and seen.step_s == 27.0
    assert bool(notes) == (plain_from == 99)
