"""Measurements on one device take turns, whatever it is called."""

import pytest

from perfkit import machine
from perfkit.machine import gpus
from perfkit.process.locks import EVERYTHING, lock_folder, lock_names


def test_shells_with_folders_of_their_own_for_temporary_files_exclude_each_other(monkeypatch, tmp_path):
    monkeypatch.delenv("PERFKIT_LOCKS")
    usual = lock_folder()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert lock_folder() == usual


@pytest.mark.parametrize(
    ("device", "names"),
    [
        ("cpu", ["cores"]),
        ("sim:v100", ["cores"]),
        ("cuda", ["cores", "GPU-b"]),
        ("cuda:0", ["cores", "GPU-b"]),
        ("cuda:1", ["cores", "GPU-a", "GPU-b"]),  # of several kinds it may be any (`gpus.uuids`)
        ("cuda:7", ["cores", "gpu-7"]),
        (EVERYTHING, ["cores", "GPU-a", "GPU-b"]),
    ],
)
def test_whoever_trains_on_a_gpu_holds_it_and_the_cores_that_load_for_it(monkeypatch, device, names):
    known = {"0": ["GPU-b"], "1": ["GPU-b", "GPU-a"]}
    monkeypatch.setattr(machine, "facts", lambda: {"gpus": [{"uuid": "GPU-b"}, {"uuid": "GPU-a"}]})
    monkeypatch.setattr(gpus, "uuids", lambda index: known.get(index, []))
    assert lock_names(device) == names
