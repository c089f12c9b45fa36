"""Which line is named: the innermost that has most of what it is called in, never a loop around all parts."""

import hashlib
import sys
import threading
import time
from collections import Counter

import pytest

from perfkit.additions.lines import Sampler, Spot, lines

MAIN, STEP = Spot("train.py", 90, "main"), Spot("train.py", 40, "step")


def named(times):
    return [(line.part, line.where, round(line.seconds, 2), line.calls) for line in lines(times)]


def test_a_line_of_a_library_is_the_user_s_that_called_it():
    times = {("own code", (MAIN, Spot("train.py", 43, "main", "collect"))): 9.0}
    assert named(times) == [("own code", "train.py:43", 9.0, ["collect"])]


def test_a_line_that_only_calls_gives_way_to_what_has_most_of_it_else_it_is_named_itself():
    update = Spot("train.py", 50, "main")
    most = {
        ("own code", (MAIN, update, Spot("train.py", at, "update"))): t for at, t in ((37, 1.0), (38, 8.0))
    }
    assert named(most)[0][1] == "train.py:38"
    spread = {("own code", (MAIN, update, Spot("train.py", at, "update"))): 1.0 for at in (37, 38, 39)}
    assert named(spread) == [("own code", "train.py:50", 3.0, [])]


def test_a_line_around_several_parts_of_a_step_is_never_named_for_one():
    """Else the loop itself would be what a script's own code takes."""
    own = {("own code", (MAIN, STEP, Spot("train.py", at, "step"))): 1.0 for at in (41, 43, 45)}
    other = {("backward", (MAIN, STEP, Spot("train.py", 44, "step", "Tensor.backward"))): 9.0}
    assert {place for _, place, *_ in named(own | other)} == {f"train.py:{at}" for at in (41, 43, 44, 45)}


def test_a_line_that_several_lines_call_is_listed_once():
    both = {("data set", (Spot("train.py", at, "row"), Spot("train.py", 9, "read"))): 1.0 for at in (20, 21)}
    assert named(both) == [("data set", "train.py:9", 2.0, [])]


def test_what_takes_little_is_left_out():
    times = {("own code", (Spot("train.py", at, "main"),)): t for at, t in ((1, 99.0), (2, 1.0))}
    assert [place for _, place, *_ in named(times)] == ["train.py:1"]


def mean(values):
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def digest(data):
    """Lets other threads run, as an operator of torch does."""
    return hashlib.sha256(data).digest()


def seen_while(work):
    """What a sampler sees of functions that are called one after the other for a while."""
    sampler = Sampler(lambda: "own code")
    with sampler.running():
        until = time.perf_counter() + 0.3
        while time.perf_counter() < until:
            for function, *given in work:
                function(*given)
    return sampler


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread wakes up too late for it")
def test_a_short_line_of_python_is_seen_between_calls_that_let_other_threads_run():
    """It is over within some 40 µs: else its time would be that of the calls."""
    sampler = seen_while([(mean, [0.5] * 1000), (digest, bytes(100_000))])
    seconds = Counter()
    for (_, stack), took in sampler.times.items():
        seconds[stack[-1].function] += took
    assert seconds["mean"] > 0.05 * seconds.total() and seconds["digest"] > 0.05 * seconds.total()


def test_a_thread_stands_still_while_it_is_looked_at():
    """Else its part would be that of one moment, and its stack that of a later one."""
    usual, while_looking, meanwhile = sys.getswitchinterval(), set(), set()
    sampler = Sampler(lambda: while_looking.add(sys.getswitchinterval()) or "own code")
    with sampler.running():
        until = time.perf_counter() + 0.1
        while time.perf_counter() < until:
            meanwhile.add(sys.getswitchinterval())
    assert min(while_looking) > 100 * min(meanwhile) and sys.getswitchinterval() == usual


def test_a_thread_that_went_on_meanwhile_is_looked_at_again():
    parts, end = iter(["first", "second", "second", "second"]), threading.Event()
    waiting = threading.Thread(target=end.wait)
    waiting.start()
    try:
        sampler = Sampler(lambda: next(parts))
        sampler.look(waiting.ident, 0.0)
    finally:
        end.set()
        waiting.join()
    assert [part for part, _ in sampler.times] == ["second"]


def test_a_thread_is_looked_at_with_its_part():
    part, sampler = ["forward"], None
    sampler = Sampler(lambda: part[0], lambda file: "here.py")
    with sampler.running():
        until = time.perf_counter() + 0.2
        while time.perf_counter() < until:
            sum(range(1000))
    assert {key[0] for key in sampler.times} == {"forward"}
    assert all(stack[-1].file == "here.py" for _, stack in sampler.times)
