"""What watching keeps, and says, where the script takes longer to answer than there is time."""

from types import SimpleNamespace

import pytest

from perfkit.additions.inside import SYNCS
from perfkit.additions.scripts import evidence, watching
from perfkit.additions.scripts.evidence import Evidence
from perfkit.additions.scripts.messages import Observation, ScriptFacts
from perfkit.additions.scripts.run_account import Account
from perfkit.errors import RunFailed
from perfkit.rules import Target
from perfkit.studies.sources import Progress
from perfkit.worker.messages import Block, DeviceFacts, Peak

TOOK_S = 500.0  # an evaluation that comes while lines are looked at, of a minute that is budgeted
ANSWERS = {
    "observe": Observation(block=Block(320, 0.1, [0.01] * 10, [0.0] * 10)),
    "account": Account(parts={"steps": 0.1}, steps=10, last=10),
    "describe": ScriptFacts(device="cpu", facts=DeviceFacts()),
    "peak": Peak(None, None, 0),
    evidence.QUESTION: Evidence(steps=0),
    evidence.STATE: 0.0,
    "run_on": True,
}


class Slow:
    """A script that answers nothing else until it has answered the question about its lines."""

    launch = SimpleNamespace(describe=lambda: "python train.py")
    tree = SimpleNamespace(processes=list, cpu_s=lambda: 0.0)

    def __init__(self, clock):
        self.clock = clock
        self.asked, self.timeout_s, self.is_busy = [], None, False

    def ask(self, question, **_):
        self.asked.append(question)
        if question == evidence.QUESTION:
            self.is_busy = self.timeout_s < TOOK_S
            self.clock.now += min(self.timeout_s, TOOK_S)
        if self.is_busy:
            raise RunFailed("it took longer than its time limit")
        return ANSWERS[question]

    def written(self, stream):
        return []

    def stop(self):
        self.asked.append("stop")


@pytest.fixture
def script(data_dir, monkeypatch):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(watching, "time", clock)
    monkeypatch.setattr(watching.cores, "taken_share", lambda *_: 0.0)
    return Slow(clock)


def watched(script, whole):
    source = SimpleNamespace(take=lambda: script, target=Target("cpu"))
    return watching._Watching(source, 60.0, Progress()).ask(after=0, whole=whole)


def test_a_look_that_takes_too_long_is_given_up_and_what_was_seen_before_stays(script):
    seen = watched(script, whole=False)
    assert script.asked == ["observe", "account", "describe", "peak", evidence.QUESTION, "stop"]
    assert seen.run.steps == 10 and not seen.seen.ended
    (warning,) = seen.warnings
    assert "no time was left to measure the lines, later steps, hidden waits, a profile" in warning


def test_a_whole_run_is_awaited_whatever_is_under_way_in_it(script):
    seen = watched(script, whole=True)
    assert "run_on" in script.asked and seen.seen.ended
    assert SYNCS not in script.asked, "it has come to its end"
