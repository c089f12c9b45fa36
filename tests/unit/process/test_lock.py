"""Runs on one device take turns, and the one that waits says so and can give up."""

from __future__ import annotations

import threading

import pytest

from perfkit.errors import Cancelled
from perfkit.process.lock import device_lock


def test_two_runs_never_share_a_device_and_the_second_says_that_it_waits() -> None:
    waits, order = threading.Event(), list[str]()
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with device_lock("cpu"):
            inside.set()
            assert leave.wait(20)
            order.append("first")

    def second() -> None:
        with device_lock("cpu", on_wait=waits.set):
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


def test_who_waits_can_give_up() -> None:
    stop = threading.Event()
    with device_lock("cpu"):
        stop.set()
        with pytest.raises(Cancelled), device_lock("cpu", stop):
            pass
