"""The facts of this computer, and where files lie on it."""

import os
import sys
from pathlib import Path

import pytest

from perfkit import machine
from tests.unit.machine.conftest import files


def test_the_id_depends_on_what_decides_speed_and_on_nothing_else():
    facts = machine.facts()
    same = facts | {"memory_bytes": facts["memory_bytes"] + 1_000_000, "os": "another"}
    other = facts | {"gpus": [{"name": "H200"}]}
    assert machine.comparable(same) == facts["id"] != machine.comparable(other)


@pytest.mark.parametrize(
    ("text", "model", "flags"),
    [
        ("model name\t: Xeon  8488C\nflags\t\t: fpu avx2 amx_bf16\n", "Xeon 8488C", ["avx2", "amx_bf16"]),
        ("processor\t: 0\nFeatures\t: fp bf16 sve\n", None, ["bf16", "sve"]),  # Arm names no model
    ],
)
def test_the_cpu_is_read_from_the_kernel(root, text, model, flags):
    files(root, {"proc/cpuinfo": text})
    cpu = machine.facts.__wrapped__()["cpu"]
    assert (cpu["flags"], cpu["model"]) == (flags, model or cpu["model"])


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("cuda: Optional[str] = '13.2'\nhip: Optional[str] = None\n", {"cuda": "13.2"}),
        ("cuda = None\nhip = '7.1'\n", {"hip": "7.1"}),
        ("cuda: Optional[str] = None\n", {}),
    ],
)
def test_the_build_of_torch_is_read_as_text(tmp_path, monkeypatch, text, build):
    files(tmp_path, {"torch/__init__.py": "raise RuntimeError", "torch/version.py": text})
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert machine.torch_build() == build


def test_data_lies_where_the_variable_says_or_in_the_checkout_or_in_the_users_folder(monkeypatch):
    monkeypatch.setenv("PERFKIT_DATA", "/mine")
    assert machine.data_folder() == Path("/mine")
    monkeypatch.delenv("PERFKIT_DATA")
    assert machine.data_folder() == Path(__file__).parents[3] / "data"
    monkeypatch.setattr(machine, "checkout", lambda: None)
    monkeypatch.setenv("XDG_DATA_HOME", "/home/me/data")
    assert machine.data_folder() == Path("/home/me/data/perfkit")


def test_a_file_is_written_completely_or_the_old_one_stays(tmp_path, monkeypatch):
    path = tmp_path / "runs.json"
    machine.write_atomically(path, b"first")
    machine.write_atomically(path, b"second")

    def full(handle, content):
        raise OSError("no space left")

    monkeypatch.setattr(machine.Path, "write_bytes", full)
    with pytest.raises(OSError, match="no space"):
        machine.write_atomically(path, b"third")
    assert path.read_bytes() == b"second"
    monkeypatch.undo()
    path.chmod(0o700)
    machine.write_atomically(path, b"second")
    assert path.stat().st_mode & 0o777 == 0o700, "a script stays executable"
    os.mkfifo(pipe := tmp_path / "pipe")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    machine.write_atomically(pipe, b"fourth")
    assert os.read(reader, 9) == b"fourth" and pipe.is_fifo()
    os.close(reader)
    pipe.unlink()
    assert list(tmp_path.iterdir()) == [path]
