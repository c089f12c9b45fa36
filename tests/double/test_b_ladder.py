"""Recipes on the double, from the command line down to the children: every switch that needs CUDA."""

import pytest

from perfkit.recipe import switches
from perfkit.results.store import RunStore
from perfkit.studies import sources
from perfkit.studies.climb import climb
from tests.support import double
from tests.support.cli import perfkit

# Not compile: it leaves the double, and generates code for the CPU.
STAGES = """data_loading pinning tf32 amp device_prefetch zero_grad cudnn_benchmark fused_optimizer amp_fp16
accumulation""".split()
pytestmark = pytest.mark.usefixtures("no_orphans")


def plan(**wanted):
    return sources.plan("tests.support.toy:Toy", preset="smoke", device="cuda", **wanted)


def test_a_ladder_with_every_switch_that_needs_cuda_runs_from_end_to_end():
    runs = climb(plan(stages=STAGES).keeping(STAGES), RunStore())
    assert [run.reason for run in runs if run.status != "ok"] == []
    assert all(check.ok for run in runs for check in run.mechanism)
    proven = {check.name for run in runs for check in run.mechanism}
    assert {name for name, switch in switches().items() if switch.needs == "cuda"} <= proven
    base = runs[0]
    assert base.machine["device"]["name"] == double.NAME, "a run says that no GPU has made it"
    assert base.peak_memory_bytes <= base.peak_reserved_bytes
    assert base.raw.device_step_s


def test_a_device_that_is_not_there_is_refused():
    assert "torch finds no device 'cuda:1'" in perfkit("run", "--device", "cuda:1", code=2).stderr
