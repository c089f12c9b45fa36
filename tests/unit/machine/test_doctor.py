import types

import pytest

from perfkit.machine import Check, checkup, computer, doctor, facts
from perfkit.machine.devices import Found
from tests.unit.machine.conftest import files


def check(name):
    return next(found for found in checkup() if found.name == name)


def test_every_check_says_something_and_every_fault_has_a_remedy():
    checks = checkup()
    names = "torch|Jupyter|cores|memory|/dev/shm|GPU|bf16 on the CPU|compiler|data folder"
    assert [check.name for check in checks] == names.split("|")
    assert all(check.detail and (check.remedy or check.status == "ok") for check in checks)
    assert check("torch").status == "ok"


@pytest.mark.parametrize(
    ("vision", "error", "words"),
    [(None, "", "torchvision missing"), ("0.29.2", "no libcudart", "it cannot be imported: no libcudart")],
)
def test_without_a_torch_that_works_nothing_can_be_measured(monkeypatch, accelerators, vision, error, words):
    accelerators()
    monkeypatch.setattr(doctor.devices, "ask_torch", lambda: Found(imported=not error, error=error))
    monkeypatch.setattr(doctor, "version", {"torch": "2.15.0", "torchvision": vision}.get)
    found = check("torch")
    assert found.status == "problem" and words in found.detail


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
