"""What only a GPU can show. Run there with `python -m pytest tests/gpu`; skipped where there is none.

Each test must be able to pass on any CUDA card: a T4 computes in neither bfloat16 nor TF32. The short ones come
first, as `make gpu` may have no time for all.
"""

from typing import Any

import pytest
import torch

from perfkit import machine
from perfkit.additions.inside import looks
from perfkit.additions.parity import study
from perfkit.additions.trace.profile import profile
from perfkit.additions.trace.table import Trace
from perfkit.ladder.catalogue import LADDER, NOT_STAGES
from perfkit.machine import devices
from perfkit.recipe import Recipe
from perfkit.results.run import Run
from perfkit.results.store import RunStore
from perfkit.studies import compare, planning, sources
from perfkit.studies.climb import climb
from tests.support.looks import syncs

pytestmark = pytest.mark.usefixtures("no_orphans")

CIFAR = "cifar_resnet18"
FURTHER = "device_prefetch zero_grad cudnn_benchmark fused_optimizer amp_fp16 accumulation".split()
CUDA: Any = {"preset": "smoke", "device": "cuda"}


def plan(workload: str = CIFAR, **wanted: Any) -> sources.Plan:
    return planning.plan(workload, **CUDA, **wanted)


def measured(**wanted: Any) -> list[Run]:
    return climb(plan(**wanted), RunStore())


@pytest.fixture(scope="module")
def ladder() -> dict[str, Run]:
    """The whole default ladder at smoke size."""
    return {run.stage: run for run in measured() if run.stage not in NOT_STAGES}


@pytest.fixture(scope="module")
def further() -> dict[str, Run]:
    """The other stages that one GPU can have, measured together."""
    runs = climb(plan(stages=FURTHER).keeping(FURTHER), RunStore())
    return {run.stage: run for run in runs}


def cannot_act() -> set[str]:
    """The stages of the default ladder that this machine lacks something for."""
    lacking = {"allocator", "scaled_decode", "cpu_threads"}  # of the host, and of photos
    if not devices.accelerators().bf16:  # before Ampere; AMP is fp16 there
        lacking |= {"tf32"}
    if devices.compiler_problem("cuda"):
        lacking.add("compile")
    return lacking


def needs(stage: str) -> None:
    """Skips a test of a stage that cannot act on this GPU."""
    if stage in cannot_act():
        pytest.skip(f"this GPU, or its machine, has no {stage}")


def evidence(run: Run, switch: str) -> str:
    return next(proof.evidence for proof in run.mechanism if proof.name == switch)


def test_the_notebook_s_process_gets_no_cuda_context() -> None:
    assert devices.check_device("cuda") == "cuda"
    assert not torch.cuda.is_initialized()


def test_the_account_of_memory_agrees_with_the_allocator() -> None:
    found = looks.memory(CIFAR, None, sources.Progress(), **CUDA)
    assert sum(found.parts.values()) == found.peak
    assert found.allocated and found.reserved
    assert found.peak <= found.allocated <= found.reserved
    # The rest is what libraries take inside an operator: cuBLAS alone has 32 MiB on an H100.
    assert found.allocated < 2 * found.peak + (512 << 20)


def test_the_sync_detective_judges_real_copies() -> None:
    for stage, fix in (("baseline", "pin it in the loader"), ("pinning", "it overlaps as it is")):
        places = syncs(CIFAR, stage, **CUDA).places
        fixes = {place.fix.startswith(fix) for place in places if place.kind == "host to device"}
        assert fixes == {True}
    for clean in (False, True):
        options = {"clean": clean}
        found = syncs("tests.support.chatty:Chatty", device="cuda", options=options).places
        waits = sum(place.kind == "wait" for place in found)
        assert waits == 0 if clean else waits >= 3


@pytest.mark.parametrize("stage", ["baseline", "pinning", "amp"])
def test_a_live_profile_has_kernels_copies_ranges_and_parts_that_sum(stage: str) -> None:
    made = profile(CIFAR, stage, **CUDA)
    assert made.analysis.kernels and made.analysis.gpu_utilization
    for step in made.analysis.steps:
        assert sum(filter(None, step.breakdown_us.values())) == pytest.approx(step.duration_us)
    copied_from = {str(one.host_memory).lower() for one in made.analysis.transfers if one.direction == "HtoD"}
    assert copied_from and ("pinned" in copied_from) == (stage != "baseline")
    assert {"data", "forward", "backward", "optimizer"} <= set(Trace(made.analysis.files[0]).texts)


PREFETCH = "pin_memory=on,non_blocking=on,device_prefetch=on"


@pytest.mark.parametrize("what", [PREFETCH, "channels_last", "amp", "amp=fp16", "compile", "tf32"])
def test_a_recipe_trains_the_same(what: str) -> None:
    needs(what)
    baseline = plan(stages=["baseline"])
    side = compare.candidate(what, baseline)
    found = study.parity(baseline, side.title, Recipe().replace(**side.changes))
    assert found.ok, found.describe()


def test_every_stage_of_the_ladder_is_real_on_a_gpu(ladder: dict[str, Run]) -> None:
    assert ladder.keys() == {*LADDER}
    reasons = {name: run.reason for name, run in ladder.items() if run.status != "ok"}
    assert reasons.keys() == cannot_act(), reasons
    for name in ("data_loading", "pinning"):  # exact switches
        assert ladder[name].losses == pytest.approx(ladder["baseline"].losses, rel=1e-4)


def test_pinning_is_proven_and_bytes_that_cross_are_counted(ladder: dict[str, Run]) -> None:
    assert evidence(ladder["pinning"], "pin_memory") == "batches lie in page-locked memory"
    assert evidence(ladder["pinning"], "non_blocking") == "the copies do not wait"
    assert evidence(ladder["baseline"], "pin_memory") == "batches lie in pageable memory"
    assert ladder["baseline"].h2d_bytes_per_sample == 3 * 48 * 48 * 4 + 8
    assert ladder["channels_last"].h2d_bytes_per_sample == 3 * 32 * 32 + 8, "bytes, resized on the device"


def test_device_times_memory_and_utilization_are_there(ladder: dict[str, Run]) -> None:
    run = ladder["baseline"]
    assert len(run.raw.device_step_s) == len(run.raw.step_s) - run.raw.warmup_steps
    assert min(run.raw.device_step_s) > 0
    assert run.peak_memory_bytes and run.peak_reserved_bytes
    assert run.peak_reserved_bytes >= run.peak_memory_bytes
    assert run.machine["device"]["uuid"] in {gpu["uuid"] for gpu in machine.facts()["gpus"]}


def test_roofs_and_share_of_a_gpu() -> None:
    kind, new = ("bf16", {"tf32", "bfloat16"}) if devices.accelerators().bf16 else ("fp16", set[str]())
    found = looks.kernels(CIFAR, None, sources.Progress(), **CUDA, settings={"amp": kind, "batch_size": 64})
    assert found.peaks.keys() == {"float32", "float16"} | new
    assert found.peaks["float16"] > 2 * found.peaks["float32"]
    assert found.bytes_per_s > 1e11
    assert found.mfu and 0 < found.mfu < 1


@pytest.mark.parametrize("stage", FURTHER)
def test_a_further_optimization_is_real_on_a_gpu(stage: str, further: dict[str, Run]) -> None:
    run = further[stage]
    assert (run.status, run.reason) == ("ok", "")
    assert all(mechanism.ok for mechanism in run.mechanism)


def test_sides_that_do_not_fit_beside_each_other_are_measured_one_after_the_other() -> None:
    batch = machine.facts()["gpus"][0]["memory_bytes"] // 36_000_000  # about 22 MB a sample: 60%
    recipe = Recipe(batch_size=batch, uint8_copy=True, device_resize=True)
    recipes = (("a", recipe), ("b", recipe.replace(zero_grad_set_to_none=False)))
    large = plan(options={"image_size": 224, "samples": 2 * batch})
    runs = climb(large.trying(recipes=recipes), RunStore())
    assert [run.status for run in runs] == ["ok", "ok"]
    assert not any(pairing.interleaved for pairing in runs[1].pairings), "both would have fitted"
