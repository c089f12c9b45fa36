"""Operators of a backward pass, by the lines of the forward pass that made them."""

import gc
import itertools
import sys
import warnings
import weakref
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from perfkit.additions.scripts import evidence, operators
from perfkit.additions.scripts.messages import AGAIN, OWN
from perfkit.additions.scripts.operators import (
    BOTH_PASSES,
    OperatorTimes,
    lines_in_vain,
    lines_of,
    of_one_step,
    still_s,
)
from perfkit.additions.scripts.script import Script, ScriptStep
from perfkit.additions.shared.positions import Spot
from tests.support.settings import settings

MODEL = """\
def forward(x, weight):
    x = x * weight
    return x.sin().cos().exp()
"""


@pytest.fixture(autouse=True)
def _nothing_is_compiled(monkeypatch):
    """Other tests of this process may have compiled something."""
    monkeypatch.setattr(operators, "compiled_graphs", lambda: 0)


@pytest.fixture
def script():
    return Script(settings(), None)


@pytest.fixture
def forward(tmp_path, monkeypatch):
    """A model's pass in a file of the user's; the clock goes on by a second whenever it is read."""
    ticks = itertools.count()
    monkeypatch.setattr(operators, "clock", lambda: float(next(ticks)))
    names = {}
    exec(compile(MODEL, tmp_path / "model.py", "exec"), names)
    return names["forward"]


def stepped(times, forward, step=None):
    """What is known after a step in which `forward` makes the graph of a backward pass."""
    looking = of_one_step(times)
    next(looking)
    loss = forward(torch.ones(3), torch.ones(3, requires_grad=True)).sum()
    times.time(loss)
    loss.backward(retain_graph=True)
    with pytest.raises(StopIteration):
        looking.send(step or ScriptStep(1.0))
    loss.backward()  # nothing is timed any more
    return dict(times.seconds)


def test_the_time_of_an_operator_belongs_to_the_line_that_made_it(script, forward, tmp_path):
    file = str(tmp_path / "model.py")
    seconds = stepped(OperatorTimes(script, str), forward)
    assert seconds[file, 2] == 1.0 and seconds[file, 3] == 3.0
    assert not torch.is_anomaly_enabled(), "each step would be slower, and nobody has asked for it"


def test_a_step_with_more_in_it_tells_nothing(script, forward):
    assert stepped(OperatorTimes(script, str), forward, ScriptStep(marks={"evaluation"})) == {}
    assert not torch.is_anomaly_enabled()


def test_a_pass_within_another_one_is_the_time_of_the_line_that_computes_again(script, forward):
    script.steps.in_backward = True
    assert stepped(OperatorTimes(script, str), forward) == {}


class Broken(torch.autograd.Function):
    """An operator whose backward pass fails."""

    @staticmethod
    def forward(_context, values):
        return values + 1

    @staticmethod
    def backward(_context, gradients):
        return gradients / (1 // 0)


def test_an_error_of_a_backward_pass_is_the_script_s_where_warnings_are_errors(script, monkeypatch):
    """Torch hands what it tells of the operator to `sys.excepthook` then, as if the script had ended."""
    handed = Mock()
    monkeypatch.setattr(sys, "excepthook", handed)
    before = [*warnings.filters]
    weight = torch.ones(2, requires_grad=True)
    look = of_one_step(OperatorTimes(script, str))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(look)
        with pytest.raises(ZeroDivisionError):
            Broken.apply(weight).sum().backward()
        look.close()
    assert not handed.called
    assert warnings.filters == before


def test_what_the_script_looks_for_itself_is_left_alone(script):
    with torch.autograd.detect_anomaly(check_nan=False), pytest.raises(StopIteration):
        next(of_one_step(OperatorTimes(script, str)))


@pytest.mark.parametrize(
    ("detaches", "takes", "clears", "in_vain"),
    [
        (False, ["critic"], ["generator"], True),  # as a GAN does that does not detach
        (True, ["critic"], ["generator"], False),
        (False, ["critic", "generator"], ["generator"], False),  # both are trained by this pass
        (False, ["critic"], [], False),  # an optimizer may take them later
        (False, ["generator"], ["critic"], False),  # the way to what trains leads through the critic
        (False, [], ["generator", "critic"], False),  # the script uses them itself, as SAM or plain `p.grad`
        (
            False,
            "late",
            ["generator"],
            False,
        ),  # it has read them before, as where gradients of tasks are combined
    ],
)
def test_a_backward_pass_through_what_nobody_trains_with_it_is_in_vain(
    script, tmp_path, monkeypatch, detaches, takes, clears, in_vain
):
    ticks = itertools.count()
    monkeypatch.setattr(operators, "clock", lambda: float(next(ticks)))
    file = tmp_path / "gan.py"
    detach = ".detach()" if detaches else ""
    file.write_text(
        f"def critic_step(models, times, noise):\n    fake = models['generator'](noise){detach}\n"
        "    loss = models['critic'](fake).mean()\n    times.time(loss)\n    loss.backward()\n"
    )
    names = {}
    exec(compile(file.read_text(), file, "exec"), names)
    models = {name: torch.nn.Linear(3, 3) for name in ("generator", "critic")}
    times = OperatorTimes(script, str)
    looking = of_one_step(times)
    next(looking)
    names["critic_step"](models, times, torch.ones(2, 3))
    for name in takes if takes != "late" else []:
        times.taken(list(models[name].parameters()))
    for name in clears:
        times.cleared(list(models[name].parameters()))
    if takes == "late":
        times.taken(list(models["critic"].parameters()))
    with pytest.raises(StopIteration):
        looking.send(ScriptStep(1.0))
    found = {line.line: line for line in lines_in_vain(times, {("backward", ()): 10.0})}
    assert (2 in found) == in_vain, "line 3 has views of weights, which take no time"
    if in_vain:
        assert found[2].text == "fake = models['generator'](noise)" and 0 < found[2].seconds < 10


@pytest.mark.parametrize(("is_trained", "line"), [(False, 4), (True, None)])
def test_a_teacher_that_nothing_trains_is_named_by_the_line_that_calls_it(
    script, tmp_path, monkeypatch, is_trained, line
):
    """The line of the training calls both: its operators are not in vain."""
    ticks = itertools.count()
    monkeypatch.setattr(operators, "clock", lambda: float(next(ticks)))
    file = tmp_path / "distill.py"
    file.write_text(
        "def step(models, times, x):\n    loss = distance(models, x)\n    times.time(loss); loss.backward()\n"
        "def target(models, x): return models['teacher'](x)\n"
        "def distance(models, x): return (models['student'](x) - target(models, x)).pow(2).mean()\n"
    )
    names = {}
    exec(compile(file.read_text(), file, "exec"), names)
    models = {name: torch.nn.Linear(3, 3) for name in ("teacher", "student")}
    teacher = [*models["teacher"].parameters()]
    times = OperatorTimes(script, str, () if is_trained else map(id, teacher))
    looking = of_one_step(times)
    next(looking)
    names["step"](models, times, torch.ones(2, 3))
    times.taken([*models["student"].parameters(), *(teacher if is_trained else [])])
    with pytest.raises(StopIteration):
        looking.send(ScriptStep(1.0))
    found = lines_in_vain(times, {("backward", ()): 10.0})
    assert [each.line for each in found[:1]] == ([] if line is None else [line])


@pytest.mark.parametrize(
    ("order", "count"),
    [
        (["backbone", "head"], 3),  # the product of the backbone, its transposed weights, and tanh
        (["head", "backbone"], 1),  # the way to the head leads through all but the transposed weights
    ],
)
def test_operators_for_weights_with_a_learning_rate_of_0_are_those_that_lead_to_them_alone(
    script, monkeypatch, order, count
):
    ticks = itertools.count()
    monkeypatch.setattr(operators, "clock", lambda: float(next(ticks)))
    backbone = torch.nn.Sequential(torch.nn.Linear(3, 3, bias=False), torch.nn.Tanh())
    head = torch.nn.Linear(3, 3, bias=False)
    times = OperatorTimes(script, str, still=map(id, backbone.parameters()))
    looking = of_one_step(times)
    next(looking)
    layers = {"backbone": backbone, "head": head}
    loss = torch.nn.Sequential(*[layers[name] for name in order])(torch.ones(2, 3)).mean()
    times.time(loss)
    loss.backward()
    times.taken([*backbone.parameters(), *head.parameters()])
    with pytest.raises(StopIteration):
        looking.send(ScriptStep(1.0))
    seconds = still_s(times, {("backward", ()): 10.0})
    assert seconds == pytest.approx(10.0 * count / 6)
    assert not times.in_vain, "an optimizer takes them"


def test_what_operators_take_for_some_weights_is_not_known_where_they_are_not_timed(script):
    assert still_s(OperatorTimes(script, str), {("backward", ()): 10.0}) is None


def test_a_compiled_model_has_no_operators_of_its_own(script, monkeypatch):
    monkeypatch.setattr(operators, "compiled_graphs", lambda: 1)
    with pytest.raises(StopIteration):
        next(of_one_step(OperatorTimes(script, str)))


def test_a_line_has_its_share_of_the_backward_pass_and_its_own_part_of_the_forward_pass(script, tmp_path):
    (tmp_path / "t.py").write_text("model(x)\nlarge(x)\nsmall(x)\n")
    file = str(tmp_path / "t.py")
    call, large, small = (Spot(file, number, "forward") for number in (1, 2, 3))
    looks = {
        ("forward", (call, large)): 2.0,
        ("forward", (call, small)): 0.2,
        (OWN, (call,)): 0.8,
        ("backward", (call,)): 5.0,
        ("data set", (large,)): 2.0,
    }
    times = OperatorTimes(script, str)
    assert lines_of(times, looks) == []
    times.seconds.update({(file, 2): 0.9, (file, 3): 0.1})
    found = lines_of(times, looks)
    assert [(line.part, line.line, line.text) for line in found] == [(BOTH_PASSES, 2, "large(x)")]
    assert found[0].seconds == pytest.approx(2.0 + 0.9 * 5.0)


def test_many_operators_are_left_alone_as_their_stacks_take_long(script):
    inquiry = SimpleNamespace(nodes={3: 6_000}, operators=None, zero_rates=SimpleNamespace(still=None))
    with pytest.raises(StopIteration):
        next(evidence._operators(script, inquiry, str, ()))
    inquiry.nodes[3] = 10
    next(looking := evidence._operators(script, inquiry, str, ()))
    assert inquiry.operators
    looking.close()
    assert not inquiry.operators and not torch.is_anomaly_enabled()


def test_a_step_with_too_many_operators_is_not_timed(script, forward, monkeypatch):
    monkeypatch.setattr(operators.LIMIT, "most_traced", 8)
    times = OperatorTimes(script, str)
    looking = of_one_step(times)
    next(looking)
    for is_first in (True, False):
        times.time(forward(torch.ones(3), torch.ones(3, requires_grad=True)).sum())
        assert torch.is_anomaly_enabled() == is_first, "the rest of the step is as fast as ever"
    with pytest.raises(StopIteration):
        looking.send(ScriptStep(1.0))
    assert not times.seconds


def test_nodes_of_a_pass_are_let_go_when_it_has_ended(script):
    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.large = torch.ones(3)
            kept.append(weakref.ref(ctx.large))
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    kept = []
    times = OperatorTimes(script, str)
    next(looking := of_one_step(times))
    loss = Keeps.apply(torch.ones(3, requires_grad=True)).sum()
    times.time(loss)
    loss.backward()
    del loss
    times.taken([])
    gc.collect()
    assert kept[0]() is None
    looking.close()


def test_a_mode_that_the_script_sets_in_the_step_stays(script):
    next(looking := of_one_step(OperatorTimes(script, str)))
    torch.autograd.set_detect_anomaly(True)
    try:
        looking.close()
        assert torch.is_anomaly_enabled()
    finally:
        torch.autograd.set_detect_anomaly(False)


def test_what_is_computed_again_is_not_the_time_of_the_operator_that_needs_it(script, monkeypatch):
    monkeypatch.setattr(operators, "clock", lambda: 10.0 + script.steps.now.spent[AGAIN])
    times = OperatorTimes(script, str)
    began = times.now()
    script.steps.now.spent[AGAIN] += 5.0
    assert times.now() == began
