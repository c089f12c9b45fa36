"""Machines to order: an empty /proc, /sys and /dev, what torch finds, one GPU in NVML."""

import functools
import sys
import types

import pytest

from perfkit import machine
from perfkit.machine import cores, devices, gpus


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A machine's /proc, /sys and /dev, empty."""
    monkeypatch.setattr(cores, "ROOT", tmp_path)
    return tmp_path


def files(root, texts):
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def accelerators(monkeypatch):
    """Sets what torch finds on this machine."""

    def set_answer(cuda=0, mps=False, error=""):
        found = devices.Found(cuda=["H200"] * cuda, mps=mps, error=error, imported=True)
        monkeypatch.setattr(devices, "_may_have_accelerator", lambda: True)
        monkeypatch.setattr(devices, "ask_torch", lambda: found)

    return set_answer


def fake_nvml(**more):
    """pynvml with one GPU; what is missing from it raises, as on a device that lacks it."""
    plain = {
        "Init": None, "SystemGetDriverVersion": b"580.1", "DeviceGetCount": 1,
        "DeviceGetHandleByIndex": "card", "DeviceGetName": b"NVIDIA H200", "DeviceGetUUID": "GPU-1",
        "DeviceGetMemoryInfo": types.SimpleNamespace(total=1000, free=10),
        "DeviceGetPowerManagementLimit": 700_000,
    } | more  # fmt: skip
    calls = {name: value if callable(value) else lambda *_, it=value: it for name, value in plain.items()}
    return types.SimpleNamespace(**{f"nvml{name}": call for name, call in calls.items()})


@pytest.fixture
def card(monkeypatch):
    """Puts a module in the place of pynvml."""

    def put(module):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        monkeypatch.setattr(gpus, "_nvml", functools.cache(gpus._nvml.__wrapped__))
        machine.facts.cache_clear()

    yield put
    machine.facts.cache_clear()
