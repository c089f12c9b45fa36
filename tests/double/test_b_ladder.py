"""Recipes on the double, from the command line down to the children: every switch that needs CUDA."""

import pytest

from perfkit.recipe import Recipe, switches
from perfkit.results.store import RunStore
from perfkit.studies import planning
from perfkit.studies.climb import climb
from tests.support import double
from tests.support.cli import perfkit

# Not compile: it leaves the double, and generates code for the CPU.
STAGES = ["data_loading", "pinning"]
FURTHER = (
    ("plain", Recipe(batch_size=8)),
    ("prefetched", Recipe(batch_size=8, pin_memory=True, non_blocking=True, device_prefetch=True)),
    ("tf32", Recipe(batch_size=8, fp32_precision="tf32", cudnn_benchmark=True, optimizer_impl="fused")),
    ("bf16", Recipe(batch_size=8, amp="bf16", zero_grad_set_to_none=False)),
    ("fp16", Recipe(batch_size=8, amp="fp16", accumulation=2)),
)
pytestmark = pytest.mark.usefixtures("no_orphans")


def plan(**wanted):
    return planning.plan("tests.support.toy:Toy", preset="smoke", device="cuda", **wanted)


def test_a_ladder_and_every_switch_that_needs_cuda_run_from_end_to_end():
    ladder = climb(plan(stages=STAGES).keeping(STAGES), RunStore())
    runs = ladder + climb(plan().trying(recipes=FURTHER), RunStore())
    assert [run.reason for run in runs if run.status != "ok"] == []
    assert [run.stage for run in ladder] == ["baseline", *STAGES]
    assert all(check.ok for run in runs for check in run.mechanism)
    proven = {check.name for run in runs for check in run.mechanism}
    assert {name for name, switch in switches().items() if switch.needs == "cuda"} <= proven
    base = runs[0]
    assert base.machine["device"]["name"] == double.NAME, "a run says that no GPU has made it"
    assert base.peak_memory_bytes <= base.peak_reserved_bytes
    assert len(base.raw.device_step_s) == len(base.raw.step_s) - base.raw.warmup_steps


def test_a_device_that_is_not_there_is_refused():
    assert "torch finds no device 'cuda:1'" in perfkit("run", "--device", "cuda:1", code=2).stderr
