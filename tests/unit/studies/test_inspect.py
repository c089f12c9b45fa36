"""A look inside: the training is loaded, checked, warmed up, asked one thing, and ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfkit.errors import InvalidValue
from perfkit.studies import inspect
from perfkit.worker import messages
from perfkit.worker.reports import SyncReport
from tests.unit.studies.fakes import FakeChild, FakeMachine, install

WHERE: dict[str, Any] = {"preset": "smoke", "device": "cpu"}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> FakeMachine:
    answer = FakeChild._answer

    def with_reports(child: FakeChild, command: messages.Command[Any]) -> Any:
        match command:
            case messages.FindSyncs():
                return SyncReport([], command.steps, "cpu")
        return answer(child, command)

    monkeypatch.setattr(FakeChild, "_answer", with_reports)
    return install(monkeypatch, FakeMachine())


def test_one_child_is_loaded_trained_asked_and_ended(machine: FakeMachine) -> None:
    assert inspect.syncs("cifar_resnet18", steps=3, **WHERE) == SyncReport([], 3, "cpu")
    commands = [command for _, command in machine.asked]
    assert [type(command) for command in commands] == [messages.Describe, messages.Train, messages.FindSyncs]
    assert commands[-1] == messages.FindSyncs(3)
    assert [child.stopped for child in machine.children] == [1]


def test_a_stage_that_cannot_act_is_refused_before_anything_is_trained(machine: FakeMachine) -> None:
    with pytest.raises(InvalidValue, match="'pinning' does not apply here"):
        inspect.syncs("cifar_resnet18", "pinning", **WHERE)
    assert [type(command) for _, command in machine.asked] == [messages.Describe]
    assert machine.alive() == []


def test_the_command_for_nsight_systems_names_the_switches(machine: FakeMachine, tmp_path: Path) -> None:
    command = inspect.nsys("cifar_resnet18", None, tmp_path / "out", settings={"amp": "bf16"}, **WHERE)
    assert command[0].endswith("nsys")
    assert "bf16" in " ".join(command)
    assert machine.alive() == []


def test_a_trace_must_have_a_name_that_viewers_open() -> None:
    with pytest.raises(InvalidValue, match=r"ends in .json or .json.gz"):
        inspect.profile("cifar_resnet18", out="trace.txt", **WHERE)
