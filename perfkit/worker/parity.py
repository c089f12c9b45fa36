"""Does a recipe still train the same? Both sides on the same batches, against float64. Runs in the child.

Two questions, kept apart: does the data arrive as it should, and does the model compute on it as it should?
For the second, the plain program in float32 and in float64 gets exactly the tensors that the candidate's
model got, so that a legitimate difference of the data path (a resize on the device, say) is not taken for one
of the computation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from perfkit.program import train
from perfkit.program.recipe import Recipe
from perfkit.results.parity import Check
from perfkit.worker.reports import ParityReport

BITS16 = {"bf16": 2.0**-8, "fp16": 2.0**-11}
"""Rounding of the 16-bit formats, relative."""
DATA_TOLERANCE = 0.05
"""RMSE of inputs / their standard deviation: another resize differs by less, another scale by more."""


@dataclasses.dataclass
class Side:
    """What one side did, step by step: inputs and outputs as float64 on the host."""

    losses: list[float]
    inputs: list[torch.Tensor]
    targets: list[torch.Tensor]
    outputs: list[torch.Tensor]
    structure: list[str]
    random: bool
    scaler: bool


def check(
    workload: Any, recipe: Recipe, device: torch.device, exact: str, seed: int = 0, steps: int = 4
) -> ParityReport:
    """Compares a recipe with the plain program of the same batch size.

    Args:
        workload: what is trained.
        recipe: the candidate.
        device: where.
        exact: `bitwise`, or anything else for a tolerance.
        seed: of weights, order and augmentation.
        steps: how many are trained on each side.
    """
    plain = Recipe(batch_size=recipe.batch_size, accumulation=recipe.accumulation)
    reference = _trained(workload, plain, device, seed, steps)
    candidate = _trained(workload, recipe, device, seed, steps)
    same = (candidate.inputs, candidate.targets)
    base = _replayed(workload, plain, device, seed, steps, same, torch.float32)
    exactly = _replayed(workload, plain, device, seed, steps, same, torch.float64)
    checks = [
        _data(reference, candidate, exact),
        _targets(reference, candidate),
        _structure(reference, candidate),
        _scaler(candidate, recipe),
    ]
    checks += [_bitwise(reference, candidate)] if exact == "bitwise" else []
    checks += [_outputs(candidate, base, exactly, recipe), _losses(candidate, base, exactly, recipe)]
    losses = {"candidate": candidate.losses, "float32": base.losses, "float64": exactly.losses}
    return ParityReport([Check(*check) for check in checks], losses)


def _trained(workload: Any, recipe: Recipe, device: torch.device, seed: int, steps: int) -> Side:
    training = train.Training(workload, recipe, device, seed)
    with _watched(training, seed) as side:
        batches = training.batches(train.epochs(training.loader))
        losses = [training.step(batches) for _ in range(steps)]
    side.losses = [float(loss) for loss in losses]
    side.scaler = getattr(getattr(training, "scaler", None), "is_enabled", lambda: False)()
    return side


def _replayed(
    workload: Any, recipe: Recipe, device: torch.device, seed: int, steps: int,
    same: tuple[list[torch.Tensor], list[torch.Tensor]], dtype: torch.dtype,
) -> Side:  # fmt: skip
    """The plain program on given tensors, in a given precision."""
    training = train.Training(workload, recipe, device, seed)
    training.model.to(dtype)
    training.optimizer = train.make_optimizer(workload, recipe, training.model)
    pairs = (
        (inputs.to(device, dtype if inputs.is_floating_point() else None), targets.to(device))
        for inputs, targets in itertools.cycle(zip(*same, strict=True))
    )
    with _watched(training, seed) as side:
        side.losses = [float(training.step(pairs)) for _ in range(steps)]
    return side


@contextlib.contextmanager
def _watched(training: train.Training, seed: int) -> Iterator[Side]:
    """Notes what goes into the model and what comes out; random layers draw the same numbers on each side."""
    side = Side([], [], [], [], _structure_of(training.model), _is_random(training.model), False)
    plain: Callable[..., Any] = train.forward

    def noted(*given: Any) -> Any:
        inputs, targets = given[-2:]
        # What the loss sees in the plain program is what the workload's own loss gets in every other.
        torch.manual_seed(seed + len(side.inputs))
        outputs, loss = plain(*given)
        side.inputs.append(_kept(inputs))
        side.targets.append(targets.detach().cpu())
        side.outputs.append(_kept(outputs))
        return outputs, loss

    train.forward = noted  # type: ignore[assignment]
    try:
        yield side
    finally:
        train.forward = plain


def _kept(tensor: Any) -> torch.Tensor:
    found: torch.Tensor = tensor.detach().cpu()
    return found.double() if found.is_floating_point() else found


def _structure_of(model: nn.Module) -> list[str]:
    """Every layer with what decides how it trains: kind, training or not, dropout's share, frozen or not."""
    inner = getattr(model, "_orig_mod", model)
    return [
        f"{name or 'model'}: {type(layer).__name__}, {'training' if layer.training else 'evaluating'}"
        f"{f', p={layer.p}' if hasattr(layer, 'p') else ''}"
        f"{', frozen' if any(not p.requires_grad for p in layer.parameters(recurse=False)) else ''}"
        for name, layer in inner.named_modules()
    ]


def _is_random(model: nn.Module) -> bool:
    return any("Dropout" in type(layer).__name__ and getattr(layer, "p", 0) > 0 for layer in model.modules())


def _rmse(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).square().mean().sqrt())


def _data(reference: Side, candidate: Side, exact: str) -> tuple[str, bool, str]:
    name = "the same inputs"
    for step, (a, b) in enumerate(zip(reference.inputs, candidate.inputs, strict=True)):
        if a.shape != b.shape:
            return name, False, f"step {step}: shape {tuple(b.shape)}, was {tuple(a.shape)}"
    worst = max(
        _rmse(a, b) / max(float(a.double().std()), 1e-12)
        for a, b in zip(reference.inputs, candidate.inputs, strict=True)
    )
    ok = worst == 0 if exact == "bitwise" else worst <= DATA_TOLERANCE
    hint = (
        "" if ok else ". A data set that augments at random must draw from the sample's index, not the order"
    )
    return name, ok, f"RMSE {worst:.2g} of their standard deviation, after preparation on the device{hint}"


def _targets(reference: Side, candidate: Side) -> tuple[str, bool, str]:
    pairs = zip(reference.targets, candidate.targets, strict=True)
    wrong = [step for step, (a, b) in enumerate(pairs) if a.shape != b.shape or not torch.equal(a, b)]
    return (
        "the same targets",
        not wrong,
        f"they differ in step {wrong[0]}" if wrong else "equal in every step",
    )


def _structure(reference: Side, candidate: Side) -> tuple[str, bool, str]:
    pairs = itertools.zip_longest(reference.structure, candidate.structure)
    changed = [f"{b}, was {a}" for a, b in pairs if a != b]
    return (
        "the same model",
        not changed,
        changed[0] if changed else f"{len(reference.structure)} layers alike",
    )


def _scaler(candidate: Side, recipe: Recipe) -> tuple[str, bool, str]:
    if recipe.amp != "fp16":
        return "gradient scaling", True, "not needed"
    return (
        "gradient scaling",
        candidate.scaler,
        "a GradScaler is on" if candidate.scaler else "fp16 without one",
    )


def _bitwise(reference: Side, candidate: Side) -> tuple[str, bool, str]:
    same = reference.losses == candidate.losses
    return "bitwise the same losses", same, "equal to the last digit" if same else "they differ"


def _budget(base: float, scale: float, recipe: Recipe, step: int, roundings: int) -> float:
    """What RMSE against float64 is allowed.

    Twice that of the float32 program; where a format of 16 bits is asked for, some of its own roundings come
    in addition. A floor of float32's rounding keeps a lucky baseline from refusing everything. Later steps
    have been through as many updates, each with its own rounding.
    """
    bits = roundings * BITS16[recipe.amp] if recipe.amp in BITS16 else 0.0
    return (2 * base + scale * (2.0**-18 + bits)) * (1 + step)


def _outputs(candidate: Side, base: Side, exactly: Side, recipe: Recipe) -> tuple[str, bool, str]:
    """Of the first step only: before any update, so nothing has grown yet."""
    wrong, right = _rmse(candidate.outputs[0], exactly.outputs[0]), _rmse(base.outputs[0], exactly.outputs[0])
    scale = float(exactly.outputs[0].double().std())
    if candidate.random and recipe.amp == "off":
        # Random layers draw other numbers in float64: then float32 is the yardstick.
        wrong, right = _rmse(candidate.outputs[0], base.outputs[0]), 0.0
    allowed = _budget(right, scale, recipe, 0, roundings=15)
    evidence = f"RMSE {wrong:.2g}, float32 has {right:.2g}, allowed {allowed:.2g}"
    return (
        "outputs of the first step",
        wrong <= allowed or (candidate.random and recipe.amp != "off"),
        evidence,
    )


def _losses(candidate: Side, base: Side, exactly: Side, recipe: Recipe) -> tuple[str, bool, str]:
    worst, said = 0.0, ""
    for step, (own, plain, exact) in enumerate(
        zip(candidate.losses, base.losses, exactly.losses, strict=True)
    ):
        known = plain if candidate.random else exact
        allowed = _budget(abs(plain - known), max(1.0, abs(known)), recipe, step, roundings=4)
        allowed = max(allowed, 0.05 * abs(known)) if candidate.random and recipe.amp != "off" else allowed
        if abs(own - known) / allowed > worst:
            worst = abs(own - known) / allowed
            said = f"step {step}: {own:.6g}, expected {known:.6g} ± {allowed:.1g}"
    return "losses", worst <= 1, said or "equal"
