"""Machines to order: an empty /proc, /sys and /dev, what torch finds, one GPU in NVML."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from perfkit.machine import cores, devices, fingerprint


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine's /proc, /sys and /dev, empty."""
    monkeypatch.setattr(cores, "ROOT", tmp_path)
    return tmp_path


def files(root: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def accelerators(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what torch finds on this machine."""

    def set_answer(cuda: int = 0, mps: bool = False, error: str = "") -> None:
        answer = {"cuda": ["H200"] * cuda, "mps": ["Apple GPU"] * mps, "error": error}
        monkeypatch.setattr(devices, "accelerators", lambda: answer)

    return set_answer


class FakeNvml:
    """pynvml with one GPU; what is missing from it raises, as on a device that lacks it."""

    def __init__(self, reasons: int = 0, pids: tuple[int, ...] = ()) -> None:
        self.reasons = reasons
        self.pids = pids

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.1"

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return "card"

    def nvmlDeviceGetName(self, handle: str) -> bytes:
        return b"NVIDIA H200"

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return "GPU-1"

    def nvmlDeviceGetPciInfo(self, handle: str) -> Any:
        return types.SimpleNamespace(busId=b"00000000:01:00.0")

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return types.SimpleNamespace(total=1000, used=10)

    def nvmlDeviceGetPowerManagementLimit(self, handle: str) -> int:
        return 700_000

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        raise RuntimeError("not supported")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return self.reasons

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        return [types.SimpleNamespace(pid=pid, usedGpuMemory=5) for pid in self.pids]


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Any:
    def put(module: Any) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", module)
        fingerprint._facts.cache_clear()

    yield put
    fingerprint._facts.cache_clear()
