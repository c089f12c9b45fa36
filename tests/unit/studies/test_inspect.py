"""A look inside: the training is loaded, checked, warmed up, asked one thing, and ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfkit.errors import InvalidValue
from perfkit.studies import inspect
from perfkit.worker import messages
from perfkit.worker.reports import KernelReport, StepWork, SyncReport
from tests.unit.studies.fakes import FakeChild, FakeMachine, install

WHERE: dict[str, Any] = {"preset": "smoke", "device": "cpu"}


def kernels(flops: int | None) -> KernelReport:
    work = StepWork(flops, None if flops is None else 200, "float32")
    return KernelReport(
        peaks={"float32": 100.0}, bytes_per_s=50.0, rows=[], work=work, misaligned=[], step_s=20.0
    )


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> FakeMachine:
    answer = FakeChild._answer

    def with_reports(child: FakeChild, command: messages.Command[Any]) -> Any:
        match command:
            case messages.FindSyncs():
                return SyncReport([])
            case messages.MeasureKernels():
                return kernels(500 if child.recipe.amp == "off" else None)
        return answer(child, command)

    monkeypatch.setattr(FakeChild, "_answer", with_reports)
    return install(monkeypatch, FakeMachine())


def test_one_child_is_loaded_trained_asked_and_ended(machine: FakeMachine) -> None:
    assert inspect.syncs("cifar_resnet18", steps=3, **WHERE) == {"places": [], "device": "cpu"}
    commands = [command for _, command in machine.asked]
    assert [type(command) for command in commands] == [messages.Describe, messages.Train, messages.FindSyncs]
    assert commands[-1] == messages.FindSyncs(3)
    assert [child.stopped for child in machine.children] == [1]


def test_shares_of_the_roof_are_known_where_the_work_is(machine: FakeMachine) -> None:
    found = inspect.kernels("cifar_resnet18", **WHERE)
    assert found["mfu"] == pytest.approx(500 / 100 / 20)
    assert found["light_share"] == pytest.approx((500 / 100 + 200 / 50) / 20)
    unknown = inspect.kernels("cifar_resnet18", settings={"amp": "bf16"}, **WHERE)
    assert unknown["mfu"] is unknown["light_share"] is None


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
