"""When a script answers: at the end of a step, and after its own end, until its parent closes the line."""

import os
import socket
from contextlib import nullcontext
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest

from perfkit.additions.scripts.questions import Answering, ParentConnection
from perfkit.additions.scripts.script import Callback, Script, ScriptStep
from perfkit.errors import RunFailed, TrainingEnded
from perfkit.process import Answer, Question
from tests.support.settings import settings


class Gone(Exception):
    """The process has ended, were it not for this test."""


class Asked:
    """Questions to a script: `sum` adds up the samples of some steps, and `pid` needs none."""

    def __init__(self, script):
        self.subject = script
        self.early = []

    def begin(self, steps):
        self.early = steps

    def answer(self, name, arguments):
        return self.sum(**arguments) if name == "sum" else name

    def sum(self, steps):
        samples = 0
        for _ in range(steps):
            samples += (yield).samples
        if samples < 0:
            raise ArithmeticError("less than nothing")
        return samples


class Parent:
    """The parent's end of the line."""

    def __init__(self):
        self.line, self.theirs = Pipe()

    def asks(self, *questions):
        for number, (name, arguments) in enumerate(questions, 1):
            self.line.send(Question(number, name, arguments))

    def closes(self):
        with socket.socket(fileno=os.dup(self.line.fileno())) as ours:
            ours.shutdown(socket.SHUT_WR)

    def has_got(self):
        got = []
        while self.line.poll():
            got.append(self.line.recv())
        return [(each.number, each.value) if isinstance(each, Answer) else type(each) for each in got]


@pytest.fixture
def parent(monkeypatch):
    def leave(code):
        raise Gone

    monkeypatch.setattr(os, "_exit", leave)
    return Parent()


@pytest.fixture
def answering(parent):
    script = Script(settings(), SimpleNamespace(ignored=nullcontext))
    return Answering(Asked(script), ParentConnection(parent.theirs))


def steps(*samples):
    return [ScriptStep(seconds=0.1, samples=each) for each in samples]


def test_questions_are_answered_until_one_needs_a_step(answering, parent):
    parent.asks(("pid", {}), ("sum", {"steps": 2}))
    answering.on_steps(steps(1, 2))  # the first two end together, before anything is asked
    assert parent.has_got() == [(1, "pid")]
    answering.on_steps(steps(8))
    assert parent.has_got() == []
    parent.theirs.poll = lambda: False  # the next question is there already, so that this test need not wait
    parent.asks(("sum", {"steps": 1}))
    answering.on_steps(steps(32))
    assert parent.has_got() == [(2, 40)]


def test_an_answer_that_fails_is_a_failure_and_the_next_question_is_answered(answering, parent):
    parent.asks(("sum", {"steps": 1}))
    answering.on_steps(steps(1))
    parent.theirs.poll = lambda: False
    parent.asks(("pid", {}), ("sum", {"steps": 1}))
    answering.on_steps(steps(-1))
    assert parent.has_got() == [RunFailed, (1, "pid")]


def test_after_the_end_of_the_script_only_what_needs_no_step_is_answered(answering, parent):
    ended = []

    class Last(Callback):
        def on_end(self):
            ended.append("told")

    answering._script.set_callbacks(Last())
    parent.asks(("sum", {"steps": 2}))
    answering.on_steps(steps(1))
    parent.asks(("pid", {}), ("sum", {"steps": 1}), ("sum", {"steps": 0}))
    parent.closes()
    with pytest.raises(Gone):
        answering.end()
    assert parent.has_got() == [TrainingEnded, (1, "pid"), TrainingEnded, (3, 0)]
    assert ended == ["told"]


def test_a_process_whose_parent_has_gone_ends_at_its_next_step(answering, parent):
    parent.asks(("sum", {"steps": 1}))
    answering.on_steps(steps(1))
    parent.closes()
    with pytest.raises(Gone):
        answering.on_steps(steps(1))
    assert parent.has_got() == [], "nothing was computed for nobody"


def test_a_script_without_steps_says_so_and_ends(answering, parent):
    answering.end()
    (failure,) = parent.has_got()
    assert failure is RunFailed


def test_a_script_that_has_crashed_answers_nothing_more(answering, parent):
    shown = []
    answering.crashed(lambda *about: shown.append(about), EOFError, EOFError("no input"), None)
    answering.on_steps(steps(1))
    answering.end()
    assert len(shown) == 1
    failure = parent.line.recv()
    assert failure.what.startswith("train.py ended before its second step")
    assert failure.remedy == "No keyboard is there: redirect its standard input from a file"
    assert parent.theirs.closed


def test_a_process_without_a_line_goes_on_by_itself(answering):
    answering._line.close()  # as in a process that it has forked
    answering.on_steps(steps(1))
    answering.end()
    assert answering._questions.early == []
