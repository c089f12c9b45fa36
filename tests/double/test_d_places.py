"""Places that would measure the wrong thing, fail or hang on a GPU, each with what it must do there."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import perfkit
from perfkit.additions.inside import KernelReport, loop, step
from perfkit.additions.inside.syncs import detect_syncs
from perfkit.additions.parity import check as parity
from perfkit.additions.ranks.ddp import DdpExchange, DdpRecord
from perfkit.additions.ranks.messages import State
from perfkit.additions.ranks.recorder import RankRecorder
from perfkit.additions.scripts.questions import Questions
from perfkit.additions.scripts.script import Script, StepDetector
from perfkit.additions.shared.clock import clock
from perfkit.errors import RunFailed
from perfkit.program import prefetched
from perfkit.recipe import Recipe
from perfkit.train import train
from perfkit.worker import checks, timeline
from perfkit.worker.checks import View
from perfkit.worker.procedure import drive
from perfkit.worker.session import WorkerSession
from perfkit.worker.training import Training
from tests.support import double
from tests.support.settings import settings
from tests.support.toy import Toy

CUDA = torch.device("cuda")
pytestmark = pytest.mark.usefixtures("here", "settings_kept")


def session(workload=None, **switches):
    asked = WorkerSession(SimpleNamespace(send=lambda phase: None))
    asked.workload, asked.device = workload or Toy(), CUDA
    asked.subject = Training(Recipe(**{"batch_size": 8, **switches}), asked.workload, CUDA)
    return asked


def test_a_wait_is_listed_once_with_the_line_that_makes_it():  # 4.3
    values = torch.ones(4, device=CUDA)
    with detect_syncs(on_gpu=True) as places:
        values.sum().item()
        values.nonzero()
        torch.ones(4).to(CUDA)
    assert sorted((place.call, place.count) for place in places) == [("item", 1), ("nonzero", 1), ("to", 1)]
    assert {place.where.split(":")[0] for place in places} == {"test_d_places.py"}
    with detect_syncs(on_gpu=True) as places:
        torch.ones(1).sum().item()
    assert places == [], "what is on the host makes nobody wait"


def test_a_copy_s_advice_depends_on_its_memory():
    pinned = torch.ones(4).pin_memory()
    with detect_syncs(on_gpu=True) as places:
        torch.ones(4).to(CUDA)
        pinned.to(CUDA)
        pinned.to(CUDA, non_blocking=True)
    fixes = [place.fix.partition(",")[0].partition(":")[0] for place in places if place.kind != "wait"]
    assert fixes == [
        "pin it in the loader (pin_memory)",
        "copy with non_blocking",
        "it overlaps as it is",
    ]


def test_a_wait_that_no_call_from_python_shows_is_the_warning_s_own(monkeypatch):  # 4.3
    with detect_syncs(on_gpu=True) as places:
        double.warn_of_sync()
    assert [(place.call, place.where.split(":")[0]) for place in places] == [
        ("synchronisation", "test_d_places.py")
    ]


def test_where_the_training_is_decides_and_not_where_a_gpu_is(here):  # 4.4
    assert torch.cuda.is_available()
    with perfkit.detect_syncs() as places:
        torch.ones(3).nonzero()
    assert [place.call for place in places] == ["nonzero"]
    assert not here.is_initialized, "the look has made no context"


def test_products_are_timed_by_the_device_over_many_launches(monkeypatch, clock):  # 4.5
    launched, long = [], []

    def product():
        launched.append(None)
        double.work(0.001)

    monkeypatch.setattr(step, "REPEATS", 2)
    (least,) = step._least_s(CUDA, [product], 3.0)
    assert least == pytest.approx(0.001), "the host launches them in no time"
    (least,) = step._least_s(CUDA, [lambda: long.append(double.work(0.3))], 3.0)
    assert least == pytest.approx(0.3) and len(long) == 4, "of a long one, once is enough"
    assert len(launched) == 2 + 2 * step.LAUNCHES


def test_the_share_of_a_step_is_of_the_roof_of_its_own_format(monkeypatch):  # 4.6
    convolution, product, peaks = nn.Conv2d(1, 1, 1), nn.Linear(1, 1), {"float32": 1.0, "tf32": 8.0}
    for recipe, model, kind in (
        (Recipe(), convolution, "tf32"),
        (Recipe(), product, "float32"),
        (Recipe(fp32_precision="tf32"), product, "tf32"),
        (Recipe(fp32_precision="ieee"), convolution, "float32"),
        (Recipe(amp="bf16"), convolution, "bfloat16"),
    ):
        assert step._format(recipe, model, peaks) == kind
    assert step._format(Recipe(), convolution, {"float32": 1.0}) == "float32", "a V100 has no TF32"
    assert step._formats(CUDA).keys() == {"float32", "tf32", "bfloat16", "float16"}
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(major=7, name="", uuid="")
    )
    assert step._formats(CUDA).keys() == {"float32", "float16"}, "a T4 emulates bfloat16"


def test_each_format_is_measured_in_its_own_precision(monkeypatch):  # 4.6
    asked, settings, seen = session(), torch.backends.cuda.matmul, []
    usual = settings.fp32_precision

    def least(device, calls, limit_s):
        seen.append(settings.fp32_precision)
        return [1.0] * len(calls)

    monkeypatch.setattr(step, "_least_s", least)
    monkeypatch.setattr(step, "WIDTHS_ON_GPU", step.WIDTHS_ON_CPU)
    monkeypatch.setattr(torch, "randn", lambda *size, **how: torch.empty(1))
    monkeypatch.setattr(torch, "empty", lambda *size, **how: torch.zeros(1))
    report = drive(step.kernels(asked), asked.subject.step)
    assert seen == ["ieee", "tf32", usual, usual, usual] and settings.fp32_precision == usual
    assert report.mfu


class Recurrent(Toy):
    def model(self):
        return nn.Sequential(nn.Linear(16, 2), nn.LSTM(2, 2, proj_size=0))


def test_flops_of_recurrent_layers_are_not_known_on_a_gpu():  # 4.7
    training = SimpleNamespace(model=nn.LSTM(2, 2), recipe=Recipe(), device=CUDA)
    assert step.flops(training) is None
    report = KernelReport(
        peaks={"float32": 1.0}, bytes_per_s=1.0, rows=[], flops=None, dtype="float32", step_s=1.0, recipe=""
    )
    assert report.mfu is None


def test_a_watched_cell_has_the_times_of_the_device(clock):  # 4.11
    model = nn.Linear(2, 1).to(CUDA)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with loop.observed() as steps:
        for batch in DataLoader(torch.zeros(16, 2), batch_size=2):
            model(batch.to(CUDA)).sum().backward()
            double.work(0.02)
            optimizer.step()
    assert len(steps) == 8
    assert [each.seconds for each in steps[1:]] == pytest.approx([0.02] * 7)


def test_parity_takes_a_small_batch():  # 4.10
    asked = session()
    report = parity.check(
        asked, Recipe(batch_size=128, amp="fp16", optimizer_impl="fused"), "tolerance", 0, 3
    )
    (batch,) = [proof.evidence for proof in report.mechanisms if proof.name == "batch_size"]
    assert batch == f"samples in a batch: {parity.MOST_SAMPLES}"
    assert all(check.ok for check in report.checks), report.checks
    assert all(proof.ok for proof in report.mechanisms)


def test_prefetching_to_the_device_trains_the_same():
    how = {"pin_memory": True, "non_blocking": True, "device_prefetch": True}
    report = parity.check(session(), Recipe(batch_size=8, **how), "bitwise", 0, 4)
    assert all(check.ok for check in report.checks), report.checks
    assert all(proof.ok for proof in report.mechanisms), report.mechanisms


def test_the_scale_of_fp16_does_not_skip_the_first_updates():  # 4.9
    training = Training(Recipe(batch_size=8, amp="fp16"), Toy(), CUDA)
    assert training.scaler.get_scale() == 1024.0
    assert training.observed_step()[1].amp() == ("fp16", "logits are float16, loss scaled by 1024")


def test_the_first_steps_of_a_script_last_until_the_device_is_done(here):  # 4.12
    parts = {"steps": SimpleNamespace(since=clock(), began_at=0.0), "settings": settings()}
    asked = Questions(SimpleNamespace(**parts, device=CUDA), None, None, None, None, {}, lambda phase: None)
    double.work(0.2)
    steps = [SimpleNamespace(seconds=0.0), SimpleNamespace(seconds=0.001)]
    asked.begin(steps)
    assert steps[0].seconds == 0.0
    assert steps[1].seconds >= 0.2, "its launch took a millisecond"


@pytest.mark.parametrize("kind", ["xpu", "mps", "hpu"])
def test_every_accelerator_is_waited_for(monkeypatch, kind):  # 4.13
    waited = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    device = SimpleNamespace(type=kind)
    checks.synchronize(device)
    checks.synchronize(torch.device("cpu"))
    assert waited == [device]
    assert checks.peak_bytes(device) == (None, None)


def test_during_a_capture_no_step_ends_and_so_nothing_waits(here):  # 4.17
    here.is_initialized = here.is_capturing = True
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        checks.synchronize(CUDA)
    ended = []
    steps = StepDetector(ended.append, usual=1)
    here.is_capturing = False
    for steps.in_backward in (False, True):  # an update within a backward pass: its step ends afterwards
        steps.updated("optimizer")
    steps.in_backward = False
    here.is_capturing = True
    for _ in range(3):
        steps.begin()
    assert ended == []
    here.is_capturing = False
    steps.begin()
    assert len(ended) == 1


def test_a_script_that_captures_its_optimizer_s_steps_is_refused_in_words(here):  # 4.17
    steps = StepDetector([].append, usual=1)
    steps.updated("optimizer")
    here.is_initialized = here.is_capturing = True
    with pytest.raises(RunFailed, match="whole steps in a CUDA graph") as refused:
        steps.updated("optimizer")
    assert "make_graphed_callables" in refused.value.remedy


def test_a_loss_of_a_capture_is_no_number(here):  # 4.17
    from perfkit.additions.scripts.training import Updates

    script = Script(settings(), None)
    script.calls.sites["optimizer"] = ["there is one"]
    updates = Updates.__new__(Updates)
    updates._script, updates._seen, updates._unscaled = script, script.updates, None
    for here.is_capturing in (True, False):
        here.is_initialized = True
        updates._backward(lambda root: None, torch.ones(()))
    assert len(script.updates.losses) == 1


def test_a_rank_reads_nothing_while_a_graph_is_captured(here):  # 4.17
    def refused():
        raise RuntimeError("operation not permitted when stream is capturing")

    script = SimpleNamespace(steps=SimpleNamespace(count=0))
    recorder, exchange = RankRecorder.__new__(RankRecorder), DdpExchange(script, None)
    recorder.script, recorder._state = script, State(rank=0)
    logger = SimpleNamespace(set_runtime_stats_and_log=refused)
    model = type("Model", (), {"logger": logger, "device_type": "cuda"})
    exchange.models[model] = DdpRecord("train.py:1", None)
    here.is_initialized = here.is_capturing = True
    recorder.on_input(torch.ones(2, device=CUDA))
    exchange.backward(lambda: None)
    assert (recorder._state.rows, exchange._step.is_read) == ({}, False)


def of_a_script(precision):
    Script.set_process(SimpleNamespace(toggles={"fp32_precision": precision}))


def of_a_training(precision):
    next(train(Recipe(batch_size=8, fp32_precision=precision), Toy(), CUDA))


@pytest.mark.parametrize("set_precision", [of_a_script, of_a_training])
def test_strict_float32_leaves_the_older_flag_readable(set_precision):  # 4.18
    torch.backends.cudnn.allow_tf32 = True
    for precision, allowed in (("ieee", False), ("tf32", True)):
        set_precision(precision)
        assert torch.backends.cudnn.allow_tf32 == allowed


def test_facts_are_those_of_the_device_and_not_of_the_current_one(monkeypatch):  # 4.20
    asked = []
    properties = torch.cuda.get_device_properties
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: asked.append(device) or properties(device)
    )
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: 1 / 0)
    assert checks.facts(CUDA).bf16 is True
    assert asked == [CUDA]
    assert checks.facts(CUDA).uuid == f"GPU-{double.UUID}"


@pytest.mark.parametrize(("hip", "major", "has"), [(None, 8, True), (None, 7, False), ("6.4", 9, False)])
def test_tf32_is_in_effect_only_where_the_device_has_it(monkeypatch, hip, major, has):  # 4.24
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(major=major))
    monkeypatch.setattr(torch.cuda, "is_tf32_supported", lambda: False)
    for part in checks.FP32_PARTS:
        part.fp32_precision = "tf32"
    value, evidence = View(device=CUDA).fp32_precision()
    assert value == ("tf32" if has else None)
    assert ("does not compute in TF32" in evidence) != has


def test_a_prefetched_batch_is_waited_for_and_kept_for_the_stream_that_reads_it(here):
    batches = prefetched(iter([[torch.zeros(2).pin_memory()], [torch.ones(2).pin_memory()]]), CUDA)
    first = next(batches)
    assert first[0].device.type == "cuda"
    assert [stream for _, stream in here.recorded_streams] == [torch.cuda.current_stream()]
    assert torch.equal(next(batches)[0].cpu(), torch.ones(2))
    assert next(batches, None) is None


def test_memory_of_a_step_is_the_allocator_s():
    from perfkit.additions import inside

    report = session().answer(inside.MEMORY, {})
    assert report.parts["weights"] and report.peak
    assert report.peak <= report.allocated <= report.reserved


def test_the_host_is_ahead_of_the_device_until_it_waits(clock):
    double.work(0.05)
    assert clock == [100.0]
    checks.synchronize(CUDA)
    assert clock == [100.05]


def test_an_accelerator_that_records_no_times_is_waited_for(monkeypatch, clock):
    def no_event(device):
        raise NotImplementedError("this backend has no events")

    monkeypatch.setattr(timeline, "timing_event", no_event)
    ends = timeline.Timeline(CUDA, lambda: clock[0])
    double.work(0.05)
    ends.mark()
    assert not ends.has_events and ends.step_s() == [pytest.approx(0.05)]
