"""The parts of a run add up, whatever else is in a step."""

from collections import defaultdict
from types import SimpleNamespace

import pytest

from perfkit.additions.scripts.messages import BETWEEN, CHECKPOINTS, COMPILING, EPOCHS, EVALUATION, STEPS
from perfkit.additions.scripts.run_account import RunAccount
from perfkit.additions.scripts.script import ScriptStep
from tests.support.settings import settings


def account(*steps):
    script = SimpleNamespace(
        settings=settings(),
        looked_at=SimpleNamespace(value=False),
        steps=SimpleNamespace(count=0, now=ScriptStep()),
        sites=defaultdict(list),
    )
    kept = RunAccount(script)
    for step in steps:
        script.steps.count += 1
        kept.on_steps([step])
    return kept.account(started=10.0, began=14.0)


def step(seconds, *marks, **spent):
    spent = {"waiting": 0.1, **spent}
    return ScriptStep(seconds=seconds, updated=0.2, spent=defaultdict(float, spent), marks=set(marks))


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


def test_where_every_step_has_an_evaluation_in_it_there_are_still_steps():
    found = account(*[step(3.0, "evaluation", evaluated=2.0)] * 3)
    assert found.parts == {"start": 4.0, STEPS: 3.0, EVALUATION: 6.0} and found.evaluations == 3


def test_workers_that_are_ended_in_a_step_are_of_the_start_of_an_epoch():
    """A loader that is made anew may end its workers in any later step, once it is collected."""
    found = account(step(1.0), step(1.0), step(5.0, start=4.0))
    assert found.parts == {"start": 4.0, EPOCHS: 4.0, STEPS: 3.0}
