"""Weights with a learning rate of 0: which are seen to be frozen by it alone, and which are not."""

import sys
from types import SimpleNamespace

import pytest
import torch

from perfkit.additions.scripts import evidence, hooks
from perfkit.additions.scripts.messages import Frame, Site
from perfkit.additions.scripts.script import Script
from perfkit.additions.scripts.weights import ZeroRates
from tests.support.settings import settings

TRAINED = "loss.backward()\nfor p in model.parameters():\n    if p.grad is not None:\n        p.grad = None\n"


class ScheduleFree(torch.optim.SGD):
    """An optimizer that is not torch's own may use the learning rate otherwise."""


@pytest.fixture
def script(tmp_path):
    known = Script(settings(), None)
    file = tmp_path / "train.py"
    file.write_text(TRAINED)
    known.calls.sites["backward"].append(Site("backward", [Frame(str(file), 1, 1, 0, 15)]))
    return known


class Training:
    """A body of 30 weights and a head of 10, which are trained with these learning rates."""

    def __init__(self, kind=torch.optim.SGD, head=0.1, more=()):
        self.body, self.head = torch.nn.Parameter(torch.ones(30)), torch.nn.Parameter(torch.ones(10))
        self.groups = [{"params": [self.body]}, {"params": [self.head], "lr": head}]
        self.optimizers = [kind(self.groups, lr=0.1), *more]
        self.rates = ZeroRates()

    def step(self, rate, grows=True):
        self.optimizers[0].param_groups[0]["lr"] = rate
        self.body.grad = torch.ones(30) if grows else None
        self.head.grad = torch.ones(10)
        self.rates.look(self.optimizers)


def test_weights_are_told_with_their_part_of_those_that_have_gradients(script):
    training = Training(torch.optim.AdamW)
    for _ in range(3):
        training.step(0.0)
    found = training.rates.found(script, 1.5)
    assert (found.count, found.of_weights, found.backward_s) == (30, 0.75, 1.5)


@pytest.mark.parametrize(
    "rates",
    [
        pytest.param([0.0, 0.01, 0.02], id="a warm-up"),
        pytest.param([0.0, 0.1, 0.0, 0.1, 0.0], id="trained in turn"),
        pytest.param([0.1, 0.0, 0.0], id="frozen later"),
        pytest.param([torch.tensor(0.0)] * 3, id="a tensor, which may be on a device"),
    ],
)
def test_a_rate_that_is_0_at_times_freezes_nothing(rates, script):
    training = Training()
    for rate in rates:
        training.step(rate)
    assert training.rates.found(script) is None


def test_nothing_is_told_where_all_weights_wait(script):
    """As in the first epoch of a warm-up that begins at 0."""
    training = Training(head=0.0)
    training.step(0.0)
    assert training.rates.still and training.rates.found(script) is None


@pytest.mark.parametrize("kind", [ScheduleFree, torch.optim.Rprop])
def test_optimizers_that_use_the_rate_otherwise_are_left_alone(kind, script):
    training = Training(kind)
    training.step(0.0)
    assert training.rates.found(script) is None


@pytest.mark.parametrize("name", ["Adafactor", "Muon", "NAdam", "Adagrad", "RMSprop", "ASGD"])
def test_optimizers_of_torch_scale_their_updates_by_the_rate(name, script):
    weight = torch.nn.Parameter(torch.ones(4, 4))
    other = torch.nn.Parameter(torch.ones(4, 4))
    groups = [{"params": [weight], "lr": 0.0}, {"params": [other]}]
    optimizer, rates = getattr(torch.optim, name)(groups, lr=0.1, weight_decay=0.1), ZeroRates()
    for _ in range(3):
        weight.grad, other.grad = torch.ones(4, 4), torch.ones(4, 4)
        optimizer.step()
        rates.look([optimizer])
    assert rates.found(script).of_weights == 0.5
    assert torch.equal(weight, torch.ones(4, 4)) and not torch.equal(other, weight)


def test_groups_are_not_walked_again_where_no_rate_is_0():
    training = Training()
    training.step(0.1)
    training.rates.look(None)


def test_weights_without_gradients_cost_nothing(script):
    training = Training()
    training.step(0.0, grows=False)
    assert training.rates.found(script) is None


def test_weights_that_another_optimizer_trains_are_trained(script):
    training = Training()
    training.optimizers.append(torch.optim.SGD([training.body], lr=0.1))
    training.step(0.0)
    assert training.rates.found(script) is None


@pytest.mark.parametrize("hook", ["register_hook", "register_post_accumulate_grad_hook"])
def test_gradients_that_a_hook_takes_are_used(hook, script):
    training = Training()
    getattr(training.body, hook)(lambda _: None)
    training.step(0.0)
    assert training.rates.found(script) is None


@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        ("importance += p.grad.pow(2)", False),
        ("gradients = [p.grad for p in model.parameters()]", False),
        ("if x.grad == y.grad:", False),
        ("p.grad.zero_()", True),
        ("p.grad.data.zero_()", True),
        ("p.grad.detach_()", True),
        ("penalty = torch.autograd.grad(loss, x)[0]", True),
        ("if loss.grad_fn is None: optimizer.zero_grad()", True),
        ("torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)", True),
    ],
)
def test_a_script_that_reads_gradients_itself_may_need_them(line, is_told, script, tmp_path):
    (tmp_path / "used.py").write_text(f"{TRAINED}{line}\n")
    script.calls.sites["step"].append(Site("step", [Frame(str(tmp_path / "used.py"), 1, 1, 0, 9)]))
    training = Training()
    training.step(0.0)
    assert (training.rates.found(script) is not None) == is_told


def test_a_module_that_a_script_imports_may_need_gradients(script, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(TRAINED)
    (tmp_path / "probe.py").write_text(
        "def saliency(model):\n    return [p.grad.abs() for p in model.parameters()]\n"
    )
    script.calls.sites["step"].append(Site("step", [Frame(str(tmp_path / "train.py"), 1, 1, 0, 9)]))
    training = Training()
    training.step(0.0)
    assert training.rates.found(script) is not None
    probe = SimpleNamespace(__file__=str(tmp_path / "probe.py"))
    monkeypatch.setitem(sys.modules, "probe_of_gradients", probe)
    assert training.rates.found(script) is None


@pytest.mark.parametrize(("is_timed", "looks"), [(True, 0), (False, 1)])
def test_rates_are_looked_at_after_steps_that_are_not_timed(is_timed, looks, script, monkeypatch):
    monkeypatch.setattr(hooks, "wrap", lambda *_: None)
    script.is_timed = is_timed
    inquiry, looked = evidence.Inquiry(script), []
    inquiry.zero_rates.look = looked.append
    inquiry.on_steps([])
    assert looked == [script.updates.optimizers] * looks
