"""A child's answers, progress and failures, as they come out of its channel."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from perfkit.errors import Cancelled, RunFailed
from perfkit.process.child import Child, child_environment
from perfkit.worker import messages
from perfkit.worker.messages import Answer, Failure, Peak, Progress, ReadPeak


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Child:
    """One whose process says nothing by itself."""

    class Silent:
        pid, returncode, stdin, stdout, stderr = 0, 3, None, (), ()

        def wait(self, timeout: float) -> int:
            return self.returncode

    monkeypatch.setattr(Child, "_start", lambda self: Silent())
    monkeypatch.setattr(Child, "_read_events", lambda self: None)
    return Child()


def says(child: Child, *events: Any) -> None:
    for event in events:
        child._events.put(event and messages.decode_event(messages.encode(event)))


def test_progress_goes_to_the_caller_and_the_answer_comes_back_typed(child: Child) -> None:
    seen: list[tuple[str, float]] = []
    child._on_progress = lambda *event: seen.append(event)
    says(child, Progress("warm-up", 1, 4), Answer(Peak(1, None, 0)))
    assert child.receive(ReadPeak()) is None
    assert child.receive(ReadPeak()) == Peak(1, None, 0)
    assert seen == [("warm-up", 0.25)]


def test_a_failure_is_raised_with_its_kind_and_remedy(child: Child) -> None:
    says(child, Failure("out of memory", "out of memory: here", "Lower batch_size"))
    with pytest.raises(RunFailed, match="out of memory: here. Lower batch_size") as raised:
        child.receive(ReadPeak())
    assert raised.value.kind == "out of memory"


def test_an_answer_of_another_type_is_refused_in_words(child: Child) -> None:
    says(child, Answer({"allocated": "much"}))
    with pytest.raises(RunFailed, match="unreadable answer"):
        child.receive(ReadPeak())


def test_a_death_without_a_word_is_explained_every_time(child: Child) -> None:
    child.log.append("Fatal Python error")
    says(child, None)
    for _ in range(2):
        with pytest.raises(RunFailed, match=r"exit status 3.*Fatal Python error"):
            child.receive(ReadPeak())


def test_waiting_ends_at_the_deadline_and_on_cancelling(child: Child) -> None:
    child.deadline = time.monotonic()
    with pytest.raises(RunFailed, match="time limit"):
        child.receive(ReadPeak())
    child._cancelled = threading.Event()
    child._cancelled.set()
    with pytest.raises(Cancelled):
        child.receive(ReadPeak())


def test_a_child_finds_this_perfkit_and_its_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("MPLBACKEND", "module://inline")
    environment = child_environment()
    assert environment["OMP_NUM_THREADS"] == "7", "what the user has set stays"
    assert "MPLBACKEND" not in environment
    assert {"PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR", "PERFKIT_DATA"} <= set(environment)
