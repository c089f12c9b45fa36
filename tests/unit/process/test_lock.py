"""Measurements on one device take turns, whatever it is called."""

import pytest

from perfkit import machine
from perfkit.process.locks import EVERYTHING, lock_names


@pytest.mark.parametrize(
    ("device", "visible", "names"),
    [
        ("cpu", None, ["cores"]),
        ("sim:v100", None, ["cores"]),
        ("cuda", None, ["cores", "GPU-b"]),
        ("cuda:0", None, ["cores", "GPU-b"]),
        ("cuda:1", None, ["cores", "GPU-a"]),
        ("cuda", "1", ["cores", "GPU-a"]),
        ("cuda:1", "1,0", ["cores", "GPU-b"]),
        ("cuda", "GPU-a", ["cores", "GPU-a"]),
        ("cuda:7", None, ["cores", "gpu-7"]),
        (EVERYTHING, None, ["cores", "GPU-a", "GPU-b"]),
    ],
)
def test_a_gpu_has_one_lock_by_whatever_name_it_is_called(monkeypatch, device, visible, names):
    facts = {"gpus": [{"uuid": "GPU-b"}, {"uuid": "GPU-a"}]}
    monkeypatch.setattr(machine, "facts", lambda: facts)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert lock_names(device) == names
