import math
import os
import types

import pytest

from perfkit import machine
from perfkit.additions.doctor import checkup
from perfkit.machine import cores, devices
from perfkit.machine.devices import Accelerators
from tests.unit.machine.conftest import files, root

__all__ = ["root"]


@pytest.fixture
def accelerators(monkeypatch):
    """A machine without a GPU, whose torch is asked nothing."""
    monkeypatch.setattr(devices, "ask_torch", lambda: Accelerators(imported=True))


@pytest.mark.parametrize(
    ("affinity", "quota", "report"),
    [
        (8, math.inf, "8 of 8 visible cores usable"),
        (8, 0.5, "1 of 8 visible cores usable, by a cgroup quota of 0.5"),
        (3, 16.0, "3 of 8 visible cores usable"),
    ],
)
def test_usable_cores_obey_mask_and_quota_and_say_so(monkeypatch, affinity, quota, report):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(affinity)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(cores, "quota", lambda: (quota, None))
    assert checkup._cores() == report


def check(name):
    return next(found for found in checkup.checkup() if found.name == name)


@pytest.mark.integration
def test_every_check_says_something_and_every_fault_has_a_remedy():
    checks = checkup.checkup()
    names = "torch|Jupyter|cores|memory|/dev/shm|GPU|bf16 on the CPU|compiler|data folder"
    assert [check.name for check in checks] == names.split("|")
    assert all(check.detail and (check.remedy or check.status == "green") for check in checks)
    assert check("torch").status == "green"


@pytest.mark.parametrize(
    ("vision", "error", "words"),
    [(None, "", "torchvision missing"), ("0.29.2", "no libcudart", "it cannot be imported: no libcudart")],
)
def test_without_a_torch_that_works_nothing_can_be_measured(monkeypatch, accelerators, vision, error, words):
    monkeypatch.setattr(devices, "ask_torch", lambda: Accelerators(imported=not error, error=error))
    monkeypatch.setattr(machine, "version", {"torch": "2.15.0", "torchvision": vision}.get)
    found = check("torch")
    assert found.status == "red" and words in found.detail


@pytest.mark.parametrize(
    ("changed", "name", "status", "words"),
    [
        ({"shm_bytes": 64 * 1024**2}, "/dev/shm", "amber", "--shm-size"),
        ({"shm_bytes": None}, "/dev/shm", "green", "n/a"),
        ({"cpu": {"flags": [], "model": "old"}}, "bf16 on the CPU", "green", "slower"),
    ],
)
def test_what_a_machine_lacks_is_named(monkeypatch, accelerators, changed, name, status, words):
    here = machine.facts() | changed
    monkeypatch.setattr(machine, "facts", lambda: here)
    found = check(name)
    assert found.status == status
    assert words in f"{found.detail} {found.remedy}"


def test_memory_in_a_container_is_what_is_left_of_its_limit(root, accelerators):
    """docker run -m 4g with 3.6 GiB in use, of which 0.1 GiB are cached files."""
    group = {"proc/self/cgroup": "0::/box\n", "sys/fs/cgroup/box/memory.max": str(4 * 1024**3)}
    used = {"sys/fs/cgroup/box/memory.current": str(round(3.6 * 1024**3))}
    files(root, group | used | {"sys/fs/cgroup/box/memory.stat": f"inactive_file {round(0.1 * 1024**3)}\n"})
    found = check("memory")
    assert found.detail.endswith(" 0.5 GiB available") and found.status == "amber"
    assert "close other programs" in found.remedy


def test_instructions_that_a_system_does_not_list_are_not_denied(root, monkeypatch, accelerators):
    here = machine.facts() | {"cpu": {"flags": [], "model": "Apple M3"}}
    monkeypatch.setattr(machine, "facts", lambda: here)
    assert check("bf16 on the CPU").detail.startswith("not known: this system does not list")
    files(root, {"proc/cpuinfo": "flags : sse2\n"})
    assert check("bf16 on the CPU").detail.startswith("no instructions for it")


def test_the_gpu_check_tells_its_cases_apart(root, monkeypatch):
    none = {"gpus": [], "driver": None}
    some = {"gpus": [{"name": "T4"}], "driver": "470"}
    assert checkup._gpu(none, Accelerators()).status == "green"
    assert "n/a" in checkup._gpu(none, Accelerators()).detail
    files(root, {"dev/nvidiactl": ""})
    assert "--gpus all" in checkup._gpu(none, Accelerators()).remedy
    monkeypatch.setattr(machine, "torch_build", dict)
    assert "built for the CPU" in checkup._gpu(some, Accelerators()).remedy
    monkeypatch.setattr(machine, "torch_build", lambda: {"cuda": "13.2"})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "the driver is too old" in checkup._gpu(some, Accelerators(error="the driver is too old")).remedy
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert "unset it" in checkup._gpu(some, Accelerators()).remedy
    assert checkup._gpu(some, Accelerators(["H200"])) == checkup.HealthCheck("GPU", "H200, driver 470")
    monkeypatch.setattr("platform.release", lambda: "5.15.167.4-microsoft-standard-WSL2")
    assert "Windows programs is not visible" in checkup._gpu(some, Accelerators(["H200"])).detail


def test_a_data_folder_that_cannot_be_written_or_is_full(monkeypatch, tmp_path):
    monkeypatch.setenv("PERFKIT_DATA", str(tmp_path / "not" / "yet"))
    assert checkup._data().status == "green"
    monkeypatch.setattr(checkup.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=10))
    assert checkup._data().status == "amber"
    files(tmp_path, {"file": ""})
    monkeypatch.setenv("PERFKIT_DATA", str(tmp_path / "file" / "data"))
    assert checkup._data().status == "red"
    monkeypatch.setenv("PERFKIT_DATA", str(tmp_path / ("long" * 99)))  # as one that may not be looked at
    assert checkup._data().name == "data folder"
