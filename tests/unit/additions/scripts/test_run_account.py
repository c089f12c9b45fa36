"""The parts of a run add up, whatever else is in a step."""

import sys
import threading
from collections import defaultdict
from types import SimpleNamespace

import pytest

from perfkit.additions.scripts import run_account, startup
from perfkit.additions.scripts.messages import (
    BETWEEN,
    CHECKPOINTS,
    COMPILING,
    EPOCHS,
    EVALUATION,
    OWN,
    STEPS,
)
from perfkit.additions.scripts.run_account import RunAccount
from perfkit.additions.scripts.script import Script, ScriptStep
from perfkit.additions.scripts.watching import trend_of
from perfkit.additions.shared.sampler import Sampler
from tests.support.settings import settings


def script_of():
    script = Script(settings(), None)
    script.steps.began_at = 1.0
    return script


def account(*steps):
    script = script_of()
    kept = RunAccount(script)
    for step in steps:
        script.steps.count += 1
        kept.on_steps([step])
    return kept.account(started=10.0, began=14.0)


def step(seconds, *marks, **spent):
    spent = {"waiting": 0.1, "optimizer": 0.2, **spent}
    return ScriptStep(seconds=seconds, spent=defaultdict(float, spent), marks=set(marks))


def test_evaluation_checkpoints_and_compilation_are_parts_of_the_run_and_not_of_a_step():
    plain = [step(1.0, forward=0.3, backward=0.3)] * 4
    marked = [
        step(9.0, "evaluation", evaluated=8.0),
        step(3.0, "checkpoint", checkpoint=2.0),
        step(31.0, "compilation"),
        step(6.0, "new epoch"),
    ]
    found = account(*plain, *marked)
    expected = {
        "start": 4.0, STEPS: 8.0, EVALUATION: 8.0, CHECKPOINTS: 2.0, COMPILING: 30.0, BETWEEN: 5.0,
    }  # fmt: skip
    assert found.parts == expected
    assert found.seconds == pytest.approx(4 + 4 + 9 + 3 + 31 + 6)
    assert found.running(EVALUATION) == pytest.approx(8 / 53)
    assert found.of_step == pytest.approx(
        {"waiting": 0.1, "forward": 0.3, "backward": 0.3, "optimizer": 0.2, "own code": 0.1}
    )


def test_where_every_step_compiles_the_run_is_compilation():
    """A budget may end before any other step: that the run was nothing but steps told of no cause."""
    found = account(*[step(30.0, "compilation")] * 3)
    assert found.parts == {"start": 4.0, COMPILING: 90.0} and found.compiled == 3


def test_where_every_step_has_an_evaluation_in_it_there_are_still_steps():
    found = account(*[step(3.0, "evaluation", evaluated=2.0)] * 3)
    assert found.parts == {"start": 4.0, STEPS: 3.0, EVALUATION: 6.0} and found.evaluations == 3


def test_steps_have_their_numbers_in_the_run_where_none_is_plain():
    """A trend names the step from which on they are slower; positions in a list were given instead."""
    script = script_of()
    kept = RunAccount(script)
    script.steps.count = 40  # before the account began
    for seconds in (3.0, 4.0):
        script.steps.count += 1
        kept.on_steps([step(seconds, "new epoch")])
    kept._script.steps.since = run_account.clock()
    kept.on_end()
    found = kept.account(started=10.0, began=14.0)
    assert [each.number for each in found.plain] == [41, 42, 43] and found.epochs == [41, 42]


def test_where_no_step_is_plain_those_that_get_longer_on_a_busy_machine_are_no_trend(monkeypatch):
    """Each needs as much of a core as the others: other programs take more and more of the cores."""
    script = script_of()
    kept = RunAccount(script)
    for at in range(40):
        monkeypatch.setattr(run_account, "cpu_clock", lambda now=at + 1.0: now)
        script.steps.count += 1
        marks = ["evaluation", "new epoch"] if at % 20 == 0 else ["evaluation"]
        kept.on_steps([step(2.0 + at % 20, *marks, forward=1.0 + at % 20)])
    found = kept.account(started=10.0, began=14.0)
    assert trend_of(found)[0].kind == "saw-tooth"
    assert trend_of(found, is_disturbed=True) == (None, "")


def test_workers_that_are_ended_in_a_step_are_of_the_start_of_an_epoch():
    """A loader that is made anew may end its workers in any later step, once it is collected."""
    found = account(step(1.0), step(1.0), step(5.0, start=4.0))
    assert found.parts == {"start": 4.0, EPOCHS: 4.0, STEPS: 3.0}


def test_what_the_process_grew_by_in_an_evaluation_is_asked_at_its_begin_and_now_and_then(monkeypatch):
    times = iter(at / 100 for at in range(1000))
    monkeypatch.setattr(run_account, "clock", lambda: next(times))
    sizes = [5_000, 9_000, 8_000, 1_000]
    kept = RunAccount(script_of())
    kept._process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=sizes.pop(0)))
    while len(sizes) > 1:
        kept.on_evaluation()
    kept.on_training()
    kept.on_evaluation()  # another one begins, with less
    assert kept.account(started=10.0, began=14.0).evaluation_bytes == 4_000


def test_a_batch_of_an_evaluation_that_comes_soon_asks_for_no_memory(monkeypatch):
    monkeypatch.setattr(run_account, "clock", lambda: 7.0)
    asked = []
    kept = RunAccount(script_of())
    kept._process = SimpleNamespace(memory_info=lambda: asked.append(1) or SimpleNamespace(rss=5_000))
    for _batch in range(100):
        kept.on_evaluation()
    assert len(asked) == 1


def test_what_follows_train_is_no_evaluation_any_more(monkeypatch):
    """As new negative samples are drawn for the next epoch: 78% of a run was said to be evaluation."""
    now = [100.0]
    monkeypatch.setattr(run_account, "clock", lambda: now[0])
    script = script_of()
    script.calls = SimpleNamespace(note=lambda role: None)
    spent = script.steps.now.spent
    kept = RunAccount(script)
    kept._sees_memory = False
    for evaluating_s, preparing_s in ((3.0, 10.0), (2.0, 20.0)):  # two in one step
        kept.on_mode(False)
        now[0] += evaluating_s
        spent["checkpoint"] += 1.0
        kept.on_mode(True)
        now[0] += preparing_s
    kept.on_training()
    assert spent["evaluated"] == pytest.approx(3.0), "5 s, of which 2 s were checkpoints"
    kept.on_mode(False)
    assert kept.part_now() == EVALUATION
    kept.on_mode(True)
    assert kept.part_now() == OWN


def test_where_the_script_is_before_its_first_step_is_told(tmp_path, monkeypatch):
    file = tmp_path / "text.py"
    file.write_text("def build(is_over):\n    while not is_over():\n        pass\n")
    names = {}
    exec(compile(file.read_text(), file, "exec"), names)
    script = Script(settings(), None)
    started = startup.StartUp(script)
    names["build"](lambda: started._sampler.times)  # it is looked at until it is seen
    script.steps.began_at = 1.0
    (line, *_) = started.lines()
    assert line.part == "before the first step" and line.where in ("text.py:2", "text.py:3")
    assert line.seconds > 0


def test_who_waits_for_all_other_threads_does_not_wait_for_that_look():
    before = threading.enumerate()
    script = Script(settings(), None)
    startup.StartUp(script)
    assert threading.enumerate() == before
    script.steps.began_at = 1.0


def test_a_deep_recursion_before_the_first_step_is_not_looked_at(monkeypatch):
    """To walk its stack takes as long as what it does."""
    walked = []
    monkeypatch.setattr(Sampler, "stack", lambda _, frame: walked.append(frame))
    sampler = startup.ShallowSampler(str, str)

    def look(depth):
        return look(depth - 1) if depth else sampler.stack(sys._getframe())

    assert look(startup.LIMIT.deepest) == () and not walked
    look(1)
    assert len(walked) == 1


def test_the_workers_of_a_first_evaluation_are_not_taken_from_a_second_one(monkeypatch):
    """`evaluate(val); evaluate(test)`, each with eval() and train()."""
    now = [100.0]
    monkeypatch.setattr(run_account, "clock", lambda: now[0])
    script = script_of()
    script.calls = SimpleNamespace(note=lambda role: None)
    spent = script.steps.now.spent
    kept = RunAccount(script)
    kept._sees_memory = False
    for starting_s in (2.0, 0.0):
        kept.on_mode(False)
        now[0] += 3.0
        spent["start"] += starting_s
        kept.on_mode(True)
    assert spent["evaluated"] == pytest.approx(1.0 + 3.0)
