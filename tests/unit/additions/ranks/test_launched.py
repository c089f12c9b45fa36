"""When a rank was last heard of."""

import time
from types import SimpleNamespace

import msgspec
import pytest

from perfkit.additions.ranks.launched import LaunchedRanks, Seen
from perfkit.additions.ranks.messages import Beat, Hello, State


@pytest.fixture
def seen():
    rank = Seen(Hello(rank=1, world=2, local=2, pid=1, restart=0), None)
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
    watched = LaunchedRanks.__new__(LaunchedRanks)
    other = Seen(Hello(rank=0, world=2, local=2, pid=1, restart=0), None)
    other.heard_at -= 100
    seen.line = SimpleNamespace(recv_bytes=lambda: msgspec.json.encode(State(rank=1, ended=True)))
    watched.ranks, watched._began = {0: other, 1: seen}, time.monotonic()
    watched._hear(seen.line)
    assert seen.state.ended
    assert time.monotonic() - watched._active_at() < 50
    seen.heard_at = other.heard_at
    assert time.monotonic() - watched._active_at() > 50, "then the other one hangs"
    other.state = seen.state
    assert time.monotonic() - watched._active_at() < 50, "all have ended: the launch is about to"
