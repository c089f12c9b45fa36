"""Answers of a rank other than rank 0, given by a thread."""

import os
import threading
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest

from perfkit.additions.ranks.questions import OtherRank
from perfkit.errors import RunFailed
from perfkit.process import Question


def answer(question, arguments):
    if question == "pin_memory":
        raise AttributeError("'NoneType' object has no attribute 'pin_memory'")
    return question


@pytest.fixture
def asked(monkeypatch):
    """The connection to a rank; its process would end with the thread that answers."""
    ended = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda code: ended.set())
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    ours, theirs = Pipe()
    OtherRank(SimpleNamespace(answer=answer)).begin(theirs)
    yield ours
    ours.close()
    assert ended.wait(60), "it ends once nobody asks any more"


def test_an_answer_that_fails_is_a_failure_with_its_reason_and_the_next_question_is_answered(asked):
    for name in ("pin_memory", "results"):
        asked.send(Question(0, name, {}))
    failure = asked.recv() if asked.poll(60) else None
    assert isinstance(failure, RunFailed)
    assert "inside the script: AttributeError: 'NoneType'" in failure.what
    assert asked.recv() == "results"
