import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfkit.errors import WorkloadError
from perfkit.recipe import Recipe, switches
from perfkit.rules import CAN, Reason, Target, applicable, joined, offers, why_not
from tests.support.recipes import recipes

OFFERS = frozenset(name for name, switch in switches().items() if switch.needs == "workload")
CPU, CUDA = Target("cpu", OFFERS), Target("cuda", OFFERS)

targets = st.builds(
    Target,
    device=st.sampled_from(["cpu", "cuda", "mps"]),
    offers=st.frozensets(st.sampled_from(sorted(OFFERS))),
    bf16=st.booleans(),
    compiler=st.booleans(),
)


def test_switches_with_one_reason_are_named_together() -> None:
    wanted = Recipe(pin_memory=True, non_blocking=True, fp32_precision="tf32")
    assert joined(applicable(wanted, CPU)[1]) == (
        "Pin memory, Non-blocking copy: needs a CUDA device (this run is on cpu); "
        "float32 precision: TF32 is a number format of CUDA devices (this run is on cpu)"
    )
    assert joined(applicable(Recipe(pin_memory=True), CPU)[1]).startswith("Pin memory: needs a CUDA device")


def test_the_baseline_can_act_everywhere() -> None:
    assert applicable(Recipe(), Target("cpu", bf16=False, compiler=False)) == (Recipe(), {})


@pytest.mark.parametrize(
    ("changes", "name", "target", "words"),
    [
        ({"pin_memory": True}, "pin_memory", CPU, "needs a CUDA device (this run is on cpu)"),
        ({"fp32_precision": "tf32"}, "fp32_precision", Target("mps"), "this run is on mps"),
        ({"fp32_precision": "tf32"}, "fp32_precision", Target("cuda", bf16=False), "came with Ampere"),
        ({"uint8_copy": True}, "uint8_copy", Target("cuda"), "the workload does not offer uint8_copy"),
        ({"prefetch_factor": 4}, "prefetch_factor", CUDA, "acts only with Loader workers (here: 0)"),
        (
            {"compile_mode": "max-autotune"},
            "compile_mode",
            CUDA,
            "acts only with torch.compile (here: false)",
        ),
        ({"amp": "fp16"}, "amp", CPU, "on a CPU use bf16"),
        ({"amp": "bf16"}, "amp", Target("cuda", bf16=False), "use fp16"),
        ({"channels_last": True}, "channels_last", Target("cuda", convolves=False), "no convolution"),
        ({"compile": True}, "compile", Target("cpu", compiler=False), "perfkit doctor"),
        ({"compile": True, "compile_mode": "reduce-overhead"}, "compile_mode", CPU, "CUDA graphs"),
        ({"device_prefetch": True}, "device_prefetch", CUDA, "acts only with Pin memory"),
        ({"no_sync": True, "accumulation": 2}, "no_sync", CUDA, "there is only one"),
    ],
)
def test_a_switch_that_cannot_act_says_why(changes: Any, name: str, target: Target, words: str) -> None:
    assert words in why_not(name, Recipe(**changes), target)


@pytest.mark.parametrize(
    ("changes", "name", "target", "code"),
    [
        ({"pin_memory": True}, "pin_memory", CPU, "needs_gpu"),
        ({"amp": "bf16"}, "amp", Target("cuda", bf16=False), "needs_newer_gpu"),
        ({"compile": True}, "compile", Target("cpu", compiler=False), "needs_compiler"),
        ({"uint8_copy": True}, "uint8_copy", Target("cuda"), "needs_workload"),
        ({"prefetch_factor": 4}, "prefetch_factor", CUDA, "needs_switch"),
        ({"ranks": 4}, "ranks", CUDA, "needs_more_gpus"),
        ({"wait_policy": "passive"}, "wait_policy", CUDA, "needs_cpu"),
        ({"allocator": "keep"}, "allocator", Target("cpu", glibc=False), "needs_glibc"),
        (
            {"compile": True, "activation_checkpointing": True},
            "activation_checkpointing",
            CPU,
            "not_combined",
        ),
        ({"amp": "bf16"}, "amp", Target("cuda", anchored=frozenset({"float16"})), "not_simulated"),
        ({"workers": 2}, "workers", Target("cpu", refused={"workers": "a sampler"}), "script"),
        ({"compile": True}, "compile", CPU, ""),
    ],
)
def test_a_reason_has_a_code_for_programs(changes: Any, name: str, target: Target, code: str) -> None:
    reason = why_not(name, Recipe(**changes), target)
    assert (reason.code, bool(reason)) == (code, bool(code))
    assert pickle.loads(pickle.dumps(reason)).code == code


def test_joined_reasons_keep_their_code() -> None:
    gpu = applicable(Recipe(pin_memory=True, non_blocking=True), CPU)[1]
    assert joined(gpu).code == "needs_gpu"
    assert joined({**gpu, "workers": Reason("script", "no")}).code == "several"
    assert joined({}) == CAN


def test_what_can_act_is_given_no_reason() -> None:
    full = Recipe(
        workers=2, pin_memory=True, non_blocking=True, device_prefetch=True, amp="fp16", compile=True
    )
    assert applicable(full, CUDA) == (full, {})
    assert why_not("amp", Recipe(amp="bf16"), CPU) == ""


def test_what_leans_on_a_switch_that_cannot_act_cannot_act_either() -> None:
    recipe, reasons = applicable(
        Recipe(compile=True, compile_mode="max-autotune"), Target("cpu", compiler=False)
    )
    assert recipe == Recipe()
    assert set(reasons) == {"compile", "compile_mode"}


@given(recipes, targets)
@settings(max_examples=200)
def test_what_remains_can_act_and_what_was_taken_away_has_a_reason(recipe: Recipe, target: Target) -> None:
    kept, reasons = applicable(recipe, target)
    assert all(why_not(name, kept, target) == "" for name in switches())
    assert set(recipe.diff(kept)) == set(reasons)
    assert all(reasons.values())
    assert all(getattr(kept, name) == switches()[name].default for name in reasons)
    assert applicable(kept, target) == (kept, {})


@pytest.mark.parametrize(
    ("recipe", "target", "why"),
    [
        ({"ranks": 2}, Target("cuda"), "one GPU per rank, and this run has 1"),
        ({"ranks": 2}, Target("cuda", count=2), ""),
        ({"ranks": 2}, Target("mps"), "mps"),
    ],
)
def test_ranks_need_devices(recipe: dict[str, Any], target: Target, why: str) -> None:
    found = why_not("ranks", Recipe(**recipe), target)
    assert why in found if why else not found


def test_a_workload_may_offer_only_what_depends_on_it() -> None:
    assert offers(SimpleNamespace(offers={"uint8_copy"})) == {"uint8_copy"}
    assert offers(SimpleNamespace()) == frozenset()
    with pytest.raises(WorkloadError, match="the workload offers compile. Allowed: batched_fetch, "):
        offers(SimpleNamespace(offers={"uint8_copy", "compile"}))


def test_a_script_keeps_its_own_settings_where_a_switch_is_refused():
    target = Target("cpu", own={"workers": 4, "amp": "bf16"}, refused={"workers": "it has a batch sampler"})
    recipe, reasons = applicable(Recipe(workers=2, amp="off"), target)
    assert recipe.workers == 4 and recipe.amp == "off"
    assert reasons == {"workers": "it has a batch sampler"}
    assert applicable(Recipe(workers=4), target)[1] == {}
