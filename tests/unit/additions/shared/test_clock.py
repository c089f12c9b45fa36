"""Clocks: that of a thread stops while others have its core, and a script that replaces its own changes none."""

import io
import time

import torch

from perfkit.additions.shared import clock as clocks


def test_the_own_clock_stands_still_while_others_have_the_core(monkeypatch):
    def refused(*_):
        raise OSError

    def told(*_):
        return io.BytesIO(b"7000000000 30000000000 12\n")

    monkeypatch.setattr(clocks, "clock", lambda: 100.0)
    monkeypatch.setattr(clocks, "open", told, raising=False)
    assert clocks.own_time() == 70.0
    monkeypatch.setattr(clocks, "open", refused)
    assert clocks.own_time() == 100.0, "no other system tells"


def test_the_own_clock_goes_on_where_a_gpu_does(monkeypatch):
    monkeypatch.setattr(clocks, "clock", lambda: 100.0)
    monkeypatch.setattr(clocks, "open", lambda *_: io.BytesIO(b"7 30000000000 12\n"), raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert clocks.own_time() == 100.0


def test_a_script_that_replaces_its_clock_changes_none_of_perfkit_s(monkeypatch):
    monkeypatch.setattr(time, "perf_counter", lambda: -1e9)
    before = clocks.own_time()
    assert clocks.clock() > 0 and before < clocks.own_time()
