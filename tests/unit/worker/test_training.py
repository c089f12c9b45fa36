"""The program as it is measured: its steps are its own, observing leaves no trace."""

import contextlib
import dataclasses
import gc
import itertools
import time
import weakref
from types import SimpleNamespace

import psutil
import pytest
import torch

from perfkit import train, workloads
from perfkit.errors import InvalidValue, RunFailed, WorkloadError
from perfkit.recipe import Recipe
from perfkit.worker import checks
from perfkit.worker import training as training_module
from perfkit.worker.checks import compile_counters
from perfkit.worker.procedure import drive
from perfkit.worker.session import WorkerSession
from perfkit.worker.training import Training, loss_values
from tests.support.toy import Blocks, NaNLoss, Toy

CPU = torch.device("cpu")


def training(workload=None, **switches):
    return Training(Recipe(**{"batch_size": 8, **switches}), workload or Toy(), CPU)


def first_losses(subject, count=4):
    session = WorkerSession(SimpleNamespace(send=lambda message: None))
    session.subject = subject
    return loss_values(drive(session.take(count, "", early=[subject.first]), subject.step).steps)


@pytest.mark.parametrize("switches", [{}, {"accumulation": 2, "workers": 1}, {"amp": "fp16"}])
def test_its_losses_are_those_of_the_program(switches):
    program = train.train(Recipe(batch_size=8, **switches | {"workers": 0}), Toy(), CPU)
    expected = [float(next(program)) for _ in range(4)]
    measured = training(**switches)
    assert first_losses(measured) == expected
    measured.stop()


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


def test_a_cached_batch_is_repeated_and_the_loader_rests():
    measured, fetched = training(), []
    program = measured._program
    program.source = (fetched.append(batch) or batch for batch in program.source)
    with measured.on_cached_batch():
        first, second = loss_values([measured.step(), measured.step()])
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
    plain = torch.Tensor.to
    measured = training(Blocks())
    measured.observed_step()
    with pytest.raises(ZeroDivisionError), measured.phases(lambda name: 1 / 0):
        measured.step()
    assert torch.Tensor.to is plain and measured._program.on_phase is None
    hooks = [h for part in measured.model.modules() for h in (*part._forward_hooks, *part._forward_pre_hooks)]
    assert (hooks, [*measured.optimizer._optimizer_step_post_hooks]) == ([], [])


@pytest.mark.parametrize("samples", [1, 7])
def test_an_epoch_without_a_batch_is_an_error_with_both_sizes_and_no_endless_loop(samples):
    with pytest.raises(InvalidValue, match=f"a batch of 8 samples is larger .* which has {samples}.*Lower"):
        training(Toy(samples=samples))


def test_observing_compiles_nothing_again(monkeypatch):
    torch._dynamo.reset()
    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, mode: plain(model, backend="eager"))
    measured = training(compile=True)
    _, view = measured.observed_step()
    measured.step()
    assert (view.outputs.shape, compile_counters().graphs) == ((8, 2), measured.first_graphs)
    assert view.compile()[0]
    again = dataclasses.replace(view, first_graphs=view.first_graphs - 1)
    assert again.compile()[0] is None, "compiled again"


def test_a_peak_that_is_not_kept_is_not_known():
    """MPS knows what is allocated now, and that is no peak."""
    assert checks.peak_bytes(torch.device("mps")) == (None, None)
    assert (checks.peak_bytes(CPU)[0] or 0) > 1 << 20


def test_the_start_of_a_training_has_nothing_of_the_time_that_its_parent_takes_to_think(monkeypatch):
    waited, clock = [0.0], time.time
    monkeypatch.setattr(time, "time", lambda: clock() + waited[0])
    session = WorkerSession(SimpleNamespace(send=lambda message: None))
    session.describe("tests.support.toy:Toy", "smoke", {}, "cpu")
    waited[0] = 1000.0
    job = session.train(Recipe(batch_size=8), seed=0, loss_steps=1, warmup_s=0.0)
    assert 0 < drive(job, lambda: session.subject.step()).startup_s < 500


def test_code_that_was_saved_after_a_measurement_began_is_not_trained(tmp_path, monkeypatch):
    file = tmp_path / "edited_workload.py"
    file.write_text("from tests.support.toy import Toy\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    session = WorkerSession(SimpleNamespace(send=lambda message: None))
    about = ("edited_workload:Toy", "smoke", {}, "cpu", workloads.digest("edited_workload:Toy"))
    session.describe(*about)
    file.write_text("from tests.support.toy import Toy as Toy\n", encoding="utf-8")
    with pytest.raises(WorkloadError, match=r"the code of edited_workload:Toy has changed since"):
        session.describe(*about)


@pytest.mark.parametrize(("platform", "peak"), [("linux", 300 << 20), ("darwin", 300 << 10)])
def test_a_linux_that_tells_no_peak_of_its_own_has_getrusage_s_in_kib(monkeypatch, tmp_path, platform, peak):
    (tmp_path / "status").write_text("Name:\tpython\nVmRSS:\t 100 kB\n")
    monkeypatch.setattr(checks, "open", lambda *_: (tmp_path / "status").open(), raising=False)
    monkeypatch.setattr(checks.resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=300 << 10))
    monkeypatch.setattr(checks.sys, "platform", platform)
    assert checks.peak_bytes(CPU) == (peak, None)


def test_workers_rest_while_a_cached_batch_is_trained_on_and_the_batch_is_fetched_before():
    """A worker that is stopped before it has handed over the batch would be waited for without an end."""
    measured = training(workers=1)
    (worker,) = measured.iterator._workers
    with measured.on_cached_batch():
        until = time.monotonic() + 60  # the signal is on its way
        while (is_stopped := psutil.Process(worker.pid).status()) != psutil.STATUS_STOPPED:
            assert time.monotonic() < until, is_stopped
            time.sleep(0.01)
        measured.step()
    assert psutil.Process(worker.pid).status() != psutil.STATUS_STOPPED
    measured.step()
    measured.stop()
