"""What a sampler sees: each line takes the time that it took, by looks at alarms or from another thread."""

import hashlib
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
from perfkit.additions.shared import sampler as samplers
from perfkit.additions.shared.positions import Spot
from perfkit.additions.shared.sampler import EVERY_S, Sampler

pytestmark = pytest.mark.timeout(300, method="thread")  # the other method needs the alarm itself

MAIN, STEP = Spot("train.py", 90, "main"), Spot("train.py", 40, "step")


def test_in_a_loader_worker_what_has_started_it_does_not_say_what_it_does():
    def compiled(name, file):
        names = {"sys": sys}
        exec(compile(f"def {name}(call, *more): return call(*more)", file, "exec"), names)
        return names[name]

    start = compiled("start", "/lib/site-packages/multiprocessing/process.py")
    work = compiled("_worker_loop", "/lib/site-packages/" + samplers._WORKER)
    jitter = compiled("jitter", "/lib/site-packages/torchvision/transforms.py")
    sampler = Sampler(lambda: "data set")

    def look():
        return sampler.stack(sys._getframe(1))

    assert start(work, jitter, look)[-1].calls == "jitter"
    assert start(work, look)[-1].calls == ""
    assert start(jitter, look)[-1].calls == "start", "no worker"


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
    assert samplers._is_telling(function.__code__) == tells


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
    monkeypatch.setattr(samplers, "clock", lambda: now[0])
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
    monkeypatch.setattr(samplers, "own_time", lambda: now[0] - waited[0])
    monkeypatch.setattr(samplers.signal, "setitimer", lambda *_: None)  # the test itself interrupts
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
        of_parent = {*samplers._writers}
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
