"""One piece of work at a time, in a thread or not; the line and the bar that follow it."""

from __future__ import annotations

import threading

import pytest

from perfkit.notebook import job
from perfkit.notebook.job import Job, Line, Status
from perfkit.studies.plan import Pace, Progress
from tests.unit.notebook.fakes import wait_until


def test_a_second_click_is_refused_and_a_cell_waits_until_the_first_has_ended() -> None:
    go, busy, order = threading.Event(), list[bool](), list[str]()
    job = Job(busy.append)
    assert job.start(lambda: go.wait(20) and order.append("first"), block=False)
    assert job.busy
    assert not job.start(lambda: order.append("a second click"), block=False)
    threading.Timer(0.05, go.set).start()
    assert job.start(lambda: order.append("the cell"), block=True)
    assert order == ["first", "the cell"]
    wait_until(lambda: not job.busy and len(busy) == 4)
    assert busy.count(True) >= 2
    assert not busy[-1]


def test_a_cancellation_does_not_reach_the_next_piece_of_work() -> None:
    job, seen = Job(lambda busy: None), list[bool]()
    job.cancel()
    job.start(lambda: seen.append(job.cancelled.is_set()), block=True)
    assert seen == [False]


def test_work_that_raises_leaves_the_job_free() -> None:
    job = Job(lambda busy: None)
    with pytest.raises(ZeroDivisionError):
        job.start(lambda: 1 / 0 and None, block=True)
    assert not job.busy


def test_bar_and_line_show_the_same_work(capsys: pytest.CaptureFixture[str]) -> None:
    status = Status()
    status.begin(Line())
    status.progress("measuring <fast>", 0.5)
    assert '<progress value="0.500"' in status.text.value
    assert "measuring &lt;fast&gt;, 50% done" in status.text.value
    status.end("stopped", "no <memory> left")
    assert "no &lt;memory&gt; left" in status.error.value
    line = capsys.readouterr().err
    assert "measuring <fast>" in line
    assert "memory" in line
    status.begin()
    assert status.error.value == ""
    status.end("done")
    assert capsys.readouterr().err == "", "the line of an earlier piece of work is left alone"


def test_what_is_read_late_does_not_hide_what_a_run_says() -> None:
    status = Status()
    status.show_read("n/a here: no GPU")
    assert "n/a here" in status.text.value
    status.begin_reading()
    status.begin()
    status.show_read("not ready", error="no such workload")
    assert "starting" in status.text.value
    status.begin_reading()  # while something runs
    status.end("stopped", "no memory left")
    status.show_read("ready")
    assert "stopped" in status.text.value
    assert "no memory left" in status.error.value
    status.begin_reading()
    status.show_read("ready")
    assert "ready" in status.text.value
    assert status.error.value == ""


def test_a_few_updates_a_second_are_enough_and_a_new_phase_is_shown_at_once() -> None:
    now, changes = [0.0], list[str]()
    status = Status(clock=lambda: now[0])
    status.begin()
    status.text.observe(lambda change: changes.append(change["new"]), "value")
    for now[0], phase, step_s in (
        (10.0, "warm-up", 0.1), (10.1, "warm-up", 0.2), (10.2, "measuring", 0.3), (10.5, "measuring", 0.4),
    ):  # fmt: skip
        status.follow(Progress("AMP", phase, 0.5, pace=Pace("AMP", step_s, 32)))
    assert ["measuring" in text for text in changes] == [False, True]
    assert "the last 3: 100 ms to 300 ms" in changes[-1], "none is lost that was not shown when it came"
    status.end("done")


def test_while_nothing_is_heard_the_time_goes_on_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_TICK_S", 0.001)
    now = [0.0]
    status = Status(clock=lambda: now[0])
    status.begin()
    now[0] = 2.0
    wait_until(lambda: "starting … (last news 2 s ago)" in status.text.value)
    now[0] = 10.0
    status.follow(Progress("AMP", "measuring", 0.5))
    assert "about 10 s left<" in status.text.value
    now[0] = 14.0
    wait_until(lambda: "about 6 s left (last news 4 s ago)" in status.text.value)
    status.end("done")
    now[0] = 99.0
    assert not [one for one in threading.enumerate() if one.name == "perfkit-tick" and one.join(20)]
    assert "done" in status.text.value and "news" not in status.text.value
