"""What a launch has started: where its ranks meet, what all of them did together, what each of them has said."""

import os
import socket
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from perfkit.additions.ranks import started
from perfkit.additions.ranks.messages import Hello, State
from perfkit.additions.ranks.started import Meeting, WatchedRanks, merge_behaviours, merge_proofs
from perfkit.additions.referee.behaviour import Behaviour
from perfkit.errors import InvalidValue
from perfkit.results.schema import Mechanism


def test_a_switch_is_in_effect_only_where_it_is_on_every_rank():
    on, off = Mechanism("static_graph", True, "it is"), Mechanism("static_graph", False, "it is not")
    (proof,) = merge_proofs([[on], [on]])
    assert (proof.ok, proof.evidence) == (True, "on all 2 ranks: it is")
    (proof,) = merge_proofs([[on], [off]])
    assert (proof.ok, proof.evidence) == (False, "rank 1: it is not")


def test_what_is_in_effect_on_a_single_rank_is_told_in_its_own_words():
    on = Mechanism("static_graph", True, "it is")
    assert merge_proofs([[on]]) == [on]


@pytest.fixture
def far(tmp_path, monkeypatch):
    """A folder for temporary files with a long path."""
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))


@pytest.mark.usefixtures("far")
def test_ranks_meet_at_a_short_path_wherever_temporary_files_are():
    meeting = Meeting()
    hello = Hello(rank=1, world=2, local=2, pid=1, restart=0)
    with socket.socket(socket.AF_UNIX) as rank:
        rank.connect(meeting.address)
        line = Connection(os.dup(rank.fileno()))
        line.send_bytes(msgspec.json.encode(hello))
        assert meeting.next()[0] == hello
        line.close()
    meeting.end()
    meeting.private.cleanup()
    assert not Path(meeting.address).parent.exists()


def test_who_comes_and_is_no_rank_is_left_alone():
    meeting = Meeting()
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(meeting.address)
    assert meeting.next() is None, "it has gone without a word"
    meeting.end()
    meeting.private.cleanup()


@pytest.mark.usefixtures("far")
def test_where_ranks_cannot_meet_one_error_says_what_to_set(monkeypatch):
    def refuse(*_, **__):
        raise PermissionError

    monkeypatch.setattr(started.tempfile, "TemporaryDirectory", refuse)
    with pytest.raises(InvalidValue, match="too long for the path of a socket.*TMPDIR"):
        Meeting()


def behaviour(**changes):
    told = {
        "loaded": [8, 8], "trained": [8, 8], "values": [80, 80], "backwards": [1, 1], "batches": [1.0, 2.0],
        "weight": [0.5, 0.6], "reached": [None, None], "losses": [1.0, 3.0], "evaluations": [],
        "checkpoints": [], "parameters": 10, "precision": "float32", "autocast": None, "replaced": [],
    }  # fmt: skip
    return Behaviour(**(told | changes))


def test_what_all_ranks_did_is_summed_and_their_losses_are_averaged():
    alone = behaviour(losses=[2.0, 5.0], evaluations=[1], marked=1, run={"evaluation": 2.0})
    both = merge_behaviours([behaviour(), alone])
    assert (both.loaded, both.values, both.losses) == ([16, 16], [160, 160], [1.5, 4.0])
    assert (both.evaluations, both.run) == ([1], {"evaluation": 2.0})
    assert len(set(both.batches)) == 2


def test_samples_of_steps_that_are_not_kept_are_those_of_all_ranks():
    assert merge_behaviours([behaviour(left_out=1, samples_left_out=8)] * 2).samples == 2 * (8 + 8) + 2 * 8


# ---------------------------------------------------------------- watched


class Line:
    """The line to a rank that says this once."""

    closed = False

    def __init__(self, message):
        self._message = message

    def recv_bytes(self):
        return msgspec.json.encode(self._message)


@pytest.fixture
def watched():
    """What watches two ranks, before it starts them."""
    watched = WatchedRanks(SimpleNamespace(single=None, settings={}))
    yield watched
    watched._meeting.end()
    watched._meeting.private.cleanup()
    watched._files.cleanup()


def meet(watched, *heard):
    """These ranks come, each of which says something."""
    for rank, message in heard:
        watched._meet(Hello(rank=rank, world=2, local=2, pid=1, restart=0), Line(message))


def test_a_rank_that_ends_is_told_and_is_not_waited_for(watched):
    meet(watched, (0, State(rank=0, ended=True)), (1, State(rank=1, ended=True)))
    for rank in (0, 1):
        watched._hear(watched.ranks[rank])
    assert [state.ended for state in watched.states] == [True, True]
    assert watched._patience.quiet_s() == 0.0


def test_what_ranks_have_said_before_a_restart_is_not_mixed_with_what_comes_after(watched, monkeypatch):
    """A failure, and the first rank of the restart, come at the same time."""
    meet(watched, (1, State(rank=1, failure="KeyError")))
    line = watched.ranks[1].connection
    again = Hello(rank=1, world=2, local=2, pid=2, restart=1)
    monkeypatch.setattr(watched._meeting, "next", lambda: (again, Line(None)))
    monkeypatch.setattr(started.connections, "wait", lambda lines, seconds: [watched._meeting.socket, line])
    watched._listen()
    assert (watched.answers, watched.ranks[1].hello.restart) == ({}, 1)


def test_a_rank_that_was_not_heard_of_is_missing_on_whatever_node(watched):
    meet(watched, (1, State(rank=0)))
    watched._hear(watched.ranks[1])
    assert watched.missing == [1], "rank 0 of another node, by the line of this one"
    assert not watched.ranks[1].has_ended


def test_the_budget_begins_when_all_ranks_train_and_again_after_a_restart(watched):
    now = [0]
    phases = []

    def listen():
        now[0] += 1

    ranks_train = {
        "all_train": lambda: now[0] not in (1, 2, 6, 7),
        "quiet_s": lambda: 0,
        "limit_s": lambda: 30,
    }
    watched._patience = SimpleNamespace(**ranks_train)
    watched._clock = lambda: now[0]
    watched._process = SimpleNamespace(poll=lambda: None)
    watched._listen, watched._read_clock, watched._ask = listen, lambda: None, lambda: True
    watched.on_progress = phases.append
    meet(watched, (0, None))
    assert watched.let_train(budget_s=5) == "watched"
    assert (now, phases) == ([8 + 5 + 1], ["watching"] * 2)


@pytest.mark.parametrize(
    ("rank", "shown"),
    [(1, ["[rank1]: IndexError"]), (2, ["[rank0]: lost", "[rank1]: IndexError", "the end"])],
)
def test_of_a_rank_that_failed_its_own_words_are_shown_where_torch_marks_them(rank, shown, watched):
    """Else those of the ranks that lose it, which come later, are all that is left."""
    watched.written = lambda stream: ["[rank0]: lost", "[rank1]: IndexError", "the end"]
    assert watched.problem("it failed", "", rank=rank).output.splitlines() == shown
