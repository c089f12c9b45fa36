"""Profiles, parity and the sync detective where there is a GPU; skipped where there is none."""

from __future__ import annotations

import pytest

from perfkit.studies import compare, inspect, sources
from perfkit.trace.profile import profile

pytestmark = pytest.mark.usefixtures("no_orphans")

CIFAR = "cifar_resnet18"


@pytest.mark.parametrize("stage", ["baseline", "pinning", "amp"])
def test_a_live_profile_has_kernels_copies_and_parts_that_sum(stage: str) -> None:
    made = profile(CIFAR, stage, preset="smoke", device="cuda")
    assert made.analysis.kernels
    assert made.analysis.gpu_utilization
    assert any(copy.direction == "HtoD" for copy in made.analysis.transfers)
    for step in made.analysis.steps:
        assert sum(filter(None, step.breakdown_us.values())) == pytest.approx(step.duration_us)
    pinned = {copy.host_memory for copy in made.analysis.transfers if copy.direction == "HtoD"}
    assert ("pinned" in {str(memory).lower() for memory in pinned}) == (stage != "baseline")


@pytest.mark.parametrize("stage", ["pinning", "channels_last", "amp", "amp_fp16", "compile", "tf32"])
def test_a_stage_trains_the_same(stage: str) -> None:
    plan = sources.plan(CIFAR, "smoke", ["baseline"], device="cuda")
    side = compare.candidate(stage, plan)
    assert side.recipe
    found = inspect.parity(plan, side.title, side.recipe)
    assert found.ok, found.describe()


def test_the_sync_detective_judges_real_copies() -> None:
    pageable = inspect.syncs(CIFAR, "baseline", preset="smoke", device="cuda").places
    assert {place.memory for place in pageable if place.kind == "host to device"} == {"pageable"}
    pinned = inspect.syncs(CIFAR, "pinning", preset="smoke", device="cuda").places
    assert {place.memory for place in pinned if place.kind == "host to device"} == {"pinned"}
    chatty = inspect.syncs("perfkit.workloads.bottlenecks:Chatty", device="cuda").places
    assert sum(place.kind == "wait" for place in chatty) >= 3
    clean = inspect.syncs("perfkit.workloads.bottlenecks:Chatty", device="cuda", options={"clean": True})
    assert not [place for place in clean.places if place.kind == "wait"]
