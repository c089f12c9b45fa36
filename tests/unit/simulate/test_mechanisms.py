"""What a plan shows of the switches, and no more."""

from __future__ import annotations

from typing import Any

from perfkit.recipe import Recipe
from perfkit.simulate.mechanisms import mechanisms
from perfkit.simulate.step import Copy, Event, Fetch, Operator, Step, Tensor, Wait

FLOATS = Tensor((32, 3, 8, 8), "float32")
HALF_NHWC = Tensor((32, 3, 8, 8), "float16", "channels_last")


def plan(*events: Event, **more: Any) -> Step:
    return Step(events=[Fetch(), *events], samples=32, torch="2.15", **more)


def found(step: Step, **switches: Any) -> dict[str, tuple[bool, str]]:
    return {proof.switch: (proof.ok, proof.evidence) for proof in mechanisms(step, Recipe(**switches))}


def convolution(tensor: Tensor) -> Operator:
    return Operator("aten.convolution", "forward", [tensor, tensor], [tensor])


def test_each_switch_is_read_from_the_plan_and_not_from_the_recipe() -> None:
    half = plan(
        Copy(8, pinned=True, non_blocking=True, stream=1), Wait("stream", (0, 1)), convolution(HALF_NHWC),
        Operator("aten._fused_sgd_", "optimizer", [FLOATS], []),
    )  # fmt: skip
    on = {
        "pin_memory": True, "non_blocking": True, "device_prefetch": True, "channels_last": True,
        "amp": "fp16", "optimizer_impl": "fused",
    }  # fmt: skip
    proofs = found(half, **on)
    assert all(ok for ok, _ in proofs.values())
    assert all(evidence.startswith("simulated plan: ") for _, evidence in proofs.values())
    plain = found(
        plan(Copy(8), convolution(FLOATS), Operator("aten._foreach_add_", "optimizer", [], [])), **on
    )
    assert {name for name, (ok, _) in plain.items() if not ok} == set(on)


def test_torchs_own_choice_of_optimizer_is_as_set() -> None:
    step = plan(Operator("aten._foreach_add_", "optimizer", [], []))
    assert found(step)["optimizer_impl"][0]
    assert not found(step, optimizer_impl="loop")["optimizer_impl"][0]


def test_what_a_plan_does_not_show_is_not_claimed() -> None:
    proofs = found(plan(), workers=2, activation_checkpointing=True)
    assert not {"workers", "activation_checkpointing", "pin_memory", "amp"} & set(proofs)
