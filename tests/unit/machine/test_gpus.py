import os
import sys
import threading
import types
from collections.abc import Iterable
from typing import Any

import pytest

from perfkit.machine import (
    facts,
    gpus,
    read_conditions,
)
from tests.unit.machine.conftest import FakeNvml


def test_a_gpu_is_described_and_what_it_does_not_tell_is_none(card: Any) -> None:
    card(FakeNvml())
    assert facts()["driver"] == "580.1"
    assert facts()["gpus"] == [
        {
            "name": "NVIDIA H200",
            "uuid": "GPU-1",
            "pci": "00000000:01:00.0",
            "memory_bytes": 1000,
            "driver": "580.1",
            "power_limit_w": 700.0,
            "max_sm_clock_mhz": None,
        }
    ]


def test_conditions_of_a_gpu_are_in_words_and_leave_out_ones_own_processes(card: Any) -> None:
    card(FakeNvml(reasons=0x1 | 0x4 | 0x40, pids=(os.getpid(), 999_999)))
    (now,) = read_conditions()["gpus"]
    assert now["throttle_reasons"] == ["power cap", "hardware thermal slowdown"]
    assert now["other_processes"] == [{"pid": 999_999, "memory_bytes": 5}]
    assert now["power_w"] is None


@pytest.mark.parametrize(
    "module", [None, types.SimpleNamespace(), types.SimpleNamespace(nvmlInit=lambda: 1 / 0)]
)
def test_without_nvml_there_are_no_gpus_and_no_noise(
    card: Any, module: Any, recwarn: pytest.WarningsRecorder
) -> None:
    card(module)  # None makes `import pynvml` fail
    assert facts()["gpus"] == read_conditions()["gpus"] == []
    with gpus.nvml() as opened:
        assert opened is None
    assert not recwarn.list


def test_nvml_is_shut_down_also_after_an_error(card: Any) -> None:
    ended = []
    module = FakeNvml()
    module.nvmlShutdown = lambda: ended.append(True)  # type: ignore[method-assign]
    card(module)
    with pytest.raises(KeyError), gpus.nvml():
        raise KeyError
    assert ended == [True]


def test_process_ids_are_known_outside_containers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(gpus.os, "readlink", lambda path: "pid:[4026531836]")
    assert gpus.pids_known()
    monkeypatch.setattr(gpus.os, "readlink", lambda path: "pid:[4026532999]")
    assert not gpus.pids_known()


class Sampled(FakeNvml):
    """One GPU whose utilization is another figure each time; it signals when it is read."""

    def __init__(self, figures: Iterable[int] = ()) -> None:
        super().__init__()
        self.reads = threading.Semaphore(0)
        self.figures = iter(figures)
        self.shut_down = 0

    def nvmlShutdown(self) -> None:
        self.shut_down += 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return {"GPU-1": "card"}[uuid]

    def nvmlDeviceGetHandleByPciBusId(self, pci: str) -> str:
        return {"00000000:01:00.0": "card"}[pci]

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        raise AssertionError("never by index")

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        self.reads.release()
        return types.SimpleNamespace(gpu=next(self.figures))  # StopIteration: not supported any more

    def wait(self, reads: int) -> None:
        for _ in range(reads):
            assert self.reads.acquire(timeout=10)


@pytest.mark.parametrize("device", ["GPU-1", "1", "00000000:01:00.0"])
def test_samples_come_in_order_from_the_device_of_that_name(card: Any, device: str) -> None:
    nvml = Sampled(range(1, 10_000_000))
    card(nvml)
    with gpus.sample_utilization(device, period_s=0) as samples:
        nvml.wait(6)
    assert samples == list(range(1, len(samples) + 1))  # none lost, none twice
    assert len(samples) >= 5
    assert nvml.shut_down == 1


@pytest.mark.parametrize(("device", "module"), [(None, Sampled()), ("GPU-2", Sampled()), ("GPU-1", None)])
def test_without_the_device_or_nvml_there_are_no_samples_and_no_thread(
    card: Any, device: str | None, module: Any
) -> None:
    card(module)
    before = threading.active_count()
    with gpus.sample_utilization(device) as samples:
        assert threading.active_count() == before
    assert samples == []


def test_what_a_device_does_not_report_is_left_out_and_not_zero(card: Any) -> None:
    nvml = Sampled()
    card(nvml)
    with gpus.sample_utilization("GPU-1", period_s=0) as samples:
        nvml.wait(2)
    assert samples == []


def test_no_thread_is_left_also_after_an_error(card: Any) -> None:
    card(Sampled([50]))
    before = threading.active_count()
    with pytest.raises(KeyError), gpus.sample_utilization("GPU-1"):
        raise KeyError
    assert threading.active_count() == before


def test_a_process_tree_begins_with_the_process_and_is_empty_after_its_end() -> None:
    assert gpus.process_tree()[0].pid == gpus.process_tree(os.getpid())[0].pid == os.getpid()
    assert gpus.process_tree(2**22 + 1) == []  # above the kernel's highest process id


class Shared(Sampled):
    """A GPU that several processes use: (id, percent of its multiprocessors)."""

    used = ((7, 60), (8, 30))

    def nvmlDeviceGetProcessUtilization(self, handle: str, since_us: int) -> Any:
        assert since_us == 2_000_000
        return [types.SimpleNamespace(pid=pid, smUtil=percent) for pid, percent in self.used]


@pytest.mark.parametrize(("own", "share"), [((7, 8), 0.0), ((7,), 0.3), ((), 0.6)])
def test_the_part_of_a_gpu_that_others_use(
    own: tuple[int, ...], share: float, card: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    card(Shared())
    monkeypatch.setattr(gpus, "pids_known", lambda: True)
    assert gpus.taken_gpu_share("GPU-1", 2.0, own) == share
    assert gpus.taken_gpu_share(None, 2.0, own) == 0.0
    monkeypatch.setattr(gpus, "pids_known", lambda: False)
    assert gpus.taken_gpu_share("GPU-1", 2.0, own) == 0.0, "ours cannot be told from others'"


def test_a_gpu_that_does_not_report_its_processes_is_taken_by_none(
    card: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    card(Sampled())
    monkeypatch.setattr(gpus, "pids_known", lambda: True)
    assert gpus.taken_gpu_share("GPU-1", 2.0, ()) == 0.0
