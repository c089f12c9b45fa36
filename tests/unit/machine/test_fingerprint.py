import json
import subprocess
import sys
from pathlib import Path

import pytest

from perfkit.machine import (
    describe,
    facts,
    fingerprint,
)
from tests.unit.machine.conftest import files


def test_the_fingerprint_is_plain_data_that_a_caller_cannot_spoil() -> None:
    machine = facts()
    assert json.loads(json.dumps(machine)) == machine
    assert {"id", "os", "python", "versions", "cpu", "memory_bytes", "shm_bytes", "gpus", "driver"} < set(
        machine
    )
    assert {"torch", "torchvision", "numpy"} <= set(machine["versions"])
    assert machine["cpu"]["cores_usable"] >= 1
    machine["cpu"].clear()
    assert facts()["cpu"]


def test_the_id_depends_on_what_decides_speed_and_on_nothing_else() -> None:
    machine = facts()
    assert fingerprint._comparable(machine) == machine["id"]
    same = machine | {"memory_bytes": machine["memory_bytes"] + 1_000_000, "os": "another"}
    other = machine | {"gpus": [{"name": "H200"}]}
    assert fingerprint._comparable(same) == machine["id"] != fingerprint._comparable(other)


@pytest.mark.parametrize(
    ("text", "model", "flags"),
    [
        ("model name\t: Xeon  8488C\nflags\t\t: fpu avx2 amx_bf16\n", "Xeon 8488C", ["avx2", "amx_bf16"]),
        ("processor\t: 0\nFeatures\t: fp bf16 sve\n", None, ["bf16", "sve"]),  # Arm names no model
    ],
)
def test_the_cpu_is_read_from_the_kernel(root: Path, text: str, model: str | None, flags: list[str]) -> None:
    files(root, {"proc/cpuinfo": text})
    cpu = fingerprint._cpu()
    assert cpu["flags"] == flags
    assert cpu["model"] == model if model else cpu["model"]


@pytest.mark.parametrize(
    ("text", "build"),
    [
        (
            "__version__ = '2.15.0+cu132'\ncuda: Optional[str] = '13.2'\nhip: Optional[str] = None\n",
            {"cuda": "13.2"},
        ),
        ("cuda = None\nhip = '7.1'\n", {"hip": "7.1"}),
        ("cuda: Optional[str] = None\n", {}),
    ],
)
def test_the_build_of_torch_is_read_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, build: dict[str, str]
) -> None:
    files(tmp_path, {"torch/__init__.py": "raise RuntimeError", "torch/version.py": text})
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert fingerprint.torch_build() == build


def test_torch_is_not_imported_and_the_import_is_light() -> None:
    script = (
        "import sys; from perfkit import machine as m; m.facts(); m.read_conditions(); m.checkup(); "
        "assert not {'torch', 'matplotlib', 'ipywidgets', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


def test_outside_a_working_tree_there_is_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fingerprint, "checkout", lambda: None)
    assert fingerprint._commit() is None
    monkeypatch.setattr(fingerprint, "checkout", lambda: tmp_path)
    assert fingerprint._commit() is None


def test_a_machine_in_one_line() -> None:
    cpu = {"cores_usable": 1, "model": "Xeon"}
    card = {"name": "H200", "power_limit_w": 700.0}
    machine = {
        "cpu": cpu,
        "memory_bytes": 24 * 1024**3,
        "gpus": [card, {"name": "T4"}],
        "versions": {"torch": "2.15.0"},
    }
    assert describe(machine) == "1 core Xeon · 24 GiB · H200 (700 W), T4 · torch 2.15.0"
    assert describe({}) == "? cores unknown CPU · no GPU · torch –"
