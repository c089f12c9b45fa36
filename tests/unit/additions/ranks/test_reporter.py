"""What a rank tells whoever watches it, with and without the ranks of other nodes."""

import itertools
import sys
import threading
from types import SimpleNamespace

import msgspec
import pytest

from perfkit.additions.ranks import reporter as reporters
from perfkit.additions.ranks.messages import LIMIT, Hello, Stack, State
from perfkit.additions.ranks.reporter import RankReporter
from perfkit.additions.shared.positions import Spot


class Line:
    """Asks two times; then the rank is over."""

    def __init__(self):
        self.left, self.sent = 2, []
        self.over = lambda: None

    def poll(self, seconds):
        if not self.left:
            self.over()
            raise OSError
        self.left -= 1
        return True

    def recv_bytes(self):
        return b"state"

    def send_bytes(self, message):
        self.sent.append(message)

    def close(self):
        self.closed = True


def reporting(number, local):
    """The reporter of one of two ranks, of which its node has so many; what it says, and what is noted."""
    line, notes = Line(), []
    steps = SimpleNamespace(count=9, trainer=threading.get_ident())
    script = SimpleNamespace(steps=steps, note=notes.append)
    sampler = SimpleNamespace(look=lambda ident, before: before + 1.0, times={}, lines=lambda frame: [])
    about = {"part_now": lambda: "forward", "snapshot": lambda: State(rank=number)}
    known = SimpleNamespace(script=script, sampler=sampler, **about)
    reporter = RankReporter(known, Hello(rank=number, world=2, local=local, pid=1, restart=0), line)
    line.over = reporter._over.set
    return reporter, line, notes


class Gone:
    """The store of a launch whose first node has ended."""

    def set(self, key, value):
        raise RuntimeError("Connection reset by peer")

    def check(self, keys):
        raise RuntimeError("Connection reset by peer")


def test_the_training_does_not_go_on_in_a_look_and_does_after_it(monkeypatch):
    """A look at a stack that changes meanwhile is in vain, and is repeated."""
    done = []

    def look(ident, before):
        done.append("a look")
        return before + 1.0

    monkeypatch.setattr(sys, "setswitchinterval", done.append)
    reporter, _, _ = reporting(0, local=2)
    reporter._recorder.sampler.look = look
    reporter.attend()
    assert done == [LIMIT.undisturbed_s, "a look", LIMIT.switch_s] * 2
    assert LIMIT.undisturbed_s > 10 * LIMIT.switch_s


def test_the_function_that_the_innermost_line_called_is_told():
    reporter, _, _ = reporting(0, local=2)
    stack = (Spot("train.py", 9, "main"), Spot("shards.py", 17, "images", "NpzFile.__getitem__"))
    reporter._recorder.sampler.times = {("own code", stack): 2.0, ("forward", ()): 1.0}
    own, outside = reporter.state().stacks
    assert own == Stack("own code", ["train.py:9", "shards.py:17"], 2.0, "NpzFile.__getitem__")
    assert outside == Stack("forward", [], 1.0)


@pytest.mark.parametrize("number", [0, 1])
def test_a_rank_lives_on_and_answers_without_the_store_of_its_launch(number, monkeypatch):
    monkeypatch.setattr(reporters, "clock", itertools.count().__next__)
    reporter, line, notes = reporting(number, local=2)
    reporter._others._store = Gone()
    reporter.attend()
    assert len(line.sent) == 4, "a state and a sign of life, two times"
    assert notes == ["ranks of other nodes are not heard of: Connection reset by peer"]


def test_the_training_waits_for_no_store_that_is_not_said_to_be_there(monkeypatch):
    made = []
    monkeypatch.setattr(
        "torch.distributed.TCPStore", lambda *place, **how: made.append((*place, how["timeout"]))
    )
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    _, _, notes = reporting(1, local=1)
    assert not made
    assert notes == ["ranks of other nodes are not heard of: MASTER_ADDR and MASTER_PORT are not set"]
    monkeypatch.setenv("MASTER_ADDR", "node0")
    monkeypatch.setenv("MASTER_PORT", "29500")
    _, _, notes = reporting(1, local=1)
    assert made == [("node0", 29500, reporters._FAR_TIMEOUT)] and not notes


def test_a_rank_that_cannot_be_looked_at_says_so_before_it_seems_to_hang():
    def look(ident, before):
        raise ValueError("a stack without a line")

    reporter, line, _ = reporting(1, local=2)
    reporter._recorder.sampler.look = look
    reporter.attend()
    state = msgspec.json.decode(line.sent[0], type=State)
    assert (state.rank, len(line.sent), line.closed) == (1, 1, True)
    assert "inside the script: ValueError: a stack without a line" in state.failure


@pytest.mark.parametrize(
    ("looks", "cpu_s", "expected_s"),
    [
        pytest.param(0, 0.0, 0.1, id="the first look"),
        pytest.param(49, 4.9, 0.1, id="shares need some looks"),
        pytest.param(100, 0.005, 0.1, id="cheap looks are as frequent as ever"),
        pytest.param(100, 0.03, 0.2, id="0.3 ms each: so that they take 0.15%"),
        pytest.param(100, 1.0, 0.4, id="but some are needed"),
    ],
)
def test_looks_are_as_far_apart_as_keeps_their_thread_within_its_share(looks, cpu_s, expected_s):
    assert reporters.pause_s(looks, cpu_s) == pytest.approx(expected_s)
