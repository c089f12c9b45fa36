"""Operators of a backward pass, by the lines of the forward pass that made them."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from perfkit.additions.scripts import operators
from perfkit.additions.scripts.messages import OWN
from perfkit.additions.scripts.operators import BOTH_PASSES, OperatorTimes, lines_of, of_one_step
from perfkit.additions.scripts.script import Script, ScriptStep
from perfkit.additions.shared.lines import Spot
from tests.support.settings import settings

MODEL = """\
def forward(x, weight):
    x = x * weight
    return x.sin().cos().exp()
"""


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


def stepped(looking, times, step=None, forward=None):
    """What is known after a step in which `forward` makes the graph of a backward pass."""
    next(looking)
    loss = forward(torch.ones(3), torch.ones(3, requires_grad=True)).sum()
    times.time(loss)
    loss.backward(retain_graph=True)
    with pytest.raises(StopIteration) as ended:
        looking.send(step or ScriptStep(1.0))
    loss.backward()  # nothing is timed any more
    return ended.value.value


def test_the_time_of_an_operator_belongs_to_the_line_that_made_it(script, forward, tmp_path):
    times = OperatorTimes(script, str)
    seconds = stepped(of_one_step(times), times, forward=forward)
    assert {line: spent for (file, line), spent in seconds.items() if file == str(tmp_path / "model.py")} == {
        2: 1.0,
        3: 3.0,
    }
    assert not torch.is_anomaly_enabled(), "each step would be slower, and nobody has asked for it"


def test_a_step_with_more_in_it_tells_nothing(script, forward):
    times = OperatorTimes(script, str)
    assert stepped(of_one_step(times), times, ScriptStep(marks={"evaluation"}), forward) == {}
    assert not torch.is_anomaly_enabled()


def test_a_pass_within_another_one_is_the_time_of_the_line_that_computes_again(script, forward):
    times = OperatorTimes(script, str)
    script.steps.in_backward = True
    assert stepped(of_one_step(times), times, forward=forward) == {}


def test_what_the_script_looks_for_itself_is_left_alone(script):
    with torch.autograd.detect_anomaly(check_nan=False), pytest.raises(StopIteration) as ended:
        next(of_one_step(OperatorTimes(script, str)))
    assert ended.value.value == {}


def test_a_compiled_model_has_no_operators_of_its_own(script, monkeypatch):
    monkeypatch.setattr(operators, "compiled_graphs", lambda: 1)
    with pytest.raises(StopIteration):
        next(of_one_step(OperatorTimes(script, str)))


def test_a_line_has_its_share_of_the_backward_pass_and_its_own_part_of_the_forward_pass(tmp_path):
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
    found = lines_of({(file, 2): 0.9, (file, 3): 0.1}, looks, backward_s=5.0)
    assert [(line.part, line.line, line.text) for line in found] == [(BOTH_PASSES, 2, "large(x)")]
    assert found[0].seconds == pytest.approx(2.0 + 0.9 * 5.0)
    assert lines_of({}, looks, 5.0) == []


def test_many_operators_are_left_alone_as_their_stacks_take_long(script, monkeypatch):
    from perfkit.additions.scripts import evidence

    inquiry = SimpleNamespace(nodes={3: 6_000}, operators=None)
    with pytest.raises(StopIteration) as ended:
        next(evidence._of_operators(script, inquiry, str))
    assert ended.value.value == {}
