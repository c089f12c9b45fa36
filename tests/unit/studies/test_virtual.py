"""Ladders and comparisons on a simulated GPU, without processes: plans are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfkit.errors import InvalidValue
from perfkit.ladder.stages import Stage
from perfkit.recipe import Recipe
from perfkit.results.store import RunStore
from perfkit.search import attribute, tune
from perfkit.simulate import gpus, prediction
from perfkit.simulate.step import Allocate, Copy, Fetch, Kernel, Operator, Step
from perfkit.simulate.study import compute
from perfkit.studies import compare, parity
from perfkit.studies import ladder as ladders
from perfkit.studies.plan import Plan, plan
from perfkit.studies.setup import prepare
from tests.unit.studies.fakes import FakeMachine, install

GB = 2**30


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> FakeMachine:
    """A step of any recipe: 0.1 ms of kernels, 10 kB and 20 MB of memory a sample."""

    def plan_step(workload: str, recipe: Recipe, **_: Any) -> Step:
        size = recipe.batch_size
        copy = Copy(10_000 * size, pinned=recipe.pin_memory, non_blocking=recipe.non_blocking)
        block = Allocate(20_000_000 * size, "activations", 1)
        events = [Operator("aten.mm", "forward", [], []), Fetch(), copy, block]
        return Step(events=events, samples=size, torch="2.15")

    def kernels(step: Step, gpu: Any, *_: Any) -> list[Kernel]:
        return [Kernel("k", "gemm", 1e-4 * step.samples, 0)]

    monkeypatch.setattr(prediction.planning, "plan_step", plan_step)
    monkeypatch.setattr(prediction.costs, "kernels", kernels)
    return install(monkeypatch, FakeMachine())


def where(host: str | None = "cores=4,fetch_ms=1", **more: Any) -> Plan:
    return plan("cifar_resnet18", "smoke", ["data_loading"], device="sim:v100", host=host, **more)


def stages(*sizes: int) -> list[Stage]:
    return [Stage(f"b{size}", f"batch {size}", Recipe(batch_size=size)) for size in sizes]


def test_a_ladder_is_computed_at_once_and_stored(machine: FakeMachine) -> None:
    first, second = ladders.measure_ladder(where(), RunStore())
    assert machine.blocks() == [], "nothing is measured"
    assert (first.device, first.status, first.losses) == ("sim:v100", "ok", [])
    assert second.recipe["workers"] == 4
    assert first.simulated
    assert first.simulated.host == "cores=4,fetch_ms=1"
    assert first.simulated.gpu.startswith("Tesla V100")
    assert len(first.simulated.constants) == 12
    assert second.speedup("previous").verdict == "predicted faster"  # type: ignore[union-attr]
    assert second.speedup("previous").ratio > 3  # type: ignore[union-attr]
    assert [one.id for one in RunStore().runs()] == [second.id, first.id]


def test_what_does_not_fit_fails_like_a_gpu_and_does_not_stop_the_others(machine: FakeMachine) -> None:
    with prepare(where()) as setup:
        failed: list[str] = []
        runs = list(compute(stages(8, 2048, 16), setup, 3, None, failed))
    assert [run.status for run in runs] == ["ok", "failed", "ok"]
    assert failed == ["b2048"]
    assert runs[1].reason.startswith("out of memory on the simulated GPU: the step needs 38.15 GiB")
    assert "Lower batch_size" in runs[1].reason
    assert runs[2].pairings[0].against == runs[0].id


def test_an_unknown_fetch_cost_is_said_and_not_guessed(machine: FakeMachine) -> None:
    with prepare(where()) as setup:
        (run,) = compute([Stage("r", "r", Recipe(uint8_copy=True))], setup, 1, None, [])
    assert run.status == "failed"
    assert "does not know what fetching costs" in run.reason


def test_a_comparison_is_a_prediction_too(machine: FakeMachine) -> None:
    sides = [compare.Candidate(name, Recipe(workers=workers)) for name, workers in (("one", 1), ("four", 4))]
    result = compare.compare(*sides, where())
    assert result.ratio.verdict == "predicted faster"
    assert "simulated on sim:v100" in result.describe()
    again = compare.compare_stored(result.a, result.b)
    assert again.ratio == result.ratio


def test_no_study_makes_a_winner_of_a_prediction(machine: FakeMachine) -> None:
    for study in (
        lambda: tune.tune(where()),
        lambda: attribute.attribute(where()),
        lambda: parity.parity(where(), "x", Recipe()),
        lambda: compare.measure_noise(where()),
    ):
        with pytest.raises(InvalidValue, match=r"is refused on sim:v100"):
            study()
    assert machine.asked == []


def test_a_plan_knows_gpu_host_and_precision(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    half_only = msgspec.structs.replace(gpus.gpu("rtx3090"), anchored={"float16": "a figure"})
    monkeypatch.setitem(gpus.GPUS, "rtx3090", half_only)
    with pytest.raises(InvalidValue, match=r"unknown simulated GPU 'v200'. Did you mean 'v100'"):
        plan(device="sim:v200")
    with pytest.raises(InvalidValue, match="host of a simulated GPU"):
        plan(device="cpu", host="article")
    article = plan(device="sim:v100", host="article")
    assert (article.preset.name, article.stages[0], article.workload) == (
        "paper", "data_loading", "cifar_resnet18",
    )  # fmt: skip
    with pytest.raises(InvalidValue, match=r"not simulated in tf32.*--set amp=fp16"):
        ladders.measure_ladder(plan("cifar_resnet18", "smoke", device="sim:rtx3090", host="ideal"))
