"""A loaded workload: who owns its children, who waits for the device, how far a study has come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfkit.errors import RunFailed
from perfkit.recipe import Recipe
from perfkit.results.run import Run
from perfkit.studies import setup as setups
from perfkit.studies.plan import Plan, Progress, plan
from perfkit.studies.setup import Setup, Tracker, prepare
from perfkit.worker import messages
from tests.unit.studies.fakes import FakeMachine, install

RUN = Run(id="r", session="s", created="", stage="x", title="X", workload="w", device="cpu", recipe={})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> FakeMachine:
    return install(monkeypatch, FakeMachine())


@pytest.fixture
def where(data_dir: Path) -> Plan:
    return plan("cifar_resnet18", "smoke", ["baseline"], device="cpu")


def test_phases_and_rounds_become_the_progress_of_the_study() -> None:
    seen: list[tuple[str, str, float]] = []
    tracker = Tracker(lambda p: seen.append((p.stage, p.phase, round(p.fraction, 3))))
    tracker.start("A", total=2)
    tracker.phase("warm-up")
    tracker.phase("building")  # of another child: nothing goes back
    tracker.started()
    tracker.start("B", total=2)
    tracker.phase("building")
    tracker.started()
    tracker.rounds("round 1", 0.5)
    tracker.phase("measuring")
    tracker.finish(RUN)
    tracker.finish(RUN)
    assert seen == [
        ("A", "warm-up", 0.07), ("A", "building", 0.07), ("B", "building", 0.13),
        ("round 1", "measuring", 0.6), ("X", "ok", 0.6), ("X", "ok", 1.0),
    ]  # fmt: skip


def test_the_first_training_uses_the_child_that_has_loaded_the_workload(
    machine: FakeMachine, where: Plan
) -> None:
    with Setup(where) as setup:
        for _ in range(2):
            setup.train(Recipe(), loss_steps=2)
        assert machine.alive() == [0, 1]
    assert machine.alive() == []


def test_ranks_are_started_beside_it_and_end_with_it(
    machine: FakeMachine, where: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(first: Any, describe: messages.Describe, ranks: int, nodes: Any) -> Any:
        assert (describe.workload, ranks) == ("cifar_resnet18", 2)
        return first

    monkeypatch.setattr(setups, "start_ranks", start)
    with Setup(where) as setup:
        setup.train(Recipe(ranks=2), loss_steps=2)
    assert [child.stopped for child in machine.children] == [1]


def test_a_training_that_fails_leaves_no_process(machine: FakeMachine, where: Plan) -> None:
    machine.fails = lambda child, command: RunFailed("no", "yes") if child.started == 0.0 and isinstance(
        command, messages.Train
    ) else None  # fmt: skip
    with Setup(where) as setup:
        with pytest.raises(RunFailed):
            setup.train(Recipe(), loss_steps=2)
        assert machine.alive() == []


def test_a_second_study_waits_for_the_device_and_says_so(machine: FakeMachine, where: Plan) -> None:
    class Enough(Exception):
        pass

    def follow(progress: Progress) -> None:
        assert progress.phase == "waiting: another run uses cpu"
        raise Enough

    with prepare(where), pytest.raises(Enough), prepare(where, on_progress=follow):
        pytest.fail("both have the device")
    with prepare(replace(where, seed=1)):
        assert len(machine.alive()) == 1
