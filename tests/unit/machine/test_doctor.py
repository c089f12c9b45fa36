import types

import pytest

from perfkit.machine import Check, checkup, computer, doctor, facts
from perfkit.machine.devices import Found
from tests.unit.machine.conftest import files


def check(name):
    return next(found for found in checkup() if found.name == name)


def test_every_check_says_something_and_every_fault_has_a_remedy():
    checks = checkup()
    names = "Python|torch|Jupyter|cores|memory|/dev/shm|GPU|bf16 on the CPU|compiler|data folder"
    assert [check.name for check in checks] == names.split("|")
    assert all(check.detail and (check.remedy or check.status == "ok") for check in checks)
    assert check("torch").status == "ok"


@pytest.mark.parametrize(
    ("torch", "vision", "words"),
    [
        ("2.15.0", "0.29.2", "it cannot be imported: libcudart is missing"),
        (None, "0.29.2", "torch missing"),
        ("2.15.0", None, "torchvision missing"),
        ("2.10.1", "0.29.2", "perfkit needs torch 2.11"),
        ("2.13.0", "0.29.2", "torchvision needs torch"),
    ],
)
def test_a_pair_of_torch_and_torchvision_that_does_not_fit(monkeypatch, torch, vision, words):
    monkeypatch.setattr(doctor, "version", {"torch": torch, "torchvision": vision}.get)
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: ["numpy", "torch>=2.14.0"])
    found = doctor._torch(Found(error="libcudart is missing"))
    assert found.status == "problem"
    assert words in found.detail


@pytest.mark.parametrize(
    ("changed", "name", "status", "words"),
    [
        ({"shm_bytes": 64 * 1024**2}, "/dev/shm", "warning", "--shm-size"),
        ({"shm_bytes": None}, "/dev/shm", "ok", "n/a"),
        ({"memory_bytes": 1024**3}, "memory", "warning", "close other programs"),
        ({"cpu": {"flags": [], "model": "old"}}, "bf16 on the CPU", "ok", "slower"),
    ],
)
def test_what_a_machine_lacks_is_named(monkeypatch, accelerators, changed, name, status, words):
    accelerators()
    machine = facts() | changed
    monkeypatch.setattr(computer, "facts", lambda: machine)
    found = check(name)
    assert found.status == status
    assert words in f"{found.detail} {found.remedy}"


def test_the_gpu_check_tells_its_cases_apart(root, monkeypatch):
    none = {"gpus": [], "driver": None}
    some = {"gpus": [{"name": "T4"}], "driver": "470"}
    assert doctor._gpu(none, Found()).status == "ok"
    assert "n/a" in doctor._gpu(none, Found()).detail
    files(root, {"dev/nvidiactl": ""})
    assert "--gpus all" in doctor._gpu(none, Found()).remedy
    monkeypatch.setattr(computer, "torch_build", dict)
    assert "built for the CPU" in doctor._gpu(some, Found()).remedy
    monkeypatch.setattr(computer, "torch_build", lambda: {"cuda": "13.2"})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "the driver is too old" in doctor._gpu(some, Found(error="the driver is too old")).remedy
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert "unset it" in doctor._gpu(some, Found()).remedy
    assert doctor._gpu(some, Found(["H200"])) == Check("GPU", "H200, driver 470")


def test_a_data_folder_that_cannot_be_written_or_is_full(monkeypatch, tmp_path):
    monkeypatch.setenv("PERFKIT_DATA", str(tmp_path / "not" / "yet"))
    assert doctor._data().status == "ok"
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=10))
    assert doctor._data().status == "warning"
    files(tmp_path, {"file": ""})
    monkeypatch.setenv("PERFKIT_DATA", str(tmp_path / "file" / "data"))
    assert doctor._data().status == "problem"
