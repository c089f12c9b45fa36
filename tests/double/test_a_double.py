"""The double fails where a GPU would fail; what works under it proves that code runs, not that it is right."""

import inspect
import warnings

import pytest
import torch

from perfkit.machine import facts, gpus
from tests.support import double

CUDA = torch.device("cuda")
REAL_EVENT, REAL_STREAM = torch.cuda.Event, torch.cuda.Stream
pytestmark = pytest.mark.usefixtures("here")


def timed_event(device="cuda"):
    return torch.Event(device, enable_timing=True)


def test_names_and_arguments_are_torch_s_own():
    for call in (
        lambda: torch.cuda.Event(timing=True),
        lambda: torch.accelerator.synchronize(device=CUDA),  # positional only
        lambda: torch.cuda.max_memory_allocated(CUDA, 1),
        lambda: torch.cuda.get_device_properties(CUDA, 1, 2),
    ):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(AttributeError):
        torch.cuda.wait_for_everything()
    for device in ("cuda:1", torch.device("cuda", 1)):
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.accelerator.synchronize(device)
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.zeros(1, device=device)


def test_events_and_streams_have_torch_s_own_arguments_and_methods():
    arguments = inspect.signature(REAL_EVENT.__new__).parameters
    assert [*inspect.signature(double.CudaEvent).parameters] == [*arguments][1:]
    for fake, real in (
        (double.CudaEvent, REAL_EVENT),
        (double.Event, REAL_EVENT),
        (double.Stream, REAL_STREAM),
    ):
        methods = {name for name, value in vars(fake).items() if callable(value) and name[0] != "_"}
        assert methods - {"work", "now", "is_capturing"} <= {*dir(real)}


def test_an_event_must_be_recorded_and_complete(clock):
    first, last = timed_event(), torch.cuda.Event(enable_timing=True)
    first.record()
    with pytest.raises(ValueError, match="must be recorded"):
        first.elapsed_time(last)
    double.work(0.02)
    last.record()
    with pytest.raises(RuntimeError, match="must be completed"):
        first.elapsed_time(last)
    torch.accelerator.synchronize(CUDA)
    assert first.elapsed_time(last) == pytest.approx(20)
    with pytest.raises(ValueError, match="enable_timing"):
        first.elapsed_time(torch.Event("cuda"))


def test_streams_have_clocks_of_their_own(clock):
    side, ends = torch.Stream(CUDA), [timed_event(), timed_event()]
    with side:
        double.work(2.0)
        ends[0].record()
    ends[1].record()
    assert not side.query()
    assert torch.cuda.current_stream().query()
    torch.cuda.current_stream().wait_stream(side)
    torch.accelerator.synchronize(CUDA)
    assert clock == [102.0]
    assert ends[0].elapsed_time(ends[1]) == -2000, (
        "the host's stream had nothing to do when its event was recorded"
    )


def test_a_capture_forbids_waiting(here):
    here.is_capturing = True
    assert torch.cuda.is_current_stream_capturing()
    for call in (lambda: torch.accelerator.synchronize(CUDA), lambda: timed_event().record()):
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            call()


def test_tensors_say_where_they_are_and_memory_has_a_peak(here):
    host = torch.ones(1000)
    there = host.to("cuda")
    assert [host.device.type, there.device.type, (there * 2).device.type] == ["cpu", "cuda", "cuda"]
    assert there.cpu().device.type == "cpu"
    assert torch.cuda.memory_allocated() == 4000
    large = torch.zeros(10_000, device=CUDA)
    del large
    assert (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(CUDA)) == (4000, 44_000)
    torch.cuda.reset_peak_memory_stats(CUDA)
    assert torch.accelerator.max_memory_allocated(CUDA) == 4000
    assert torch.cuda.max_memory_reserved() >= 44_000


def test_only_memory_of_the_gpu_belongs_to_streams(here):
    with pytest.raises(AssertionError):
        torch.ones(1).record_stream(torch.Stream(CUDA))
    torch.ones(1).pin_memory().to("cuda").record_stream(torch.Stream(CUDA))
    assert len(here.recorded_streams) == 1


def test_the_sync_debug_mode_warns_from_inside_the_call():
    values = torch.ones(3).to("cuda")
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        values.sum().item()
        values.nonzero()
        torch.ones(1).to("cuda")
        torch.ones(1).pin_memory().to("cuda", non_blocking=True)
        torch.ones(3).sum().item()
    assert [str(warning.message) for warning in seen] == ["called a synchronizing CUDA operation"] * 3
    assert {warning.filename for warning in seen} == {__file__}


def test_half_precision_and_its_scaler_run():
    model = torch.nn.Linear(4, 2).to(CUDA)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    with torch.autocast("cuda", torch.float16):
        assert torch.is_autocast_enabled("cuda")
        loss = model(torch.ones(3, 4, device="cuda")).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert (loss.dtype, scaler.get_scale()) == (torch.float16, 1024.0)
    assert model.weight.grad.device.type == "cuda"


def test_nvml_has_one_gpu_that_says_what_it_is():
    (card,) = facts()["gpus"]
    assert card["name"] == double.NAME
    assert card["uuid"] == f"GPU-{double.UUID}"
    assert gpus.free_gpu_bytes(card["uuid"]) == 12 << 30
    with pytest.raises(TypeError):
        gpus._nvml().nvmlDeviceGetUUID()
