"""Measurements on one device take turns, whatever it is called, and the one that waits says so."""

import threading

import pytest

from perfkit import machine
from perfkit.errors import Cancelled
from perfkit.process.lock import EVERYTHING, device_lock, lock_names


def test_two_measurements_never_share_a_device_and_the_second_says_that_it_waits():
    waits, order = threading.Event(), []
    inside, leave = threading.Event(), threading.Event()

    def first():
        with device_lock("cpu"):
            inside.set()
            assert leave.wait(20)
            order.append("first")

    def second():
        with device_lock(EVERYTHING, on_wait=waits.set):
            order.append("second")

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert inside.wait(20)
    threads[1].start()
    assert waits.wait(20)
    leave.set()
    for thread in threads:
        thread.join(20)
    assert order == ["first", "second"]


def test_who_waits_can_give_up():
    stop = threading.Event()
    with device_lock("cpu"):
        stop.set()
        with pytest.raises(Cancelled), device_lock("mps", stop):
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
