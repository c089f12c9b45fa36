import os
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest

from perfkit.machine import monitor
from perfkit.machine.monitor import GpuMonitor, Sample, process_tree, rss_of


class FakeNvml:
    """pynvml with one GPU, which tells when it was asked and gives a new figure each time."""

    def __init__(self, lacks: tuple[str, ...] = ()) -> None:
        self.lacks = lacks
        self.asked = threading.Semaphore(0)
        self.figures: Iterator[int] = iter(range(1, 10_000_000))
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
        self.asked.release()
        if "utilization" in self.lacks:
            raise RuntimeError("not supported")
        return types.SimpleNamespace(gpu=next(self.figures))

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        if "memory" in self.lacks:
            raise RuntimeError("not supported")
        return types.SimpleNamespace(used=77)

    def wait(self, times: int) -> None:
        for _ in range(times):
            assert self.asked.acquire(timeout=10)


@pytest.mark.parametrize("device", ["GPU-1", "1", "00000000:01:00.0"])
def test_samples_come_in_order_from_the_device_of_that_name(device: str) -> None:
    nvml = FakeNvml()
    with GpuMonitor(device, period_s=0, module=nvml) as watching:
        nvml.wait(3)
        first = watching.take()
        nvml.wait(3)
    samples = first + watching.take()
    figures = [sample.utilization for sample in samples]
    assert figures == list(range(1, len(figures) + 1))  # none lost, none twice
    assert len(figures) >= 6
    assert {sample.memory_bytes for sample in samples} == {77}
    assert [s.at_s for s in samples] == sorted(s.at_s for s in samples)
    assert watching.take() == []
    assert nvml.shut_down == 1


@pytest.mark.parametrize("device", [None, "GPU-2", "0"])
def test_without_the_device_there_are_no_samples_and_no_thread(device: str | None) -> None:
    nvml = FakeNvml()
    before = threading.active_count()
    with GpuMonitor(device, module=nvml) as watching:
        assert threading.active_count() == before
    assert watching.take() == []


def test_without_nvml_there_are_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "opened", lambda: None)
    with GpuMonitor("GPU-1") as watching:
        pass
    assert watching.take() == []


def test_what_a_device_does_not_tell_is_none_and_not_zero() -> None:
    nvml = FakeNvml(lacks=("utilization", "memory"))
    with GpuMonitor("GPU-1", period_s=0, module=nvml) as watching:
        nvml.wait(1)
    sample = watching.take()[0]
    assert (sample.utilization, sample.memory_bytes) == (None, None)


def test_no_thread_is_left_also_after_an_error() -> None:
    before = threading.active_count()
    with pytest.raises(KeyError), GpuMonitor("GPU-1", module=FakeNvml()):
        raise KeyError
    assert threading.active_count() == before


def test_it_can_be_started_twice_and_stopped_twice() -> None:
    nvml = FakeNvml()
    watching = GpuMonitor("GPU-1", module=nvml)
    watching.start()
    thread = watching._thread
    watching.start()
    assert watching._thread is thread
    watching.stop()
    watching.stop()
    assert nvml.shut_down == 1
    assert all(isinstance(sample, Sample) for sample in watching.take())


def test_resident_memory_and_the_tree_of_a_process() -> None:
    rss = rss_of(os.getpid())
    assert rss is not None
    assert rss > 1_000_000
    assert process_tree(os.getpid())[0] == os.getpid()


def test_a_process_that_has_ended_has_neither() -> None:
    no_such = 2**22 + 1  # above the kernel's highest process id
    assert rss_of(no_such) is None
    assert process_tree(no_such) == []
