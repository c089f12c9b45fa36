"""Does a recipe still train the same? Both sides on the same batches, against float64. Runs in the child.

Two questions, kept apart: does the data arrive as it should, and does the model compute on it as it should?
For the second, the plain program in float32 and in float64 gets exactly the tensors that the candidate's
model got, so that a legitimate difference of the data path (a resize on the device, say) is not taken for one
of the computation.

The float32 of that comparison is strict (`fp32_precision="ieee"`). On a GPU a recipe may compute products in
TF32, convolutions by torch's default; like 16 bits, that is a format of its own, whose roundings are allowed.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from perfkit import old_train as train
from perfkit.recipe import Recipe
from perfkit.results.parity import Check
from perfkit.worker import observe
from perfkit.worker.reports import ParityReport

ROUNDING = {"bf16": 2.0**-8, "fp16": 2.0**-11, "tf32": 2.0**-11}
"""Relative rounding of the formats with fewer bits than float32 that inputs of products may have."""
DATA_TOLERANCE = 0.05
"""RMSE of inputs / their standard deviation: another resize differs by less, another scale by more."""


@dataclass
class StepTrace:
    """What one side did, step by step: inputs and outputs as float64 on the host."""

    structure: list[str]
    random: bool
    scaler: bool
    losses: list[float] = field(default_factory=list)
    inputs: list[torch.Tensor] = field(default_factory=list)
    targets: list[torch.Tensor] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)


def check(
    workload: Any, recipe: Recipe, device: torch.device, exactness: str, seed: int = 0, steps: int = 4
) -> ParityReport:
    """Compares a recipe with the plain program of the same batch size.

    Args:
        workload: what is trained.
        recipe: the candidate.
        device: where.
        exactness: `bitwise`, or anything else for a tolerance.
        seed: of weights, order and augmentation.
        steps: how many are trained on each side.
    """
    plain = Recipe(batch_size=recipe.batch_size, accumulation=recipe.accumulation)
    strict = plain.replace(fp32_precision="ieee")
    with fp32_precision_kept():
        reference = _train(train.Training(workload, plain, device, seed), seed, steps)
        candidate = _train(train.Training(workload, recipe, device, seed), seed, steps)
        pairs = list(zip(candidate.inputs, candidate.targets, strict=True))
        float32, float64 = (
            _replay(train.Training(workload, strict, device, seed), seed, steps, pairs, dtype)
            for dtype in (torch.float32, torch.float64)
        )
    rounding = _rounding(recipe, device)
    bitwise = exactness == "bitwise"
    checks = [
        _inputs(reference, candidate, bitwise),
        _equal("the same targets", reference.targets, candidate.targets),
        _structure(reference, candidate),
        _scaler(candidate, recipe),
        *([_equal("bitwise the same losses", reference.losses, candidate.losses)] if bitwise else []),
        _outputs(candidate, float32, float64, recipe, rounding),
        _losses(candidate, float32, float64, recipe, rounding),
    ]
    losses = {"candidate": candidate.losses, "float32": float32.losses, "float64": float64.losses}
    return ParityReport(checks, losses)


@contextlib.contextmanager
def fp32_precision_kept() -> Iterator[None]:
    """Puts the settings back, which are the process's: a recipe with torch's defaults does not set them."""
    parts: Any = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    before = [part.fp32_precision for part in parts]
    try:
        yield
    finally:
        for part, precision in zip(parts, before, strict=True):
            part.fp32_precision = precision


def _rounding(recipe: Recipe, device: torch.device) -> float:
    """The relative rounding of the format that the recipe computes products in; 0 for float32 itself."""
    if recipe.amp != "off":
        return ROUNDING[recipe.amp]
    return ROUNDING["tf32"] if device.type == "cuda" and recipe.fp32_precision != "ieee" else 0.0


def _train(
    training: train.Training, seed: int, steps: int, batches: Iterator[Any] | None = None
) -> StepTrace:
    """Takes steps; random layers draw the same numbers on each side."""
    scaler = getattr(training, "scaler", None)
    trace = StepTrace(
        _structure_of(training.model), _is_random(training.model), scaler is not None and scaler.is_enabled()
    )

    def on_batch(batch: Any) -> None:
        inputs, targets = batch
        torch.manual_seed(seed + len(trace.inputs))
        trace.inputs.append(_kept(inputs))
        trace.targets.append(targets.detach().cpu())

    batches = batches or training.batches(train.epochs(training.loader))
    batches = observe.batches(batches, on_batch)
    with observe.outputs(training.model, lambda _, outputs: trace.outputs.append(_kept(outputs))):
        losses = [training.step(batches) for _ in range(steps)]
    trace.losses = [float(loss) for loss in losses]
    return trace


def _replay(
    training: train.Training, seed: int, steps: int, pairs: list[tuple[torch.Tensor, torch.Tensor]],
    dtype: torch.dtype,
) -> StepTrace:  # fmt: skip
    """The plain program on given tensors, in a given precision."""
    training.model.to(dtype)
    training.optimizer = train.make_optimizer(training.workload, training.recipe, training.model)
    batches = (
        (
            inputs.to(training.device, dtype if inputs.is_floating_point() else None),
            targets.to(training.device),
        )
        for inputs, targets in itertools.cycle(pairs)
    )
    return _train(training, seed, steps, batches)


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    kept = tensor.detach().cpu()
    return kept.double() if kept.is_floating_point() else kept


def _structure_of(model: nn.Module) -> list[str]:
    """Every layer with what decides how it trains: kind, training or not, dropout's share, frozen or not."""
    return [
        f"{name or 'model'}: {type(layer).__name__}, {'training' if layer.training else 'evaluating'}"
        f"{f', p={layer.p}' if hasattr(layer, 'p') else ''}"
        f"{', frozen' if any(not p.requires_grad for p in layer.parameters(recurse=False)) else ''}"
        for name, layer in observe.inner_model(model).named_modules()
    ]


def _is_random(model: nn.Module) -> bool:
    return any("Dropout" in type(layer).__name__ and getattr(layer, "p", 0) > 0 for layer in model.modules())


def _rmse(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).square().mean().sqrt())


def _equal(name: str, expected: list[Any], actual: list[Any]) -> Check:
    """Equal to the last digit, in every step."""
    try:
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    except AssertionError as difference:
        return Check(name, False, "; ".join(line for line in str(difference).splitlines() if line))
    return Check(name, True, "equal in every step, to the last digit")


def _inputs(reference: StepTrace, candidate: StepTrace, bitwise: bool) -> Check:
    name, pairs = "the same inputs", list(zip(reference.inputs, candidate.inputs, strict=True))
    if bitwise or any(a.shape != b.shape for a, b in pairs):
        check = _equal(name, reference.inputs, candidate.inputs)
        ok, evidence = check.ok, check.evidence
    else:
        worst = max(_rmse(a, b) / max(float(a.double().std()), 1e-12) for a, b in pairs)
        ok = worst <= DATA_TOLERANCE
        evidence = f"RMSE {worst:.2g} of their standard deviation, after preparation on the device"
    hint = ". A data set that augments at random must draw from the sample's index, not the order"
    return Check(name, ok, evidence + ("" if ok else hint))


def _structure(reference: StepTrace, candidate: StepTrace) -> Check:
    layers = itertools.zip_longest(reference.structure, candidate.structure)
    changed = [f"{b}, was {a}" for a, b in layers if a != b]
    return Check("the same model", not changed, (changed or [f"{len(reference.structure)} layers alike"])[0])


def _scaler(candidate: StepTrace, recipe: Recipe) -> Check:
    if recipe.amp != "fp16":
        return Check("gradient scaling", True, "not needed")
    evidence = "a GradScaler is on" if candidate.scaler else "fp16 without one"
    return Check("gradient scaling", candidate.scaler, evidence)


def _budget(base: float, scale: float, rounding: float, step: int, roundings: int) -> float:
    """The RMSE against float64 that is allowed.

    Twice that of the float32 program; where the recipe computes in a shorter format, some of its own
    roundings come in addition. A floor of float32's rounding keeps a lucky baseline from refusing everything.
    Later steps have been through as many updates, each with its own rounding.
    """
    return (2 * base + scale * (2.0**-18 + roundings * rounding)) * (1 + step)


def _outputs(
    candidate: StepTrace, float32: StepTrace, float64: StepTrace, recipe: Recipe, rounding: float
) -> Check:
    """Of the first step only: before any update, so no difference has grown yet."""
    own, plain, exact = (trace.outputs[0] for trace in (candidate, float32, float64))
    error, plain_error = _rmse(own, exact), _rmse(plain, exact)
    if candidate.random and recipe.amp == "off":
        # Random layers draw other numbers in float64: then float32 is the yardstick.
        error, plain_error = _rmse(own, plain), 0.0
    allowed = _budget(plain_error, float(exact.double().std()), rounding, 0, roundings=15)
    ok = error <= allowed or (candidate.random and recipe.amp != "off")
    evidence = f"RMSE {error:.2g}, float32 has {plain_error:.2g}, allowed {allowed:.2g}"
    return Check("outputs of the first step", ok, evidence)


def _losses(
    candidate: StepTrace, float32: StepTrace, float64: StepTrace, recipe: Recipe, rounding: float
) -> Check:
    worst, evidence = 0.0, "equal"
    sides = zip(candidate.losses, float32.losses, float64.losses, strict=True)
    for step, (own, plain, exact) in enumerate(sides):
        expected = plain if candidate.random else exact
        allowed = _budget(abs(plain - expected), max(1.0, abs(expected)), rounding, step, roundings=4)
        if candidate.random and recipe.amp != "off":
            allowed = max(allowed, 0.05 * abs(expected))
        error = abs(own - expected) / allowed
        if not error <= worst:  # so is NaN
            worst = math.inf if math.isnan(error) else error
            evidence = f"step {step}: {own:.6g}, expected {expected:.6g} ± {allowed:.1g}"
    return Check("losses", worst <= 1, evidence)
