"""Which calls of models train: told by whether gradients come back to them, in whatever mode they are."""

import pytest
import torch
from torch import nn

from perfkit.additions.scripts import hooks
from perfkit.additions.scripts.run_account import RunAccount
from perfkit.additions.scripts.script import Callback, Script
from perfkit.additions.scripts.training import Models
from tests.support.settings import settings

ROWS = torch.ones(4, 2)


class Steps(Callback):
    """The steps that a script has taken."""

    def __init__(self):
        self.taken = []

    def on_steps(self, steps):
        self.taken += steps


@pytest.fixture
def script(monkeypatch):
    """One whose models are seen, while its backward passes are torch's own."""
    monkeypatch.setattr(hooks, "listen", lambda part, name: None)
    monkeypatch.setattr(nn.Module, "_compiled_call_impl", None)
    script = Script(settings(), None)
    script.seen = Steps()
    script.set_callbacks(script, Models(script), script.seen)
    return script


def train(script, loss, steps=4):
    """Steps with this loss, and what was in them."""
    before = len(script.seen.taken)
    for _ in range(steps):
        loss().backward()
        script.steps.updated("SGD")
    script.steps.begin()
    return script.seen.taken[before:]


def in_training(script, steps):
    """Whether these steps are a training, and nothing else is in them."""
    are_marked = any("evaluation" in step.marks for step in steps)
    evaluations = script.calls.sites["evaluation with gradients"]
    return not are_marked and steps[-1].spent["forward"] > 0 and not evaluations


@pytest.mark.parametrize("first", ["train", "eval"])
def test_a_model_that_trains_in_eval_mode_is_not_taken_for_an_evaluation(script, first):
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    if first == "train":
        assert in_training(script, train(script, lambda: model(ROWS).sum()))
    model.eval()
    assert in_training(script, train(script, lambda: model(ROWS).sum()))
    with torch.no_grad():
        model(ROWS)
    (step,) = train(script, lambda: model(ROWS).sum(), steps=1)
    assert "evaluation" in step.marks, "without gradients it evaluates all the same"


def test_a_model_with_a_part_in_eval_mode_trains(script):
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    model[1].eval()
    assert in_training(script, train(script, lambda: model(ROWS).sum()))
    model.eval()
    head = nn.Linear(3, 1)  # the script calls both
    assert in_training(script, train(script, lambda: head(model(ROWS)).sum()))


def test_a_discriminator_in_eval_mode_through_which_a_generator_trains_does_not_evaluate(script):
    generator, discriminator = nn.Linear(2, 2), nn.Linear(2, 1)
    train(script, lambda: discriminator(generator(ROWS)).sum())
    discriminator.eval()
    assert in_training(script, train(script, lambda: discriminator(generator(ROWS)).sum()))


def test_acting_without_gradients_between_steps_is_no_evaluation(script):
    policy = nn.Linear(2, 2)

    def loss():
        with torch.no_grad():
            acted = policy(ROWS)
        return policy(acted).sum()

    assert in_training(script, train(script, loss))


@pytest.mark.parametrize("evaluates", [True, False])
def test_an_evaluation_may_call_a_model_by_other_names_than_forward(script, evaluates):
    """Acting with a model that trains on is none."""
    model = nn.Linear(2, 2)
    script.set_callbacks(*script.callbacks, RunAccount(script))
    models = script.callbacks[1]
    train(script, lambda: model(ROWS).sum())
    if evaluates:
        models._set_mode(nn.Module.train, model, False)
    with torch.no_grad():
        decoded = model.weight @ ROWS.T if evaluates else model(ROWS)
    models._set_mode(nn.Module.train, model)
    (step,) = train(script, lambda: model(ROWS).sum(), steps=1)
    assert len(decoded) and model.training
    assert ("eval()" in step.marks, "evaluated" in step.spent) == (evaluates, True)
    assert "evaluation" not in step.marks, "an edit that evaluates nothing is told by that"
    assert bool(script.calls.sites["eval mode"]) == evaluates


def test_outputs_that_keep_their_graphs_and_are_not_trained_on_are_an_evaluation(script):
    model = nn.Linear(2, 2)
    train(script, lambda: model(ROWS).sum())
    model.eval()
    kept = [model(ROWS) for _ in range(3)]
    model.train()
    (step,) = train(script, lambda: model(ROWS).sum(), steps=1)
    assert kept and "evaluation" in step.marks and script.calls.sites["evaluation with gradients"]


class Recurrent(nn.Module):
    """It is given [steps, batch, features]; a cell of its own takes one of the steps."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        if isinstance(self.layer, nn.LSTM):
            return self.layer(x)[0]
        return self.layer(x) if isinstance(self.layer, nn.Sequential) else sum(map(self.layer, x))


@pytest.mark.parametrize(
    ("layer", "samples"),
    [
        (nn.LSTM(2, 4), 5),
        (nn.Linear(2, 4), 5),
        (nn.LSTM(2, 4, batch_first=True), 7),
        (nn.Sequential(nn.Flatten(0, 1), nn.Linear(2, 4)), 7),
    ],
)
def test_samples_of_an_input_that_has_time_first_are_those_of_its_layers(layer, samples, script):
    """A layer that is given the rows of all steps at once says nothing of the batch."""
    Recurrent(layer)(torch.ones(7, 5, 2))
    assert script.steps.inputs.given == samples
