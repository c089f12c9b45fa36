"""Steps with other work in them under a clock that the test sets: when they count."""

import pytest

from perfkit.additions.scripts.marks import MarkedProcedures
from tests.unit.worker.test_procedure import NOTHING, Subject, on_device


def test_what_a_marked_step_waits_for_is_not_taken_from_the_plain_ones(monkeypatch):
    """The host seconds of a marked step hold the backlog of the plain steps before it: they were too fast."""
    subject = on_device(
        monkeypatch, [1.0], kind=MarkedProcedures, marks=[NOTHING, NOTHING, NOTHING, {"evaluation"}]
    )
    block = subject.slice(samples=4 * 6)
    assert block.seconds == pytest.approx(6.0, rel=1e-3)
    assert block.device_step_s == pytest.approx([1.0] * 6, rel=1e-2), (
        "a time for each plain step, and for no other"
    )
    assert len(block.step_s) == 6


def test_steps_that_come_to_count_keep_their_place_so_all_times_of_a_step_are_at_one_index(monkeypatch):
    """They came last in the host's times, while the device's stayed in the order of time."""
    subject = on_device(monkeypatch, [1.0, 3.0], kind=MarkedProcedures, marks=[NOTHING, {"new epoch"}])
    block = subject.slice(samples=4 * 10)
    assert subject.notes == ["every second step has new epoch in it, so that is part of a step here"]
    is_marked = [False, True] * 8
    assert [step_s > 0.5 for step_s in block.step_s] == is_marked
    assert [step_s > 2.0 for step_s in block.device_step_s] == is_marked


def test_steps_with_something_else_in_them_do_not_count_unless_half_of_the_steps_have_it():
    subject = Subject(kind=MarkedProcedures, marks=[{"evaluation"}, NOTHING, NOTHING])
    taken = subject.slice(samples=16)
    assert (len(taken.step_s), sum(taken.step_s), subject.taken) == (4, 4.0, 6)
    always = Subject(kind=MarkedProcedures, marks=[{"checkpoint"}])
    assert len(always.slice(samples=4).step_s) == 8
    assert always.notes == ["every step has checkpoint in it, so that is part of a step here"]
    half = Subject(kind=MarkedProcedures, marks=[{"new epoch"}, NOTHING])
    assert [len(half.slice(samples=16).step_s) for _ in range(3)] == [4, 7, 4]
    assert half.notes == ["every second step has new epoch in it, so that is part of a step here"]
