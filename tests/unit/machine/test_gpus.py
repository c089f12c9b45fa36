"""GPUs as NVML reports them; without it there are none, and no error."""

import functools
import os
import sys
import threading
import types

import pytest

from perfkit.machine import facts, gpus
from perfkit.machine.cores import read_conditions

BROKEN = types.SimpleNamespace(nvmlInit=lambda: 1 / 0)


def fake_nvml(**more):
    """pynvml with one GPU; what is missing from it raises, as on a device that lacks it."""
    plain = {
        "Init": None, "SystemGetDriverVersion": b"580.1", "DeviceGetCount": 1,
        "DeviceGetHandleByIndex": "card", "DeviceGetName": b"NVIDIA H200", "DeviceGetUUID": "GPU-1",
        "DeviceGetMemoryInfo": types.SimpleNamespace(total=1000, free=10),
        "DeviceGetPowerManagementLimit": 700_000, **more,
    }  # fmt: skip
    calls = {name: value if callable(value) else lambda *_, it=value: it for name, value in plain.items()}
    return types.SimpleNamespace(**{f"nvml{name}": call for name, call in calls.items()})


@pytest.fixture
def card(monkeypatch):
    """Puts a module in the place of pynvml."""

    def put(module):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        monkeypatch.setattr(gpus, "_nvml", functools.cache(gpus._nvml.__wrapped__))
        facts.cache_clear()

    yield put
    facts.cache_clear()


def test_a_gpu_is_described_and_what_it_does_not_tell_is_none(card):
    running = [types.SimpleNamespace(pid=pid, usedGpuMemory=5) for pid in (os.getpid(), 999_999)]
    reasons = {"DeviceGetCurrentClocksThrottleReasons": 0x1 | 0x4 | 0x40}
    card(fake_nvml(DeviceGetComputeRunningProcesses=running, **reasons))
    gpu = {"name": "NVIDIA H200", "uuid": "GPU-1", "memory_bytes": 1000, "power_limit_w": 700.0}
    assert (facts()["driver"], facts()["gpus"]) == ("580.1", [gpu])
    (now,) = read_conditions()["gpus"]
    assert now["throttle_reasons"] == ["power cap", "hardware thermal slowdown"]
    assert now["other_processes"] == [{"pid": 999_999, "memory_bytes": 5}]
    assert now["power_w"] is None


@pytest.mark.parametrize("module", [None, types.SimpleNamespace(), BROKEN])
def test_without_nvml_there_are_no_gpus_and_no_noise(card, module, recwarn):
    card(module)  # None makes `import pynvml` fail
    assert facts()["gpus"] == read_conditions()["gpus"] == []
    assert gpus.free_gpu_bytes("GPU-1") is None
    assert not recwarn.list


def test_process_ids_are_known_outside_containers_only(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    for number, known in ((4026531836, True), (4026532999, False)):
        monkeypatch.setattr(gpus.os, "readlink", lambda path, number=number: f"pid:[{number}]")
        assert gpus.pids_known() is known


def named(**more):
    """One GPU that is found by name, never by index."""
    by_name = {"GPU-1": "card"}.__getitem__
    return fake_nvml(DeviceGetHandleByIndex=pytest.fail, DeviceGetHandleByUUID=by_name, **more)


def test_samples_come_in_order_from_the_device_of_that_name(card):
    figures, enough = iter(range(1, 10_000_000)), threading.Event()

    def read(handle):
        if (figure := next(figures)) > 6:
            enough.set()
        return types.SimpleNamespace(gpu=figure if handle == "card" else -1)

    card(named(DeviceGetUtilizationRates=read))
    with gpus.sample_utilization("GPU-1", period_s=0) as samples:
        assert enough.wait(60)
    assert samples == list(range(1, len(samples) + 1))  # none lost, none twice


@pytest.mark.parametrize("device", [None, "GPU-2", "GPU-1"])
def test_without_the_device_or_what_it_reports_there_are_no_samples_and_no_thread_is_left(card, device):
    card(named())
    before = threading.active_count()
    with pytest.raises(KeyError), gpus.sample_utilization(device, period_s=0) as samples:
        raise KeyError
    assert samples == []
    assert threading.active_count() == before


@pytest.mark.parametrize(("own", "share"), [((7, 8), 0.0), ((7,), 0.3), ((), 0.6)])
def test_the_part_of_a_gpu_that_others_use(own, share, card, monkeypatch):
    used = [types.SimpleNamespace(pid=pid, smUtil=percent) for pid, percent in ((7, 60), (8, 30))]
    card(named(DeviceGetProcessUtilization=lambda handle, since_us: used if since_us == 2_000_000 else []))
    monkeypatch.setattr(gpus, "pids_known", lambda: True)
    assert gpus.taken_gpu_share("GPU-1", 2.0, own) == share
    assert gpus.taken_gpu_share(None, 2.0, own) == 0.0
    monkeypatch.setattr(gpus, "pids_known", lambda: False)
    assert gpus.taken_gpu_share("GPU-1", 2.0, own) == 0.0, "ours cannot be told from others'"


def of_names(*names, **more):
    """NVML with GPUs of these names: GPU-0, GPU-1 …"""
    return fake_nvml(
        DeviceGetCount=len(names),
        DeviceGetHandleByIndex=lambda index: index,
        DeviceGetName=lambda card: names[card],
        DeviceGetUUID=lambda card: f"GPU-{card}",
        DeviceGetHandleByUUID=lambda uuid: int(uuid.removeprefix("GPU-")),
        **more,
    )


def test_cuda_s_numbers_are_nvml_s_only_where_the_order_is_known(card, monkeypatch):
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    card(of_names("T4", "T4"))
    assert gpus.uuids("1") == ["GPU-1"]
    card(of_names("T4", "H100"))
    assert gpus.uuids("0") == ["GPU-0", "GPU-1"], "CUDA puts the fastest first"
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert gpus.uuids("0") == ["GPU-0"]
    for visible, found in (("1,0", ["GPU-1"]), ("GPU-1", ["GPU-1"]), ("1", ["GPU-1"])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert gpus.uuids("0") == found


def test_a_part_of_a_gpu_is_found_by_its_own_name_and_locks_the_whole(card, monkeypatch):
    handles = {"GPU-0": 0, "MIG-7": "part"}
    whole = {"DeviceGetDeviceHandleFromMigDeviceHandle": {"part": 0}.__getitem__}
    part = types.SimpleNamespace(total=100, free=7)
    module = of_names("H100", **whole)
    module.nvmlDeviceGetHandleByUUID = handles.__getitem__
    module.nvmlDeviceGetMemoryInfo = lambda handle: part if handle == "part" else 1 / 0
    card(module)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-7")
    assert gpus.uuids("0") == ["GPU-0"]
    assert gpus.free_gpu_bytes("GPU-7") == 7, "torch gives a part's identifier without MIG-"


@pytest.mark.parametrize(("mode", "alone"), [(0, False), (3, True), (None, False)])
def test_a_gpu_that_takes_one_process_at_a_time_is_known(card, mode, alone):
    card(of_names("V100", DeviceGetComputeMode=mode))
    assert gpus.holds_one_process("GPU-0") == alone
    assert not gpus.holds_one_process(None)


def test_in_wsl_process_ids_are_those_of_windows(monkeypatch):
    monkeypatch.setattr("platform.release", lambda: "5.15.167.4-microsoft-standard-WSL2")
    assert gpus.in_wsl() and not gpus.pids_known()


def test_a_gpu_that_nvml_does_not_know_is_part_of_the_machine(card, tmp_path, monkeypatch):
    card(None)
    without = facts()["id"]
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvhost-gpu").touch()
    monkeypatch.setattr("perfkit.machine.cores.ROOT", tmp_path)
    cpu = facts()["cpu"]
    monkeypatch.setattr("perfkit.machine._cpu", lambda: cpu)
    facts.cache_clear()
    assert facts()["nodes"] == ["nvhost-gpu"]
    assert facts()["id"] != without
