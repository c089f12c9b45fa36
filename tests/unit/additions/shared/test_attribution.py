"""Which line is named: the innermost that has most of what it is called in, never a loop around all parts."""

from collections import Counter

import pytest

from perfkit.additions.shared.attribution import TimedLine, called, merged, timed_lines
from perfkit.additions.shared.positions import Spot

MAIN, STEP = Spot("train.py", 90, "main"), Spot("train.py", 40, "step")


def named(times):
    return [(line.part, line.where, round(line.seconds, 2), line.calls) for line in timed_lines(times)]


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


def test_a_line_that_only_calls_is_said_with_the_function_whose_lines_share_its_time():
    """As a trainer's line that runs callbacks is, which says nothing of them."""
    hook, other = (Spot("/home/me/average.py", at, "Average.update") for at in (19, 20))
    hooks_line = Spot("lit.py", 32, "Trainer._call")
    times = {("own code", (MAIN, hooks_line, hook)): 3.0, ("own code", (MAIN, hooks_line, other)): 4.0}
    few = Spot("log.py", 7, "Log.update")
    (line,) = timed_lines(times | {("own code", (MAIN, hooks_line, few)): 2.0})
    assert line.with_function == "lit.py:32, in Average.update (average.py:20)"
    (line,) = timed_lines(
        times | {("own code", (MAIN, hooks_line, few)): 8.0, ("own code", (MAIN, hooks_line)): 8.0}
    )
    assert line.with_function == "lit.py:32", "it spends most of its time elsewhere"


def test_a_layer_that_a_line_was_seen_in_less_than_in_none_does_not_say_what_it_calls():
    """Noise by NumPy took 80% of a line that also calls layers, so the line was not named."""
    line = Spot("train.py", 37, "forward")
    noise = {("forward", (MAIN, line, Spot("train.py", at, "Noise.forward"))): 4.0 for at in (21, 22)}
    times = noise | {("forward", (MAIN, line._replace(calls="Sequential.forward"))): 2.0}
    assert named(times) == [("forward", "train.py:37", 10.0, [])]


def test_layers_that_a_line_was_mostly_seen_in_are_what_it_calls_however_many_they_are():
    line = Spot("train.py", 37, "forward")
    took = {"Linear.forward": 3.0, "Conv2d.forward": 3.0, "": 4.0}
    times = {("forward", (MAIN, line._replace(calls=name))): seconds for name, seconds in took.items()}
    ((*_, calls),) = named(times)
    assert sorted(calls) == ["Conv2d.forward", "Linear.forward"]


def test_a_line_that_has_most_of_the_time_is_named_whichever_lines_call_it():
    """Three layers of one class, of which each takes a third."""
    norm, product = (
        Spot("train.py", 32, "Layer.forward"),
        Spot("train.py", 33, "Layer.forward", "Linear.forward"),
    )
    times = {}
    for at in (45, 46, 47):
        layer = MAIN, Spot("train.py", 60, "main"), Spot("train.py", at, "Net.forward")
        times |= {("forward", (*layer, norm)): 0.3, ("forward", (*layer, product)): 0.03}
    assert named(times)[0] == ("forward", "train.py:32", 0.9, [])


def test_a_tokenizer_in_a_second_file_is_named_at_the_line_that_has_most_of_it():
    """Its lines share the time, so none of them is named, nor the data set's, which only calls."""
    item, call = Spot("data.py", 20, "Texts.__getitem__"), Spot("tokenizer.py", 23, "Tokenizer.__call__")
    shares = {10: 0.3, 11: 0.25, 12: 0.3}
    times = {("data set", (item, call, Spot("tokenizer.py", at, "tokenize"))): t for at, t in shares.items()}
    times |= {("data set", (item, call, Spot("tokenizer.py", 16, "convert"))): 0.15}
    assert named(times) == [("data set", "tokenizer.py:23", 1.0, [])]


def test_a_line_around_several_parts_of_a_step_is_never_named_for_one():
    """Else the loop itself would be what a script's own code takes."""
    own = {("own code", (MAIN, STEP, Spot("train.py", at, "step"))): 1.0 for at in (41, 43, 45)}
    other = {("backward", (MAIN, STEP, Spot("train.py", 44, "step", "Tensor.backward"))): 9.0}
    assert {place for _, place, *_ in named(own | other)} == {f"train.py:{at}" for at in (41, 43, 44, 45)}


def test_a_line_that_calls_the_model_is_named_for_what_it_takes_itself():
    """As one that asks for second derivatives, most of which is code of torch around that call."""
    hessian, call = Spot("train.py", 27, "laplacian", "hessian"), Spot("train.py", 20, "solution")
    times = {("own code", (MAIN, hessian)): 5.0, ("own code", (MAIN, hessian, call)): 0.1}
    assert named(times | {("forward", (MAIN, hessian, call)): 3.0}) == [
        ("own code", "train.py:27", 5.0, ["hessian"]),
        ("forward", "train.py:20", 3.0, []),
    ]


def test_a_line_that_different_parts_call_is_named_in_each_of_them():
    """The passes of a training call a decoder as a whole, and an evaluation calls it for each word."""
    decode, embed = Spot("train.py", 50, "decode"), Spot("train.py", 41, "embed")
    callers = {"forward": Spot("train.py", 91, "main"), "evaluation": Spot("train.py", 97, "main")}
    times = {(part, (MAIN, caller, decode)): 4.0 for part, caller in callers.items()}
    times |= {(part, (MAIN, caller, decode, embed)): 1.0 for part, caller in callers.items()}
    assert [(part, place) for part, place, *_ in named(times)] == [
        ("forward", "train.py:50"),
        ("evaluation", "train.py:50"),
    ]


def test_a_line_with_a_lambda_has_all_of_its_time():
    """As `sorted(rows, key=lambda row: …)`: looks find the call in it, or the lambda."""
    order = Spot("train.py", 20, "__iter__")
    times = {("start", (order,)): 4.0, ("start", (order, order._replace(function="__iter__.<lambda>"))): 6.0}
    assert named(times) == [("start", "train.py:20", 10.0, [])]


def test_a_line_that_several_lines_call_is_listed_once():
    both = {("data set", (Spot("train.py", at, "row"), Spot("train.py", 9, "read"))): 1.0 for at in (20, 21)}
    assert named(both) == [("data set", "train.py:9", 2.0, [])]


def test_a_line_of_several_workers_is_listed_once_with_the_time_of_all():
    of_workers = [TimedLine("data set", "data.py", at, seconds) for at in (7, 9) for seconds in (1.0, 2.0)]
    assert [(line.line, line.seconds) for line in merged(of_workers)] == [(7, 3.0), (9, 3.0)]


@pytest.mark.parametrize(("passes", "lines_of"), [([], [60]), ([("train.py", 60)], [31, 32, 33])])
def test_lines_in_a_backward_pass_are_named_though_none_has_most_of_it(passes, lines_of):
    """A Jacobian that is computed row by row: the call of the pass says nothing of where its time goes."""
    call = Spot("train.py", 60, "main", "")
    times = {("backward", (call, Spot("train.py", at, "Solve.backward"))): 1.0 for at in (31, 32, 33)}
    times[("backward", (call,))] = 0.01
    assert [line.line for line in timed_lines(times, passes)] == lines_of


def step_of(stack, count, callers=1):
    """What is said of the calls of a line whose function is called so often, from so many lines in turn."""
    calls = Counter({("train.py", "f"): count, ("train.py", "step"): 1})
    stacks = [(*stack[:-2], stack[-2]._replace(line=60 + at), stack[-1]) for at in range(callers)]
    times = {("forward", each): 1.0 for each in stacks}
    line = called(TimedLine("forward", "train.py", 41, 1.0), times, calls)
    return line.called, line.times


MAIN_F = (MAIN, Spot("train.py", 60, "step"), Spot("train.py", 41, "f"))


def test_a_line_of_a_function_is_said_with_the_loop_that_calls_it():
    assert step_of(MAIN_F, 25) == ("in f, called 25 times a step from train.py:60", 25)
    assert step_of(MAIN_F, 2) == ("", 0), "that is hardly a loop"
    assert step_of(MAIN_F, 25, callers=2) == ("", 0), "it is in two"
    nested = (MAIN_F[0], MAIN_F[1], Spot("train.py", 50, "f"), Spot("train.py", 41, "step.<locals>.f"))
    calls = Counter({("train.py", "step.<locals>.f"): 25, ("train.py", "f"): 25})
    said = called(TimedLine("forward", "train.py", 41, 1.0), {("forward", nested): 1.0}, calls).called
    assert said == "in f, called 25 times a step from train.py:60", "not where each call passes on the work"


def test_what_takes_little_is_left_out():
    times = {("own code", (Spot("train.py", at, "main"),)): t for at, t in ((1, 99.0), (2, 1.0))}
    assert [place for _, place, *_ in named(times)] == ["train.py:1"]


def test_a_look_of_no_time_at_all_names_no_line():
    """As two looks at the same moment in a busy loader worker: it raised there, and ended the training."""
    ends = (MAIN, Spot("train.py", 91, "main")), (MAIN, Spot("train.py", 92, "main"))
    assert all(
        line.seconds == 0 for line in timed_lines({("data set", ends[0]): 0.0, ("collate", ends[1]): 0.0})
    )
