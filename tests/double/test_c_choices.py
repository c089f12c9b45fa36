"""What is chosen, refused or drawn because the device is a GPU: where it takes no GPU to see it."""

import importlib.util

import msgspec
import pytest

from benchmarks import gpu
from perfkit.additions.lanes import panel
from perfkit.additions.search import tune
from perfkit.ladder import catalogue
from perfkit.machine import devices
from perfkit.recipe import Recipe
from perfkit.rules import Target
from perfkit.studies import planning, staging
from perfkit.studies.sources import Progress
from perfkit.worker.session import WorkerSession
from tests.gpu import test_on_gpu
from tests.unit.additions.ranks import test_watching
from tests.unit.additions.ranks.test_lateness import found, ranks
from tests.unit.additions.scripts.test_advice import ideas


def test_slices_are_longer_than_on_a_cpu():
    slices = [catalogue.preset("quick", device).rule.slice.seconds for device in ("cpu", "cuda")]
    assert slices[1] == catalogue.ACCELERATOR_SLICE_S > slices[0]


def test_compiling_needs_triton_and_a_compiler_for_c(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install triton" in devices.compiler_problem("cuda")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: "there")
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("CXX", "sh")
    assert "set CC" in devices.compiler_problem("cuda:0")
    assert devices.compiler_problem("cpu").startswith(("Python.h", "")), "CXX is there"


def test_amp_is_worth_a_try_whatever_the_cpu_has():
    assert ideas("AMP", target=Target("cuda"), cpu_has_bf16=False)
    assert not ideas("AMP", cpu_has_bf16=False)


def test_a_search_with_workers_pins_their_batches():
    (found,) = tune._candidates(Recipe(), "workers", (1,), Target("cuda"), [])
    assert (found.workers, found.pin_memory, found.non_blocking) == (1, True, True)


@pytest.mark.usefixtures("no_orphans")
def test_lanes_are_those_of_a_profile():
    where = {"device": "cuda", "preset": "smoke"}
    (side,) = panel.made({"before": {}}, "tests.support.toy:Toy", where, Progress()).sides
    assert side.samples == 32 and side.computing


def test_a_numbered_gpu_becomes_the_current_one(here):
    asked = WorkerSession(type("Line", (), {"send": staticmethod(print)}))
    asked.describe("tests.support.toy:Toy", "smoke", {}, "cuda:0")
    assert here.device_index == [0]


def test_a_plan_that_loads_nothing_knows_the_gpu(monkeypatch):
    found = devices.Accelerators(cuda=["a", "b"], bf16=False, imported=True)
    monkeypatch.setattr(devices, "accelerators", lambda: found)
    where = planning.plan("tests.support.toy:Toy", preset="smoke", device="cuda")
    assert where.source().target.bf16 is False


def test_gradients_that_gloo_averages_on_gpus_are_a_cause():
    cause = "gloo_on_gpus"
    on_gpus = [msgspec.structs.replace(state, gpu=f"node1 cuda:{state.rank}") for state in ranks(0.8, 0.82)]
    assert cause in found(on_gpus)
    assert cause not in found(ranks(0.8, 0.82))


def test_what_others_take_on_a_gpu_is_said_not_to_be_seen():
    test_watching.test_what_is_not_seen_on_a_device_is_said("cuda", "is not seen")


@pytest.mark.parametrize("bf16", [False, True])
def test_tests_and_parts_for_a_gpu_expect_of_a_card_what_it_can(bf16, monkeypatch):
    """A T4 computes in neither bfloat16 nor TF32."""
    found = devices.Accelerators(cuda=["a card"], bf16=bf16, imported=True)
    monkeypatch.setattr(devices, "accelerators", lambda: found)
    monkeypatch.setattr(devices, "compiler_problem", lambda device: "")
    asked = test_on_gpu.plan()
    source = asked.source()
    assert source.target.bf16 == bf16
    stages = staging.ladder_stages(asked, source.target)
    assert {stage.name for stage in stages if stage.reason} == test_on_gpu.cannot_act()
    for name in {*gpu.PROFILED, gpu.HALF} - {"baseline"}:
        staging.acting(asked.trying(stages=(name,), below=True).source())
    further = asked.trying(stages=tuple(test_on_gpu.FURTHER))
    assert [stage.reason for stage in staging.ladder_stages(further, source.target) if stage.reason] == []
