"""Measurements on one device take turns, whatever it is called, and the one that waits says so."""

import threading

import pytest

from perfkit import machine
from perfkit.errors import Cancelled
from perfkit.process.child import EVERYTHING, device_lock, lock_names


def test_the_second_measurement_on_a_device_waits_says_so_and_can_give_up():
    stop, said = threading.Event(), []

    def waits():
        said.append("waiting")
        stop.set()

    with device_lock("cpu"), pytest.raises(Cancelled), device_lock(EVERYTHING, stop, waits):
        pytest.fail("both have the cores")
    assert said == ["waiting"]
    with device_lock("mps", stop):
        pass


@pytest.mark.parametrize(
    ("device", "visible", "names"),
    [
        ("cpu", None, ["cores"]),
        ("mps", None, ["cores"]),
        ("sim:v100", None, ["cores"]),
        ("cuda", None, ["GPU-b"]),
        ("cuda:0", None, ["GPU-b"]),
        ("cuda:1", None, ["GPU-a"]),
        ("cuda", "1", ["GPU-a"]),
        ("cuda:1", "1,0", ["GPU-b"]),
        ("cuda", "GPU-a", ["GPU-a"]),
        ("cuda:7", None, ["gpu-7"]),
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
