"""The program as it is measured: its steps are its own, observing leaves no trace, memory and FLOPs are counted."""

import contextlib
import gc
import itertools
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from perfkit import parallel, train
from perfkit.errors import InvalidValue, RunFailed
from perfkit.recipe import Recipe
from perfkit.worker import checks, inside
from perfkit.worker import training as training_module
from perfkit.worker.checks import compile_counters
from perfkit.worker.procedure import drive
from perfkit.worker.session import Session
from perfkit.worker.training import Training, losses, observe_step
from tests.support.toy import Blocks, NaNLoss, Toy

CPU = torch.device("cpu")
WEIGHTS = 4 * (16 * 32 + 32 + 32 * 2 + 2)


def training(workload=None, **switches):
    return Training(Recipe(**{"batch_size": 8, **switches}), workload or Toy(), CPU)


def first_losses(subject, count=4):
    session = Session(SimpleNamespace(send=lambda message: None))
    session.subject = subject
    return losses(drive(session.take(count, "", early=[subject.first]), subject.step).plain)


@pytest.mark.parametrize("switches", [{}, {"accumulation": 2, "workers": 1}, {"amp": "fp16"}])
def test_its_losses_are_those_of_the_program(switches):
    program = train.train(Recipe(batch_size=8, **switches | {"workers": 0}), Toy(), CPU)
    expected = [float(next(program)) for _ in range(4)]
    measured = training(**switches)
    assert first_losses(measured) == expected
    measured.stop()
    assert train.endless is training_module.endless


def test_a_loss_that_is_not_finite_is_an_error_with_a_remedy():
    with pytest.raises(RunFailed, match=r"loss became nan.*learning rate"):
        first_losses(training(NaNLoss()))


def test_the_first_batch_is_not_kept():
    seen = []

    class Watching(Toy):
        def loss(self, outputs, targets):
            seen.append(weakref.ref(targets))
            return super().loss(outputs, targets)

    measured = training(Watching())
    measured.step(), measured.step()
    gc.collect()
    assert seen[0]() is None


def test_a_held_batch_is_repeated_and_the_loader_rests():
    measured, fetched = training(), []
    measured._batches = (fetched.append(batch) or batch for batch in measured._batches)
    with measured.hold():
        first, second = losses([measured.step(), measured.step()])
    assert second < first, "it learns the one batch"
    measured.step()
    assert len(fetched) == 2, "the held one, and the next"


def test_waiting_is_what_the_loader_takes(monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(training_module.time, "perf_counter", lambda: next(ticks))
    measured = training()
    assert measured.first.waited == 1
    assert measured.first.seconds == 3


@pytest.mark.parametrize("accumulation", [1, 3])
def test_phases_are_seen_in_order_around_what_they_name(accumulation):
    seen = []

    @contextlib.contextmanager
    def on_phase(name):
        seen.append(name)
        yield
        seen.append("end")

    measured = training(accumulation=accumulation)
    with measured.phases(on_phase):
        measured.step()
    parts = [*["data", "copy", "forward", "backward"] * accumulation, "optimizer"]
    assert seen == [word for part in parts for word in (part, "end")]
    measured.step()
    assert len(seen) == 2 * len(parts), "nothing is seen after observing has ended"


def test_after_observing_the_program_is_as_it_was():
    plain = train.record_function, parallel.record_function, train.endless
    measured = training(Blocks())
    observe_step(measured)
    with pytest.raises(ZeroDivisionError), measured.phases(lambda name: 1 / 0):
        measured.step()
    assert (train.record_function, parallel.record_function, train.endless) == plain
    hooks = [h for part in measured.model.modules() for h in (*part._forward_hooks, *part._forward_pre_hooks)]
    assert (hooks, [*measured.optimizer._optimizer_step_post_hooks]) == ([], [])


def test_observing_compiles_nothing_again(monkeypatch):
    torch._dynamo.reset()
    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, mode: plain(model, backend="eager"))
    measured = training(compile=True)
    graphs = compile_counters().graphs
    view = observe_step(measured)
    view.first_graphs = graphs
    measured.step()
    assert (view.outputs.shape, compile_counters().graphs) == ((8, 2), graphs)
    assert checks.READERS["compile"](view)[0]
    view.first_graphs -= 1
    assert checks.READERS["compile"](view)[0] is None, "compiled again"


class Momentum(Toy):
    def optimizer(self, parameters, **implementation):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **implementation)


class Deep(Toy):
    """Each of eight parts keeps 256 floats of a sample, and 16 more."""

    def model(self):
        parts = [nn.Sequential(nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 16)) for _ in range(8)]
        return nn.Sequential(*parts, nn.Linear(16, 2))


def test_each_byte_is_of_one_kind():
    report = inside.memory(training(Momentum(), zero_grad_set_to_none=False))
    assert sum(report.parts.values()) == report.peak
    assert [report.parts[kind] for kind in ("weights", "optimizer", "gradients")] == [WEIGHTS] * 3
    assert report.parts["batch"] >= 8 * 16 * 4
    assert report.allocated is None
    assert report.peak_phase in ("forward", "backward", "optimizer")


def test_activations_are_what_layers_keep_for_the_backward_pass():
    report = inside.memory(training(Deep(), batch_size=64))
    kept = 8 * 4 * 64 * 256
    assert kept <= report.parts["activations"] < 1.1 * kept


def test_memory_of_a_compiled_model_is_refused_and_its_work_is_not_known():
    measured = training()
    measured.recipe = Recipe(compile=True)
    with pytest.raises(InvalidValue, match="compile=false"):
        inside.memory(measured)
    assert inside.flops(measured) is None


def test_a_peak_that_is_not_kept_is_not_known():
    """MPS knows what is allocated now, and that is no peak."""
    assert checks.peak_bytes(torch.device("mps")) == (None, None)
    assert (checks.peak_bytes(CPU)[0] or 0) > 1 << 20


def test_flops_of_a_step_are_those_of_its_products():
    """Forward 2·b·in·out for each layer; backward the same for weights, and for inputs but the first."""
    assert inside.flops(training()) == 2 * 8 * (3 * 32 * 2 + 2 * 16 * 32)
