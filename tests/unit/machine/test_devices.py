import subprocess
import sys

import pytest

from perfkit import machine
from perfkit.errors import InvalidValue
from perfkit.machine import devices
from perfkit.machine.devices import Accelerators
from tests.unit.machine.conftest import files


@pytest.fixture
def accelerators(monkeypatch):
    """Sets what torch finds on this machine."""

    def set_answer(cuda=0, mps=False, error=""):
        found = Accelerators(cuda=["H200"] * cuda, mps=mps, error=error, imported=True)
        monkeypatch.setattr(devices, "_may_have_accelerator", lambda: True)
        monkeypatch.setattr(devices, "ask_torch", lambda: found)

    return set_answer


def test_without_a_device_node_torch_is_not_even_asked(root, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(machine, "facts", lambda: {"gpus": []})
    monkeypatch.setattr(machine, "torch_build", lambda: {"cuda": "13.2"})
    assert not devices._may_have_accelerator()
    files(root, {"dev/kfd": ""})
    assert devices._may_have_accelerator()
    monkeypatch.setattr(machine, "torch_build", dict)  # built for the CPU: nothing to ask
    assert not devices._may_have_accelerator()


@pytest.mark.parametrize(
    ("printed", "said", "code", "found"),
    [
        ('noise\n{"cuda": ["x"], "imported": true}\n', "", 0, Accelerators(["x"], imported=True)),
        ("{}\n", "UserWarning: an old driver\n", 0, Accelerators(error="UserWarning: an old driver")),
        ("", "ModuleNotFoundError: torch\n", 1, Accelerators(error="ModuleNotFoundError: torch")),
        ("", "", -11, Accelerators(error="torch's process ended with -11")),
    ],
)
def test_what_torch_says_is_taken_from_a_child(monkeypatch, printed, said, code, found):
    done = subprocess.CompletedProcess([], code, printed, said)
    monkeypatch.setattr(devices.subprocess, "run", lambda *_, **more: done)
    assert devices.ask_torch.__wrapped__() == found


def test_cuda_is_better_than_mps_is_better_than_cpu(accelerators):
    for found, device in [({"cuda": 1, "mps": True}, "cuda"), ({"mps": True}, "mps"), ({}, "cpu")]:
        accelerators(**found)
        assert devices.check_device(None) == device


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cuda:2", "no device 'cuda:2' here (CUDA_VISIBLE_DEVICES is '0,1'). Available: cuda:0, cuda:1, cpu"),
        ("mps", "torch finds no device 'mps' here"),
        ("cuda:", "unknown device 'cuda:'. Did you mean 'cuda'? Allowed: cuda, mps, cpu (or cuda:1"),
    ],
)
def test_a_device_that_is_not_there_is_one_clear_message(accelerators, monkeypatch, name, words):
    accelerators(cuda=2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(InvalidValue) as caught:
        devices.check_device(name)
    assert words in str(caught.value)
    assert [devices.check_device(there) for there in ("cpu", "cuda", "cuda:1")] == ["cpu", "cuda", "cuda:1"]


@pytest.mark.parametrize(
    ("device", "there", "variables", "problem"),
    [
        ("cpu", "g++", {}, ""),
        ("cuda", "g++", {"CC": "g++"}, "Triton is missing"),
        ("cpu", "clang++", {}, "no compiler (g++): install it, or set CXX"),
        ("cpu", "g++", {"CXX": "icpx"}, "no compiler (icpx)"),
        ("cpu", "g++", {"CXX": '"g++'}, "no compiler (CXX cannot be read as a command): correct it"),
        ("cuda:1", "g++", {}, "no compiler (gcc or clang)"),
    ],
)
def test_the_compiler_is_the_one_that_torch_takes(monkeypatch, tmp_path, device, there, variables, problem):
    files(tmp_path, {"Python.h": ""})
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(devices.shutil, "which", lambda name: name == there)
    spec = None if "Triton" in problem else "found"
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(devices.sysconfig, "get_path", lambda *scheme: str(tmp_path))
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    lacking = devices.compiler_problem(device)
    assert problem in lacking
    assert bool(lacking) == bool(problem)
