"""The stages of a plan: each on the last one that worked; recipes with nothing left; diffs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfkit.errors import RunFailed
from perfkit.recipe import Recipe
from perfkit.results.run import Raw, Run
from perfkit.results.store import RunStore
from perfkit.rules import Target
from perfkit.studies import ladder
from perfkit.studies.plan import Plan, plan
from perfkit.worker import messages
from tests.unit.studies.fakes import FakeMachine, install

CPU = Target(device="cpu", offers=frozenset({"uint8_copy"}))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> FakeMachine:
    return install(monkeypatch, FakeMachine())


def where(*stages: str, **more: Any) -> Plan:
    return plan("cifar_resnet18", "smoke", stages, device="cpu", **more)


def run(status: Any, wait: float = 0.0) -> Run:
    raw = Raw(step_s=[1.0], data_wait_s=[wait])
    return Run(
        id="r",
        session="s",
        created="",
        stage="x",
        workload="w",
        device="cpu",
        recipe={},
        status=status,
        raw=raw,
    )


def test_every_stage_is_stored_and_builds_on_the_last_one_that_worked(machine: FakeMachine) -> None:
    def fails(child: Any, command: messages.Command[Any]) -> Exception | None:
        broken = (
            isinstance(command, messages.Train)
            and command.recipe["workers"]
            and not command.recipe["uint8_copy"]
        )
        return RunFailed("broken", "fix it") if broken else None

    machine.fails = fails
    store = RunStore()
    runs = ladder.measure_ladder(where("data_loading", "pinning", "uint8_copy"), store)
    assert [run.status for run in runs] == ["ok", "failed", "not_applicable", "ok"]
    assert runs[3].recipe["workers"] == 0, "the failing stage is not part of what follows"
    assert [kept.id for kept in reversed(store.runs())] == [run.id for run in runs]


def test_without_runs_each_stage_builds_on_the_one_before() -> None:
    stages = list(ladder.ladder_stages(where("data_loading", "pinning", "uint8_copy"), CPU))
    assert [stage.name for stage in stages] == ["baseline", "data_loading", "pinning", "uint8_copy"]
    assert stages[2].reason
    assert stages[3].recipe.workers > 0
    assert stages[3].recipe.uint8_copy


def test_a_plans_own_values_replace_those_of_the_ladder() -> None:
    chosen = replace(where("data_loading", settings={"amp": "bf16"}), changes={"workers": 3})
    baseline, stage = ladder.ladder_stages(chosen, CPU)
    assert (baseline.recipe.amp, baseline.recipe.workers) == ("bf16", 0)
    assert (stage.recipe.amp, stage.recipe.workers) == ("bf16", 3)


def test_a_recipe_of_which_nothing_can_act_is_not_measured_again() -> None:
    base, pinned = Recipe(batch_size=8), Recipe(batch_size=8, workers=1, pin_memory=True)
    stages = ladder.recipe_stages(
        [
            ("base", base),
            ("pinned", base.replace(pin_memory=True)),
            ("workers", pinned),
            ("base again", base),
        ],
        CPU,
    )
    assert [bool(stage.reason) for stage in stages] == [False, True, False, False]
    assert "CUDA" in stages[1].reason
    assert stages[2].recipe.workers == 1
    assert stages[2].not_applied


def test_resolving_loads_the_workload_once_and_measures_nothing(machine: FakeMachine) -> None:
    description, stages = ladder.resolve(where("uint8_copy"))
    assert description.reference == "m:W"
    assert [stage.name for stage in stages] == ["baseline", "uint8_copy"]
    assert [type(command) for _, command in machine.asked] == [messages.Describe]
    assert machine.alive() == []


def test_a_diff_is_of_what_can_act(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(ladder, "recipe_diff", lambda *given: seen.append(given) or "diff")
    description, _ = ladder.resolve(where())
    assert ladder.stage_diffs(where("uint8_copy"), description) == [("What it changes here", "diff")]
    *_, before, after, name = seen[0]
    assert (before.uint8_copy, after.uint8_copy, name) == (False, True, "uint8_copy")


def test_the_diff_on_a_gpu_needs_no_gpu(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "recipe_diff", lambda plan, *given: f"+ device={plan.device}")
    description, _ = ladder.resolve(where())
    (here, nothing), on_gpu = ladder.stage_diffs(where("pinning"), description)
    assert "CUDA device" in here
    assert nothing == ""
    assert on_gpu == ("What it changes on a GPU", "+ device=cuda")
    flat = msgspec.structs.replace(description, convolves=False)
    (nowhere,) = ladder.stage_diffs(where("channels_last"), flat)
    assert nowhere[0].startswith("n/a here: this model has no convolution")
