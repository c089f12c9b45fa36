"""What a launch has started: where its ranks meet, what all of them did together, when one was heard of."""

import socket
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from perfkit.additions.ranks import started
from perfkit.additions.ranks.messages import LIMIT, Beat, Hello, State
from perfkit.additions.ranks.started import HeardRank, StartedRanks, WatchedRanks, of_all, proofs_of_all
from perfkit.additions.referee.behaviour import Behaviour
from perfkit.errors import InvalidValue
from perfkit.results.schema import Mechanism


def test_a_switch_is_in_effect_only_where_it_is_on_every_rank():
    on, off = Mechanism("static_graph", True, "it is"), Mechanism("static_graph", False, "it is not")
    (proof,) = proofs_of_all([[on], [on]])
    assert (proof.ok, proof.evidence) == (True, "on all 2 ranks: it is")
    (proof,) = proofs_of_all([[on], [off]])
    assert (proof.ok, proof.evidence) == (False, "rank 1: it is not")


@pytest.fixture
def far(tmp_path, monkeypatch):
    """A launch that is not started, where temporary files have long paths."""
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    launched = StartedRanks.__new__(StartedRanks)
    launched.watcher = ""
    launched.folder = folder
    launched.launch = SimpleNamespace(settings=())
    launched._start = lambda settings: settings
    return launched


def test_ranks_meet_at_a_short_path_wherever_temporary_files_are(far):
    address = far._begin({"toggles": {}, "variables": {}})["address"]
    with far._meeting, far._socket, socket.socket(socket.AF_UNIX) as rank:
        rank.connect(address)
    assert not Path(address).parent.exists()


def test_where_ranks_cannot_meet_one_error_says_what_to_set(far, monkeypatch):
    def refuse(**_):
        raise PermissionError

    monkeypatch.setattr(started.tempfile, "TemporaryDirectory", refuse)
    with pytest.raises(InvalidValue, match="too long for the path of a socket.*TMPDIR"):
        far._begin({})


def behaviour(**changes):
    told = {
        "loaded": [8, 8], "trained": [8, 8], "values": [80, 80], "backwards": [1, 1], "batches": [1.0, 2.0],
        "weight": [0.5, 0.6], "reached": [None, None], "losses": [1.0, 3.0], "evaluations": [],
        "checkpoints": [], "parameters": 10, "precision": "float32", "autocast": None, "replaced": [],
    }  # fmt: skip
    return Behaviour(**(told | changes))


def test_what_all_ranks_did_is_summed_and_their_losses_are_averaged():
    alone = behaviour(losses=[2.0, 5.0], evaluations=[1], marked=1, run={"evaluation": 2.0})
    both = of_all([behaviour(), alone])
    assert (both.loaded, both.values, both.losses) == ([16, 16], [160, 160], [1.5, 4.0])
    assert (both.evaluations, both.run) == ([1], {"evaluation": 2.0})
    assert len(set(both.batches)) == 2


# ---------------------------------------------------------------- watched


@pytest.fixture
def seen():
    rank = HeardRank(Hello(rank=1, world=2, local=2, pid=1, restart=0), None)
    rank.hear(Beat(steps=5, part="own code"))
    rank.heard_at -= 100
    return rank


def test_a_step_is_a_sign_of_life(seen):
    seen.hear(Beat(steps=6, part="own code"))
    assert time.monotonic() - seen.heard_at < 50


def test_a_beat_without_a_step_is_none(seen):
    seen.hear(Beat(steps=5, part="own code"))
    seen.hear(Beat(steps=5, part="evaluation"))
    assert time.monotonic() - seen.heard_at > 50


def test_whoever_comes_back_from_an_evaluation_has_time_for_a_step(seen):
    seen.hear(Beat(steps=5, part="evaluation"))
    seen.hear(Beat(steps=5, part="own code"))
    assert time.monotonic() - seen.heard_at < 50


def test_a_rank_that_ends_gives_the_others_time_to_end(seen):
    """Else the others, which waited for its long evaluation, would seem to hang until they have ended too."""
    watched = WatchedRanks.__new__(WatchedRanks)
    other = HeardRank(Hello(rank=0, world=2, local=2, pid=1, restart=0), None)
    other.heard_at -= 100
    seen.line = SimpleNamespace(recv_bytes=lambda: msgspec.json.encode(State(rank=1, ended=True)))
    watched.ranks, watched.told, watched._began = {0: other, 1: seen}, {}, time.monotonic()
    watched._hear(seen)
    assert watched.told[1].ended
    assert time.monotonic() - watched._active_at() < 50
    seen.heard_at = other.heard_at
    assert time.monotonic() - watched._active_at() > 50, "then the other one hangs"
    watched.told[0] = watched.told[1]
    assert time.monotonic() - watched._active_at() < 50, "all have ended: the launch is about to"


@pytest.mark.parametrize(("longest_s", "patience_s"), [(2.0, LIMIT.quiet_s), (25.0, LIMIT.start_s)])
def test_ranks_with_long_steps_are_waited_for_longer(seen, longest_s, patience_s):
    """Else a step of 40 s, as of a large model that accumulates, would be said to hang."""
    seen.heard_at = time.monotonic() - longest_s
    seen.hear(Beat(steps=6, part="own code"))
    assert seen.longest_s == pytest.approx(longest_s, abs=1.0)
    seen.line = SimpleNamespace(closed=False)
    watched = WatchedRanks.__new__(WatchedRanks)
    watched.ranks = {0: seen, 1: seen}
    assert watched._patience_s(40.0) == patience_s


def test_what_comes_before_the_first_step_is_no_long_step():
    rank = HeardRank(Hello(rank=0, world=2, local=2, pid=1, restart=0), None)
    rank.heard_at -= 100
    rank.hear(Beat(steps=1, part="own code"))
    assert rank.longest_s == 0.0


def test_what_ranks_have_said_before_a_restart_is_not_mixed_with_what_comes_after(seen, monkeypatch):
    """A failure, and the first rank of the restart, come at the same time."""

    class Line:
        closed = False

        def recv_bytes(self):
            return msgspec.json.encode(State(rank=1, failure="KeyError"))

    watched = WatchedRanks.__new__(WatchedRanks)
    seen.line = Line()
    watched.ranks, watched.told, watched.restarts, watched._socket = {1: seen}, {}, 0, object()
    watched.launch = SimpleNamespace(as_one_process="")
    again = Hello(rank=1, world=2, local=2, pid=2, restart=1)
    watched._let_in = lambda: watched._meet(again, Line())
    monkeypatch.setattr(started.connections, "wait", lambda lines, seconds: [watched._socket, seen.line])
    watched._listen()
    assert (watched.told, watched.ranks[1].hello.restart) == ({}, 1)


def test_a_rank_that_was_not_heard_of_is_missing_on_whatever_node(seen):
    watched = WatchedRanks.__new__(WatchedRanks)
    watched.ranks, watched.told = {1: seen}, {}
    seen.line = SimpleNamespace(recv_bytes=lambda: msgspec.json.encode(State(rank=0)))
    watched._hear(seen)
    assert watched.missing == [1], "rank 0 of another node, by the line of this one"


@pytest.mark.parametrize(
    ("rank", "shown"),
    [(1, ["[rank1]: IndexError"]), (2, ["[rank0]: lost", "[rank1]: IndexError", "the end"])],
)
def test_of_a_rank_that_failed_its_own_words_are_shown_where_torch_marks_them(rank, shown):
    """Else those of the ranks that lose it, which come later, are all that is left."""
    watched = WatchedRanks.__new__(WatchedRanks)
    watched.written = lambda stream: ["[rank0]: lost", "[rank1]: IndexError", "the end"]
    assert watched.problem("it failed", "", rank=rank).output.splitlines() == shown
