"""What only a GPU can show. Run there with `python -m pytest tests/gpu`; skipped where there is none."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit import machine
from perfkit.ladder.catalogue import LADDER
from perfkit.recipe import Recipe
from perfkit.results.run import Run
from perfkit.results.store import RunStore
from perfkit.studies import sources
from perfkit.studies.rungs import climb

pytestmark = pytest.mark.usefixtures("no_orphans")

CIFAR = "cifar_resnet18"


def measured(**wanted: Any) -> list[Run]:
    plan = sources.plan(CIFAR, "smoke", device="cuda", **wanted)
    return climb(plan, RunStore())


@pytest.fixture(scope="module")
def ladder() -> dict[str, Run]:
    """The whole default ladder at smoke size."""
    return {run.stage: run for run in measured()}


def test_every_stage_of_the_ladder_is_real_on_a_gpu(ladder: dict[str, Run]) -> None:
    assert ladder.keys() == {*LADDER}
    reasons = {name: run.reason for name, run in ladder.items() if run.status != "ok"}
    assert reasons.keys() == {"allocator"}, reasons  # it keeps the host's memory


def evidence(run: Run, switch: str) -> str:
    return next(proof.evidence for proof in run.mechanism if proof.switch == switch)


def test_pinning_is_proven(ladder: dict[str, Run]) -> None:
    assert evidence(ladder["pinning"], "pin_memory") == "batches lie in page-locked memory"
    assert evidence(ladder["pinning"], "non_blocking") == "the copies do not wait"
    assert evidence(ladder["baseline"], "pin_memory") == "batches lie in pageable memory"


def test_bytes_that_cross_are_counted(ladder: dict[str, Run]) -> None:
    assert ladder["baseline"].h2d_bytes_per_sample == 3 * 48 * 48 * 4 + 8
    assert ladder["device_resize"].h2d_bytes_per_sample == 3 * 32 * 32 + 8


def test_device_times_memory_and_utilization_are_there(ladder: dict[str, Run]) -> None:
    run = ladder["baseline"]
    assert len(run.raw.device_step_s) == len(run.raw.step_s) - run.raw.warmup_steps
    assert all(seconds > 0 for seconds in run.raw.device_step_s)
    assert run.peak_memory_bytes
    assert run.peak_reserved_bytes
    assert run.peak_reserved_bytes >= run.peak_memory_bytes
    assert run.machine["device"]["uuid"] in {gpu["uuid"] for gpu in machine.facts()["gpus"]}


@pytest.mark.parametrize(
    "stage",
    [
        "device_prefetch",
        "tf32",
        "zero_grad",
        "cudnn_benchmark",
        "fused_optimizer",
        "amp_fp16",
        "accumulation",
    ],
)
def test_a_further_optimization_is_real_on_a_gpu(stage: str) -> None:
    baseline, run = measured(stages=[stage])
    assert (baseline.status, run.status, run.reason) == ("ok", "ok", "")
    assert all(mechanism.ok for mechanism in run.mechanism)


def test_losses_with_exact_switches_are_those_of_the_baseline(ladder: dict[str, Run]) -> None:
    assert ladder["data_loading"].losses == pytest.approx(ladder["baseline"].losses, rel=1e-4)
    assert ladder["pinning"].losses == pytest.approx(ladder["baseline"].losses, rel=1e-4)


def test_sides_that_do_not_fit_beside_each_other_are_measured_one_after_the_other() -> None:
    import dataclasses

    plan = sources.plan(CIFAR, "smoke", device="cuda", options={"image_size": 224})
    free = machine.facts()["gpus"][0]["memory_bytes"]
    batch = 1 << ((free // 40_000_000).bit_length() - 1)  # about 25 MB a sample: over half of the memory
    recipe = Recipe(batch_size=batch, uint8_copy=True, device_resize=True)
    options = {"image_size": 224, "samples": 2 * batch}
    plan = dataclasses.replace(
        plan, recipes=(("a", recipe), ("b", recipe.replace(zero_grad_set_to_none=False))), options=options
    )
    runs = climb(plan, RunStore())
    assert [run.status for run in runs] == ["ok", "ok"]


def test_the_notebook_s_process_gets_no_cuda_context() -> None:
    import torch

    assert machine.check_device("cuda") == "cuda"
    assert not torch.cuda.is_initialized()
