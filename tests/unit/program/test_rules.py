"""Which switches can act where, and the reasons why others cannot."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.errors import WorkloadError
from perfkit.recipe import Recipe, switches
from perfkit.rules import Target, applicable, offers, why_not
from tests.unit.program.test_recipe import recipes

OFFERS = frozenset(name for name, switch in switches().items() if switch.needs == "workload")
CPU, CUDA = Target("cpu", OFFERS), Target("cuda", OFFERS)
OLD = Target("cuda", bf16=False)
NO_COMPILER = Target("cpu", compiler=False)
MODE, GRAPHS = "compile_mode", {"compile": True, "compile_mode": "reduce-overhead"}

targets = st.builds(
    Target,
    device=st.sampled_from(["cpu", "cuda", "mps"]),
    offers=st.frozensets(st.sampled_from(sorted(OFFERS))),
    bf16=st.booleans(),
    compiler=st.booleans(),
)


@pytest.mark.parametrize(
    ("changes", "name", "target", "words"),
    [
        ({"pin_memory": True}, "pin_memory", CPU, "needs a CUDA device (this run is on cpu)"),
        ({"fp32_precision": "tf32"}, "fp32_precision", OLD, "came with Ampere"),
        ({"uint8_copy": True}, "uint8_copy", Target("cuda"), "does not offer uint8_copy"),
        ({"prefetch_factor": 4}, "prefetch_factor", CUDA, "only with Loader workers (here: 0)"),
        ({"amp": "fp16"}, "amp", CPU, "on a CPU use bf16"),
        ({"amp": "bf16"}, "amp", OLD, "use fp16"),
        ({"channels_last": True}, "channels_last", Target("cuda", convolves=False), "no conv"),
        ({"compile": True}, "compile", NO_COMPILER, "perfkit doctor"),
        (GRAPHS, MODE, CPU, "CUDA graphs"),
        ({"wait_policy": "passive"}, "wait_policy", CUDA, "when a GPU trains"),
        ({"allocator": "keep"}, "allocator", Target("cpu", glibc=False), "glibc"),
        ({"workers": 2}, "workers", Target("cpu", refuses=lambda name, r: {"workers": f"not {r.workers}"}.get(name, "")), "not 2"),
        ({"uint8_copy": True}, "uint8_copy", Target("cpu", refuses=lambda name, r: {"uint8_copy": "edit it"}.get(name, "")), "edit it"),
        ({"amp": "bf16", "compile": True}, "amp", CPU, ""),
    ],
)  # fmt: skip
def test_a_switch_that_cannot_act_says_why(changes, name, target, words):
    reason = why_not(name, Recipe(**changes), target)
    assert words in reason if words else not reason


@given(recipes, targets)
def test_what_remains_can_act_and_what_was_taken_away_has_a_reason(recipe, target):
    kept, reasons = applicable(recipe, target)
    assert all(why_not(name, kept, target) == "" for name in switches())
    assert set(recipe.diff(kept)) == set(reasons)
    assert all(reasons.values())
    assert all(getattr(kept, name) == switches()[name].default for name in reasons)
    assert applicable(kept, target) == (kept, {})


def test_a_workload_may_offer_only_what_depends_on_it():
    assert offers(SimpleNamespace(offers={"uint8_copy"})) == {"uint8_copy"}
    assert offers(SimpleNamespace()) == frozenset()
    with pytest.raises(WorkloadError, match="the workload offers compile. Allowed: device_resize, "):
        offers(SimpleNamespace(offers={"uint8_copy", "compile"}))


def test_a_script_keeps_its_own_settings_where_a_switch_is_refused():
    refused = {"workers": "it has a batch sampler"}
    target = Target(
        "cpu", defaults={"workers": 4, "amp": "bf16"}, refuses=lambda name, recipe: refused.get(name, "")
    )
    recipe, reasons = applicable(Recipe(workers=2, amp="off"), target)
    assert recipe.workers == 4 and recipe.amp == "off" and reasons == refused
    assert applicable(Recipe(workers=4), target)[1] == {}
