"""Memory, kernels, placement, ranges and ranks where there is a GPU; skipped where there is none."""

from typing import Any

import pytest

from perfkit.results.run import Run
from perfkit.studies import inspect, sources
from perfkit.studies.rungs import climb
from perfkit.trace import lanes
from perfkit.trace.profile import profile

pytestmark = pytest.mark.usefixtures("no_orphans")

CIFAR = "cifar_resnet18"
SEEDED = "perfkit.workloads.bottlenecks"
CUDA: Any = {"preset": "smoke", "device": "cuda"}


def measured(workload: str, **wanted: Any) -> list[Run]:
    return climb(sources.plan(workload, "smoke", device="cuda", **wanted), None)


def test_checkpointing_gives_activations_up() -> None:
    plain = inspect.memory(CIFAR, **CUDA, settings={"batch_size": 32})
    saved = inspect.memory(CIFAR, **CUDA, settings={"batch_size": 32, "activation_checkpointing": True})
    assert saved.parts["activations"] < plain.parts["activations"]
    assert saved.peak < plain.peak


def test_the_account_of_memory_agrees_with_the_allocator() -> None:
    found = inspect.memory(CIFAR, **CUDA)
    assert sum(found.parts.values()) == found.peak
    assert found.allocated
    assert found.reserved
    assert found.peak <= found.allocated <= found.reserved
    assert found.allocated < 2 * found.peak, "the rest is what libraries take inside an operator"


def test_roofs_and_share_of_a_gpu() -> None:
    found = inspect.kernels(CIFAR, **CUDA, settings={"amp": "bf16", "batch_size": 64})
    assert set(found.peaks) == {"float32", "bfloat16", "float16"}
    assert found.peaks["bfloat16"] > 2 * found.peaks["float32"]
    assert found.bytes_per_s > 1e11
    assert found.mfu
    assert 0 < found.mfu < 1


def test_ranges_are_in_the_trace() -> None:
    made = profile(CIFAR, **CUDA)
    assert {"data", "forward", "backward", "optimizer"} <= set(lanes(made.trace).texts)


def test_two_ranks_over_nccl() -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    baseline, run = measured(f"{SEEDED}:DeviceBound", stages=["ranks"])
    assert (baseline.status, run.status, run.reason) == ("ok", "ok", "")
    assert run.communication
    assert run.communication.bytes_per_step > 0
    assert "2 ranks by nccl" in {proof.switch: proof.evidence for proof in run.mechanism}["ranks"]
