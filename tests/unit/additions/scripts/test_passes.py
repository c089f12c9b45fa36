"""Results of the forward pass that the loss does not need."""

import itertools
import math

import pytest
import torch

from perfkit.additions.scripts import operators
from perfkit.additions.scripts.operators import OperatorTimes, lines_unused, of_one_step
from perfkit.additions.scripts.script import Script, ScriptStep
from perfkit.additions.shared.sampler import Spot
from tests.support.settings import settings

START = """\
import torch
from torch.nn import functional as F
lengths = torch.arange(64) % 32
rows = torch.arange(64)
def product(x, weight): return x @ weight.T
"""
SCORES = "scores = F.linear(x, weight)"
LOGITS = f"{SCORES}.log_softmax(-1)"


@pytest.fixture
def script():
    return Script(settings(), None)


@pytest.fixture
def unused(script, tmp_path, monkeypatch):
    """What is said of a model; the clock goes on by a second whenever it is read."""
    ticks = itertools.count()
    monkeypatch.setattr(operators, "clock", lambda: float(next(ticks)))
    monkeypatch.setattr(operators, "compiled_graphs", lambda: 0)  # other tests may have compiled something
    file = tmp_path / "model.py"

    def find(computes, selects, looks=None, is_kept=False, gradients=0):
        body = f"def forward(x, weight):\n    {computes}\n    return {selects}\n"
        file.write_text(START + body)
        names = {}
        exec(compile(file.read_text(), file, "exec"), names)
        times = OperatorTimes(script, str)
        looking = of_one_step(times)
        next(looking)
        loss = names["forward"](torch.ones(64, 32, 8), torch.ones(50, 8, requires_grad=True)).sum()
        times.time(loss, is_kept)
        loss.backward()
        script.updates.gradients += gradients
        with pytest.raises(StopIteration):
            looking.send(ScriptStep(1.0))
        return lines_unused(times, looks or {("backward", ()): 10.0})

    return find


@pytest.mark.parametrize(
    ("computes", "selects", "kept"),
    [
        (SCORES, "scores[:, -1]", 1 / 32),
        (SCORES, "scores[rows, lengths]", 1 / 32),  # the last of each sequence
        (SCORES, "scores[:, 3] + scores[:, 5]", 2 / 32),
        (SCORES, "(F.gelu(scores) * 0.5).double().flatten(1).view(64, 32, 50)[:, -8:, :25]", 8 / 64),
        (SCORES, "scores.gather(2, lengths.view(64, 1, 1).expand(64, 32, 1))", 1 / 50),
        (SCORES, "scores[(torch.arange(64 * 32) % 8 == 0).view(64, 32)]", 1 / 8),
        (SCORES, "F.dropout(scores + 1).transpose(1, 2)[..., 0].log_softmax(-1)", 1 / 32),
        ("scores = F.conv1d(x.transpose(1, 2), weight[..., None])", "scores[..., -1]", 1 / 32),
        ("scores = torch.bmm(x, weight.T.expand(64, 8, 50))", "scores[:, -1]", 1 / 32),
        ("scores = x.flatten(0, 1) @ weight.T", "F.embedding(lengths, scores)", 1 / 32),
    ],
)
def test_a_product_of_which_selections_keep_a_small_part_is_named(unused, computes, selects, kept):
    (found,) = unused(computes, selects)
    assert (found.line.line, found.line.text, found.selected_at) == (7, computes, "model.py:8")
    assert found.kept == pytest.approx(kept)


@pytest.mark.parametrize(
    ("computes", "selects"),
    [
        (SCORES, "scores"),
        (SCORES, "scores[:, 8:]"),
        (SCORES, "scores[:, -1].sum() + scores.mean()"),  # something else needs all of them
        (SCORES, "sum(scores[:, at] for at in range(32))"),
        (SCORES, "sum(scores.unbind(1))"),
        (SCORES, "scores.cumsum(1)[:, -1]"),
        (SCORES, "scores.softmax(-1)[..., 0]"),
        (LOGITS, "scores.gather(2, lengths.view(64, 1, 1).expand(64, 32, 1))"),  # as a loss does
        (SCORES, "F.layer_norm(scores, (50,))[:, -1]"),
        (SCORES, "F.scaled_dot_product_attention(scores, scores, scores)[:, -1]"),
        (SCORES, "torch.nn.GRU(50, 4, batch_first=True)(scores)[0][:, -1]"),
        (SCORES, "torch.nn.LSTM(50, 4, batch_first=True)(scores)[0][:, -1]"),
        ("scores = F.linear(x[:, 0], weight[:6])", "scores.gather(1, lengths[:, None] % 6)"),  # as DQN does
        ("scores = torch.bmm(x, x.mT * weight.sum())", "scores[:, *torch.tril_indices(32, 32, -1)]"),
        ("scores = x * weight[:1]", "scores[:, -1]"),  # no product of matrices, which would take long
    ],
)
def test_what_the_loss_needs_or_costs_little_is_not_named(unused, computes, selects):
    assert unused(computes, selects) == []


def test_its_time_is_what_both_passes_spend_on_the_part_that_is_not_kept(unused, tmp_path):
    line = Spot(str(tmp_path / "model.py"), 7, "forward")
    looks = {("forward", (line,)): 4.0, ("backward", ()): 10.0}
    (found,) = unused("scores = x @ weight.T", "scores[:, -1]", looks)
    # The sum, the selection, a view, the product and the transposed weight take a second each.
    assert found.line.seconds == pytest.approx(31 / 32 * (10.0 * 3 / 5 + 4.0 * 1 / 3))


def test_a_function_for_all_products_is_named_by_the_line_that_calls_it(unused):
    (found,) = unused("scores = product(product(x, weight[:8]), weight)", "scores[:, -1]")
    assert found.line.line == 5, "both calls are on the same line, which is no better"
    (found,) = unused(
        "h = product(x, weight[:8]); scores = product(h, weight)", "product(scores[:, -1], weight.T)"
    )
    assert found.line.line == 7


@pytest.mark.parametrize("how", [{"is_kept": True}, {"gradients": 1}])
def test_what_is_differentiated_twice_may_be_needed_elsewhere(unused, how):
    assert unused(SCORES, "scores[:, -1]", **how) == []


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_rows_of_several_lengths_have_no_size():
    rows = torch.nested.nested_tensor([torch.ones(2, 8), torch.ones(3, 8)], requires_grad=True)
    assert operators._elements(torch.nn.Linear(8, 4)(rows).grad_fn) == math.inf
