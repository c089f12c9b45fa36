"""Which line is named: the innermost that has most of what it is called in, never a loop around all parts."""

import hashlib
import io
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from unittest.mock import Mock

import pytest
import torch
from torchvision import datasets, transforms
from torchvision.transforms import v2

from perfkit.additions.shared import clock as clocks
from perfkit.additions.shared import lines as lines_module
from perfkit.additions.shared.lines import (
    EVERY_S,
    Sampler,
    Spot,
    TimedLine,
    called,
    line_before,
    line_of,
    merged,
    timed_lines,
)

pytestmark = pytest.mark.timeout(300, method="thread")  # the other method needs the alarm itself

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


def test_in_a_loader_worker_what_has_started_it_does_not_say_what_it_does():
    def compiled(name, file):
        names = {"sys": sys}
        exec(compile(f"def {name}(call, *more): return call(*more)", file, "exec"), names)
        return names[name]

    start = compiled("start", "/lib/site-packages/multiprocessing/process.py")
    work = compiled("_worker_loop", "/lib/site-packages/" + lines_module._WORKER)
    jitter = compiled("jitter", "/lib/site-packages/torchvision/transforms.py")
    sampler = Sampler(lambda: "data set")

    def look():
        return sampler.stack(sys._getframe(1))

    assert start(work, jitter, look)[-1].calls == "jitter"
    assert start(work, look)[-1].calls == ""
    assert start(jitter, look)[-1].calls == "start", "no worker"


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


@pytest.mark.parametrize(
    ("function", "tells"),
    [
        (torch.utils.data.RandomSampler.__iter__, True),
        (torch.utils.data.BatchSampler.__iter__, False),
        (torch.utils.data.DataLoader.__iter__, False),
        (torch.utils.data._utils.fetch._MapDatasetFetcher.fetch, False),
        (torch.utils.data.default_collate, True),
        (torch.nn.Module._call_impl, False),
        (transforms.Compose.__call__, False),
        (v2.Compose.forward, False),
        (datasets.ImageFolder.__getitem__, False),
        (datasets.CIFAR10.__getitem__, False),
        (datasets.vision.StandardTransform.__call__, False),
        (datasets.folder.pil_loader, True),
        (torch.utils.data.TensorDataset.__getitem__, True),
        (transforms.RandomRotation.forward, True),
    ],
)
def test_functions_that_only_call_others_do_not_say_what_a_loop_over_a_loader_waits_for(function, tells):
    assert lines_module._is_telling(function.__code__) == tells


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
        until = time.thread_time() + 0.3  # of its own: as many looks on busy cores
        while time.thread_time() < until:
            for function, *given in work:
                function(*given)
    return sampler


def test_a_short_line_of_python_is_seen_between_calls_that_let_other_threads_run():
    """It is over within some 40 µs: else its time would be that of the calls."""
    sampler = seen_while([(mean, [0.5] * 1000), (digest, bytes(100_000))])
    seconds = Counter()
    for (_, stack), took in sampler.times.items():
        seconds[stack[-1].function] += took
    assert seconds["mean"] > 0.05 * seconds.total() and seconds["digest"] > 0.05 * seconds.total()


def pairs(known, count):
    """Looking up takes long; the last line of the loop, at which every alarm is handled, does not."""
    found = []
    for number in range(count):
        is_known = -number in known
        found.append((number, is_known))
    return found


def test_a_loop_without_calls_is_named_not_its_last_line():
    """Which of its lines took the time cannot be seen: the last one was blamed, and costs nothing."""
    sampler = seen_while([(pairs, [*range(2000)], 100)])
    seconds = Counter()
    for (_, stack), took in sampler.times.items():
        seconds[stack[-1].line - pairs.__code__.co_firstlineno] += took
    assert seconds.most_common(1)[0][0] == 3


def attend(queries, keys, values):
    """The second line takes the time, and no line has a call, after which Python would handle an alarm."""
    few = queries[:2] * 2
    weights = queries @ keys @ keys
    return weights[:2] @ values + few


def test_a_line_of_operators_is_seen_itself_not_what_comes_after_its_function():
    square = torch.rand(800, 800)
    sampler = seen_while([(attend, square, square, square), (mean, [0.5] * 100)])
    seconds = Counter()
    for (_, stack), took in sampler.times.items():
        seconds[stack[-1].function, stack[-1].line - attend.__code__.co_firstlineno] += took
    assert seconds.most_common(1)[0][0] == ("attend", 3)
    assert seconds["attend", 3] > 0.6 * seconds.total()


def test_files_to_which_signals_are_written_are_set_back():
    """Those of the script, set before and meanwhile: asyncio wakes by them."""
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    try:
        for set_meanwhile in (False, True):
            signal.set_wakeup_fd(-1 if set_meanwhile else writer)
            with Sampler(lambda: "own code").running():
                if set_meanwhile:
                    signal.set_wakeup_fd(writer)
                time.sleep(5 * EVERY_S)
            assert signal.set_wakeup_fd(-1) == writer
            if not set_meanwhile:
                with pytest.raises(BlockingIOError):  # alarms would fill it
                    os.read(reader, 100)
    finally:
        signal.set_wakeup_fd(-1)
        os.close(reader)
        os.close(writer)


def test_a_file_for_signals_that_the_script_has_closed_is_nobody_s():
    """Python cannot give it back, and the script went on without a word before it was watched."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    os.close(reader)
    os.close(writer)
    with Sampler(lambda: "own code").running():
        time.sleep(2 * EVERY_S)
    assert signal.set_wakeup_fd(-1) == -1


def same(value):
    return value


def look_up(numbers, number):
    """Looking up lets no other thread run, and Python handles an alarm where the next function begins."""
    is_known = number in numbers
    return same(is_known)


def test_a_function_that_begins_has_not_taken_the_time_before_it():
    sampler = seen_while([(look_up, [*range(5000)], -1)])
    seconds = Counter()
    for (_, stack), took in sampler.times.items():
        seconds[stack[-1].function] += took
    assert seconds["same"] < 0.8 * seconds.total(), "it had all of it; on busy cores some looks come late"


@pytest.fixture
def waiting():
    """A thread that stands still."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    yield thread
    end.set()
    thread.join()


def test_a_thread_that_went_on_meanwhile_is_looked_at_again(waiting):
    parts = iter(["first", "second", "second", "second"])
    sampler = Sampler(lambda: next(parts))
    sampler.look(waiting.ident, 0.0)
    assert [part for part, _ in sampler.times] == ["second"]


def test_a_thread_that_goes_on_while_its_stack_is_walked_is_looked_at_again(waiting):
    """Half of such a stack is of another part: it would give that part's lines the time of this one."""
    part = ["first"]

    class Walked(Sampler):
        def stack(self, frame):
            part[0] = "second"
            return super().stack(frame)

    sampler = Walked(lambda: part[0])
    sampler.look(waiting.ident, 0.0)
    assert [part for part, _ in sampler.times] == ["second"]


def test_a_late_look_counts_whole_intervals_and_leaves_the_rest_to_the_next_one(waiting, monkeypatch):
    """Else a long call would take the time of the short line before it, and always the same line be missed."""
    part, now = ["a long call"], [3.5 * EVERY_S]
    monkeypatch.setattr(lines_module, "clock", lambda: now[0])
    sampler = Sampler(lambda: part[0])
    counted = sampler.look(waiting.ident, 0.0)
    assert counted == pytest.approx(3 * EVERY_S)
    part[0], now[0] = "a short line", 4.1 * EVERY_S
    assert sampler.look(waiting.ident, counted) == pytest.approx(4 * EVERY_S)
    seconds = {part: took for (part, _), took in sampler.times.items()}
    assert seconds == pytest.approx({"a long call": 3 * EVERY_S, "a short line": EVERY_S})


def test_time_in_which_other_programs_have_the_core_is_that_of_no_part(monkeypatch):
    """A part of 4 ms in which this thread has waited for 60 ms takes as much as it does on a quiet machine."""
    now, waited = [0.0], [0.0]
    monkeypatch.setattr(lines_module, "own_time", lambda: now[0] - waited[0])
    monkeypatch.setattr(lines_module.signal, "setitimer", lambda *_: None)  # the test itself interrupts
    part = [""]
    sampler = Sampler(lambda: part[0])
    with sampler.running():
        for name, took, others in (("forward", 12 * EVERY_S, 0.0), ("backward", 36 * EVERY_S, 20 * EVERY_S)):
            part[0] = name
            now[0] += took
            waited[0] += others
            signal.raise_signal(signal.SIGALRM)
    seconds = Counter()
    for (name, _), took in sampler.times.items():
        seconds[name] += took
    assert seconds == pytest.approx({"forward": 12 * EVERY_S, "backward": 16 * EVERY_S}, abs=1.01 * EVERY_S)


def test_the_own_clock_stands_still_while_others_have_the_core(monkeypatch):
    def refused(*_):
        raise OSError

    def told(*_):
        return io.BytesIO(b"7000000000 30000000000 12\n")

    monkeypatch.setattr(clocks, "clock", lambda: 100.0)
    monkeypatch.setattr(clocks, "open", told, raising=False)
    assert clocks.own_time() == 70.0
    monkeypatch.setattr(clocks, "open", refused)
    assert clocks.own_time() == 100.0, "no other system tells"


def test_the_own_clock_goes_on_where_a_gpu_does(monkeypatch):
    monkeypatch.setattr(clocks, "clock", lambda: 100.0)
    monkeypatch.setattr(clocks, "open", lambda *_: io.BytesIO(b"7 30000000000 12\n"), raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert clocks.own_time() == 100.0


def test_a_script_that_replaces_its_clock_changes_none_of_perfkit_s(monkeypatch):
    monkeypatch.setattr(time, "perf_counter", lambda: -1e9)
    before = clocks.own_time()
    assert clocks.clock() > 0 and before < clocks.own_time()


@pytest.mark.parametrize("interrupts", [True, False])
def test_a_thread_is_looked_at_with_its_part(interrupts, monkeypatch):
    monkeypatch.setattr(Sampler, "_may_interrupt", lambda sampler: interrupts)
    part, sampler = ["forward"], None
    sampler = Sampler(lambda: part[0], lambda file: "here.py")
    with sampler.running():
        until = time.perf_counter() + 0.2
        while time.perf_counter() < until:
            sum(range(1000))
    assert {key[0] for key in sampler.times} == {"forward"}
    assert all(stack[-1].file == "here.py" for _, stack in sampler.times)


@pytest.mark.parametrize("interrupts", [True, False])
def test_where_no_thread_can_start_the_process_goes_on_as_it_was(interrupts, monkeypatch):
    monkeypatch.setattr(Sampler, "_may_interrupt", lambda sampler: interrupts)
    before = sys.getswitchinterval(), signal.getsignal(signal.SIGALRM)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError), Sampler(lambda: "part").running():
            pytest.fail("nobody looks")
    assert (sys.getswitchinterval(), signal.getsignal(signal.SIGALRM)) == before
    assert signal.set_wakeup_fd(-1) == -1


def test_an_instruction_without_a_line_is_part_of_the_loop_that_it_ends():
    """Python 3.11 has such a jump at the end of this loop, and looks at alarms there."""

    def look_up(words, known):
        ids = []
        for word in words:
            if word in known:
                ids.append(known[word])
        return ids

    first = look_up.__code__.co_firstlineno
    ranges = list(look_up.__code__.co_lines())
    without = [start for start, _, line in ranges if line is None] or [ranges[-1][0]]
    assert {line_before(look_up.__code__, at) for at in without} <= {*range(first, first + 6)}
    known = [line for _, _, line in ranges if line]
    assert [line_before(look_up.__code__, start) for start, _, line in ranges if line] == known


def test_a_place_has_a_line_where_python_knows_none():
    """A garbage collection may begin at such an instruction, as at any other."""
    found = {"sys": sys}
    exec(compile("def here():\n    return sys._getframe()", "/home/me/train.py", "exec"), found)
    here = found["here"]
    here.__code__ = here.__code__.replace(co_linetable=b"")
    frame = here()
    assert frame.f_lineno is None
    assert line_of(frame) == 1
    assert next(Sampler(lambda: "own code").lines(frame)) == "/home/me/train.py:1"


def test_an_alarm_of_the_script_is_left_as_it_is():
    """Then another thread looks, as it does where the script trains outside of the main thread."""
    sampler = Sampler(lambda: "own code")
    assert sampler._may_interrupt()
    before = signal.signal(signal.SIGALRM, lambda number, frame: None)
    try:
        assert not sampler._may_interrupt()
    finally:
        signal.signal(signal.SIGALRM, before)
    signal.alarm(1000)
    try:
        assert not sampler._may_interrupt()
    finally:
        signal.alarm(0)
    asked = []
    thread = threading.Thread(target=lambda: asked.append(sampler._may_interrupt()))
    thread.start()
    thread.join()
    assert asked == [False]


def test_what_interrupts_is_gone_afterwards_and_a_loader_worker_that_is_forked_meanwhile_may_be_interrupted():
    with Sampler(lambda: "own code").running():
        assert any(signal.getitimer(signal.ITIMER_REAL))
        if (pid := os.fork()) == 0:
            os._exit(0 if Sampler(lambda: "data set")._may_interrupt() else 1)
        assert os.waitpid(pid, 0)[1] == 0
    assert (
        not any(signal.getitimer(signal.ITIMER_REAL)) and signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
    )


def test_a_call_that_cannot_be_interrupted_has_all_of_its_time_and_the_line_before_it_keeps_its_own():
    """A tokenizer that splits in C, then looks words up in Python: the second line is no part of the first."""
    text, known = "a word, " * 20_000, dict.fromkeys(["a", "word"], 1)

    def split():
        return re.split(r"\W+", text)

    def look_up(words):
        ids = []
        for word in words:
            ids.append(known.get(word, 0))
        return ids

    sampler, took = Sampler(lambda: "data set"), Counter()
    with sampler.running():
        for _ in range(30):
            start = clocks.own_time()
            words = split()
            middle = clocks.own_time()
            look_up(words)
            took["split"] += middle - start
            took["look_up"] += clocks.own_time() - middle
    seconds = Counter()
    for (_, stack), each in sampler.times.items():
        seconds[stack[-1].function.rpartition(".")[2]] += each
    for name, share in took.items():
        assert seconds[name] / seconds.total() == pytest.approx(share / took.total(), abs=0.2)


def test_a_worker_that_is_forked_while_its_parent_is_looked_at_is_looked_at_as_well():
    """It had its parent's file for signals, which counted as the script's own: operators had no time."""
    with Sampler(lambda: "own code").running():
        of_parent = {*lines_module._writers}
        child = os.fork()
        if not child:
            with Sampler(lambda: "own code").running():
                sets_its_own = signal.set_wakeup_fd(-1) not in {-1, *of_parent}
            os._exit(0 if sets_its_own else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_thread_that_has_ended_takes_no_time():
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    sampler = Sampler(lambda: "own code")
    assert sampler.look(thread.ident, 0.0) > 0.0 and not sampler.times


def test_no_line_takes_less_than_no_time_where_the_clock_goes_back():
    """A wait for a core that came while the clock was read: a part of a step had a negative time."""
    sampler = Sampler(lambda: "backward")
    assert sampler.note([("backward", (MAIN,))], 1.0, 0.9) == 1.0
    assert sampler.times["backward", (MAIN,)] == 0.0
    sampler.note([("backward", (MAIN,))], 1.0, 1.1)
    assert sampler.times["backward", (MAIN,)] == pytest.approx(0.1, abs=EVERY_S)


def test_what_was_seen_is_handed_over_once():
    sampler = Sampler(lambda: "backward")
    sampler.note([("backward", (MAIN,))], 1.0, 1.1)
    assert [*sampler.taken()] == [("backward", (MAIN,))]
    sampler.note([("backward", (STEP,))], 1.1, 1.2)
    assert [*sampler.taken()] == [("backward", (STEP,))]
    assert sampler.taken() == {}


def test_a_look_of_no_time_at_all_names_no_line():
    """As two looks at the same moment in a busy loader worker: it raised there, and ended the training."""
    ends = (MAIN, Spot("train.py", 91, "main")), (MAIN, Spot("train.py", 92, "main"))
    assert all(
        line.seconds == 0 for line in timed_lines({("data set", ends[0]): 0.0, ("collate", ends[1]): 0.0})
    )
