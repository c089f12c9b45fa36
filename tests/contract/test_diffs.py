"""For every stage: measured recipe, shown diff, exported script and the rung of the ladder agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfkit import export
from perfkit.ladder.catalogue import LADDER, OPTIMIZATIONS
from perfkit.ladder.stages import Stage
from perfkit.recipe import Recipe, switches
from perfkit.studies import ladder, setup
from perfkit.studies import plan as plans
from perfkit.worker.messages import Command, Describe, Description, DeviceFacts, MeasureCommunication, Train
from tests.unit.studies import fakes

WORKLOAD = "perfkit.workloads.cifar_resnet18:CifarResNet18"
OFFERS = sorted(name for name, switch in switches().items() if switch.needs == "workload")
DESCRIPTION = Description(WORKLOAD, {"image_size": 32}, OFFERS, DeviceFacts(2, "2.15", count=8))
RUNGS = sorted(set(OPTIMIZATIONS) - {"baseline"})
WITHOUT_COMPILE = {"activation_checkpointing"}
"""They cannot act on top of the whole ladder, on any device."""
LOSSES = [2.3] * 8


class Child(fakes.FakeChild):
    """Of a machine with every device: it describes this workload."""

    def _answer(self, command: Command[Any]) -> Any:
        if isinstance(command, Describe):
            return DESCRIPTION
        if isinstance(command, MeasureCommunication):
            return None
        answer = super()._answer(command)
        return msgspec.structs.replace(answer, losses=LOSSES) if isinstance(command, Train) else answer


def plan(device: str, stages: tuple[str, ...] | None = None, below: bool = True) -> plans.Plan:
    return replace(plans.plan(WORKLOAD, "smoke", stages, device="cpu", below=below), device=device)


def stages(wanted: plans.Plan) -> list[Stage]:
    return list(ladder.ladder_stages(wanted, plans.target(wanted, DESCRIPTION)))


@pytest.fixture
def _machine(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    monkeypatch.setattr(fakes, "FakeChild", Child)
    monkeypatch.setattr(setup, "start_ranks", lambda first, *_: first)
    fakes.install(monkeypatch, fakes.FakeMachine())


@pytest.mark.parametrize(
    ("device", "below"), [("cpu", False), ("cpu", True), ("cuda", True)],
    ids=["cpu without workers", "cpu with workers", "cuda"],
)  # fmt: skip
@pytest.mark.parametrize("name", RUNGS)
@pytest.mark.usefixtures("_machine")
def test_what_is_measured_is_what_is_shown_and_exported(name: str, device: str, below: bool) -> None:
    wanted = plan(device, (name,), below)
    before, after = stages(wanted)
    runs = [run for run in ladder.measure_ladder(wanted) if run.stage in ("baseline", name)]
    assert [run.status for run in runs] == ["ok", "not_applicable" if after.reason else "ok"]
    (title, diff), *on_gpu = ladder.stage_diffs(wanted, DESCRIPTION)
    if after.reason:
        assert title == f"n/a here: {after.reason}"
        assert diff == ""
        assert not (on_gpu and device == "cuda")
        return
    recipes = [Recipe.from_dict(run.recipe) for run in runs]
    assert recipes == [before.recipe, after.recipe], "the measured recipes are those of the stages"
    scripts = [plans.script(recipe, DESCRIPTION, device, wanted.seed, len(LOSSES)) for recipe in recipes]
    assert diff == export.diff(*scripts, (f"train.py before {name}", f"train.py with {name}"))
    assert diff, "a stage that is measured changes the script"
    assert list(plans.scripts(runs).values()) == scripts


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_stage_alone_is_the_rung_of_the_ladder(device: str) -> None:
    rungs = stages(plan(device, below=False))
    assert [rung.name for rung in rungs] == list(LADDER)
    for at, name in enumerate(LADDER[1:], start=1):
        before, after = stages(plan(device, (name,)))
        assert before.recipe == rungs[at - 1].recipe, name
        assert (after.recipe, after.reason) == (rungs[at].recipe, rungs[at].reason), name


@pytest.mark.parametrize("name", RUNGS)
def test_on_a_machine_without_a_gpu_the_diff_on_one_is_shown_where_it_differs(name: str) -> None:
    shown = [text for _, text in ladder.stage_diffs(plan("cpu", (name,)), DESCRIPTION) if text]
    ((_, on_gpu),) = ladder.stage_diffs(plan("cuda", (name,)), DESCRIPTION)
    assert bool(shown) == bool(on_gpu) == (name not in WITHOUT_COMPILE)
    assert not shown or changed(shown[-1]) == changed(on_gpu)


def changed(diff: str) -> list[str]:
    return [line for line in diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
