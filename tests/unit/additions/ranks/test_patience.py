"""How long ranks that take no step are waited for: by their beats and a clock."""

from types import SimpleNamespace

import pytest

from perfkit.additions.ranks.messages import LIMIT, Beat, Hello
from perfkit.additions.ranks.patience import AwakeClock, Patience, RankPeer

TRAINS = "own code"
BEGINS = [(0, 0, "comes"), (0, 1, "comes"), (1, 0, (2, TRAINS)), (1, 1, (2, TRAINS))]
"""Two ranks come, and have taken two steps a second later: when, which rank, what it says."""


def after(events, now):
    """The patience at this moment, after what ranks said before."""
    time_s = [0.0]
    ranks = {}
    patience = Patience(ranks, lambda: time_s[0])
    for time_s[0], rank, said in events:
        if said == "comes":
            hello = Hello(rank=rank, world=2, local=2, pid=1, restart=0)
            ranks[rank] = RankPeer(hello, SimpleNamespace(closed=False), time_s[0])
        elif said == "ends":
            ranks[rank].has_ended, ranks[rank].went_on_at = True, time_s[0]
        elif said == "answers":
            ranks[rank].went_on_at = time_s[0]
        elif said == "is lost":
            ranks[rank].connection.closed = True
        else:
            steps, part = said
            ranks[rank].hear(Beat(steps=steps, part=part), time_s[0])
    time_s[0] = float(now)
    return patience


@pytest.mark.parametrize(
    ("events", "now", "quiet_s"),
    [
        pytest.param([], 9, 9, id="nobody has come"),
        pytest.param(BEGINS, 9, 8, id="the last steps"),
        pytest.param([*BEGINS, (5, 1, (3, TRAINS))], 9, 4, id="a step is a sign of life"),
        pytest.param(
            [*BEGINS, (5, 1, (2, TRAINS)), (6, 1, (2, "evaluation"))], 9, 8, id="a beat alone is none"
        ),
        pytest.param(
            [*BEGINS, (5, 1, (2, "evaluation")), (7, 1, (2, TRAINS))], 9, 2, id="back from an evaluation"
        ),
        pytest.param([*BEGINS, (7, 1, "ends")], 9, 2, id="the others have time to end"),
        pytest.param([*BEGINS, (7, 1, "ends"), (7, 1, "is lost")], 99, 92, id="then the other one hangs"),
        pytest.param([*BEGINS, (7, 1, "ends"), (8, 0, "ends")], 99, 0, id="the launch is about to end"),
        pytest.param([*BEGINS, (7, 1, "answers")], 9, 2, id="one that answers"),
    ],
)
def test_how_long_no_rank_has_gone_on(events, now, quiet_s):
    assert after(events, now).quiet_s() == quiet_s


@pytest.mark.parametrize(
    ("events", "limit_s"),
    [
        pytest.param([], LIMIT.start_s, id="nobody has come"),
        pytest.param(BEGINS[:3], LIMIT.start_s, id="one has taken no step"),
        pytest.param([BEGINS[0], BEGINS[2]], LIMIT.start_s, id="one has not come"),
        pytest.param(BEGINS, LIMIT.quiet_s, id="all train"),
        pytest.param([*BEGINS, (2, 1, (2, "evaluation"))], LIMIT.start_s, id="one evaluates"),
        pytest.param(
            [*BEGINS, (2, 1, (2, "evaluation")), (3, 1, "is lost")], LIMIT.quiet_s, id="it was killed there"
        ),
        pytest.param([*BEGINS, (3, 1, (3, TRAINS))], LIMIT.quiet_s, id="steps of two seconds"),
        pytest.param([*BEGINS, (26, 1, (3, TRAINS))], LIMIT.start_s, id="steps of 25 seconds"),
        pytest.param(
            [(0, 0, "comes"), (0, 1, "comes"), (90, 0, (2, TRAINS)), (90, 1, (2, TRAINS))],
            LIMIT.quiet_s,
            id="what comes before the first step is no long step",
        ),
    ],
)
def test_how_long_a_step_is_waited_for(events, limit_s):
    assert after(events, 100).limit_s() == limit_s


def test_a_rank_that_may_take_long_is_told_with_what_it_does():
    assert after([*BEGINS, (2, 1, (2, "checkpoint"))], 3).busy() == {1: "checkpoint"}


def test_while_the_machine_is_paused_no_rank_is_quiet():
    time_s = [0.0]
    clock = AwakeClock(lambda: time_s[0])
    readings = []
    for time_s[0] in (0.1, 2.0, 62.0, 62.1):  # paused for a minute
        readings.append(clock())
    assert readings == pytest.approx([0.1, 2.0, 2.0, 2.1])
