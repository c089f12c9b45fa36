"""Does a recipe still train the same? Both sides on the same batches, against float64. Runs in the child.

Two questions, kept apart: does the data arrive as it should, and does the model compute on it as it should?
For the second, the plain program in float32 and in float64 gets exactly the tensors that the candidate's
model got, so that a legitimate difference of the data path (a resize on the device, say) is not taken for one
of the computation.

The float32 of that comparison is strict (`fp32_precision="ieee"`). On a GPU a recipe may compute products in
TF32, convolutions by torch's default; like 16 bits, that is a format of its own, whose roundings are allowed.

Only the candidate's inputs are kept, as they are: four steps of a large batch take gigabytes.
"""

import contextlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from perfkit.recipe import Recipe
from perfkit.results.parity import Check
from perfkit.worker.checks import first_tensor
from perfkit.worker.reports import ParityReport
from perfkit.worker.training import Training, inner_model

ROUNDING = {"bf16": 2.0**-8, "fp16": 2.0**-11, "tf32": 2.0**-11}
"""Relative rounding of the formats with fewer bits than float32 that inputs of products may have."""
DATA_TOLERANCE = 0.05
"""RMSE of inputs / their standard deviation: another resize differs by less, another scale by more."""
_HINT = ". A data set that augments at random must draw from the sample's index, not the order"

Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass
class Inputs:
    """Whether inputs and targets are those of the candidate, batch by batch."""

    candidate: list[Pair]
    bitwise: bool
    worst: float = 0.0
    different: str = ""
    other_targets: str = ""
    count: int = 0

    def compare(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Takes the next batch of the plain program."""
        own_inputs, own_targets = self.candidate[self.count]
        self.other_targets = self.other_targets or _difference(targets, own_targets)
        if self.bitwise or inputs.shape != own_inputs.shape:
            self.different = self.different or _difference(inputs, own_inputs)
        else:
            scale = max(float(inputs.double().std()), 1e-12)
            self.worst = max(self.worst, _rmse(inputs, own_inputs) / scale)
        self.count += 1

    def checks(self) -> list[Check]:
        """What was seen."""
        evidence = self.different or "equal in every step, to the last digit"
        if not self.bitwise and not self.different:
            evidence = f"RMSE {self.worst:.2g} of their standard deviation, after preparation on the device"
        same = not self.different and self.worst <= DATA_TOLERANCE
        return [
            Check("the same inputs", same, evidence + ("" if same else _HINT)),
            _equal("the same targets", self.other_targets),
        ]


@dataclass
class Side:
    """What one program did."""

    structure: list[str]
    random: bool
    scaler: bool
    losses: list[float]
    outputs: torch.Tensor
    """Of the first batch, before any update: no difference has grown yet."""
    batches: list[Pair] = field(default_factory=list)
    """What the model got, with the targets."""


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
    bitwise = exactness == "bitwise"
    with _settings_kept():
        candidate = _train(Training(recipe, _Watched(workload, seed), device, seed), steps)
        inputs = Inputs(candidate.batches, bitwise)
        reference = _train(Training(plain, _Watched(workload, seed, inputs.compare), device, seed), steps)
        float32, float64 = (
            _replay(workload, strict, device, seed, steps, candidate.batches, dtype)
            for dtype in (torch.float32, torch.float64)
        )
    rounding = _rounding(recipe, device)
    checks = [
        *inputs.checks(),
        _structure(reference, candidate),
        _scaler(candidate, recipe),
        *([_same_losses(reference, candidate)] if bitwise else []),
        _outputs(candidate, float32, float64, recipe, rounding),
        _losses(candidate, float32, float64, recipe, rounding),
    ]
    losses = {"candidate": candidate.losses, "float32": float32.losses, "float64": float64.losses}
    return ParityReport(checks, losses)


@contextlib.contextmanager
def _settings_kept() -> Iterator[None]:
    """Puts back what recipes set in the process: one with torch's defaults does not set it."""
    parts: Any = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    before = [part.fp32_precision for part in parts]
    benchmark, threads = torch.backends.cudnn.benchmark, torch.get_num_threads()
    try:
        yield
    finally:
        for part, precision in zip(parts, before, strict=True):
            part.fp32_precision = precision
        torch.backends.cudnn.benchmark = benchmark
        torch.set_num_threads(threads)


class _Watched:
    """A workload that passes on what its model gets and gives; random layers draw the same on each side.

    Args:
        workload: what is trained.
        seed: of random layers.
        on_batch: called with inputs and targets on the host; without it they are kept.
        dtype: of the model, if it is not its own; inputs are then those of the model already.
    """

    def __init__(
        self, workload: Any, seed: int, on_batch: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        self._workload = workload
        self._seed = seed
        self._on_batch = on_batch or self._keep
        self._dtype = dtype
        self._inputs: Any = None
        self.count = 0
        self.batches: list[Pair] = []
        self.first_outputs: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)

    def _keep(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.batches.append((inputs, targets))

    def model(self) -> nn.Module:
        """The model."""
        model: nn.Module = self._workload.model()
        return model.to(self._dtype) if self._dtype else model

    def prepare(self, inputs: Any, recipe: Recipe) -> Any:
        """The model's inputs."""
        if self._dtype is None and hasattr(self._workload, "prepare"):
            inputs = self._workload.prepare(inputs, recipe)
        nhwc = recipe.channels_last and inputs.dim() == 4
        # The layout too: random layers draw in the order of memory.
        self._inputs = inputs.to(memory_format=torch.channels_last) if nhwc else inputs
        torch.manual_seed(self._seed + self.count)
        return inputs

    def loss(self, outputs: Any, targets: Any) -> Any:
        """The loss."""
        if self.count == 0:
            self.first_outputs = first_tensor(outputs).detach().double().cpu()
        self.count += 1
        self._on_batch(self._inputs.detach().cpu(), targets.detach().cpu())
        self._inputs = None
        return self._workload.loss(outputs, targets)


def _train(training: Training, steps: int) -> Side:
    losses = [training.step() for _ in range(steps)]
    model = inner_model(training.model)
    watched = training.workload
    return Side(
        structure=_structure_of(model),
        random=_is_random(model),
        scaler=training.scaler.is_enabled(),
        losses=[float(loss) for loss in losses],
        outputs=watched.first_outputs,
        batches=watched.batches,
    )


def _replay(
    workload: Any,
    recipe: Recipe,
    device: torch.device,
    seed: int,
    steps: int,
    batches: list[Pair],
    dtype: torch.dtype,
) -> Side:
    """The plain program on given tensors, in a given precision."""
    pairs = (
        (inputs.to(dtype) if inputs.is_floating_point() else inputs, targets)
        for inputs, targets in itertools.cycle(batches)
    )
    watched = _Watched(workload, seed, lambda inputs, targets: None, dtype)
    return _train(Training(recipe, watched, device, seed, batches=pairs), steps)


def _rounding(recipe: Recipe, device: torch.device) -> float:
    """The relative rounding of the format that the recipe computes products in; 0 for float32 itself."""
    if recipe.amp != "off":
        return ROUNDING[recipe.amp]
    return ROUNDING["tf32"] if device.type == "cuda" and recipe.fp32_precision != "ieee" else 0.0


def _structure_of(model: nn.Module) -> list[str]:
    """Every layer with what decides how it trains: kind, training or not, dropout's share, frozen or not."""
    return [
        f"{name or 'model'}: {type(layer).__name__}, {'training' if layer.training else 'evaluating'}"
        f"{f', p={layer.p}' if hasattr(layer, 'p') else ''}"
        f"{', frozen' if any(not p.requires_grad for p in layer.parameters(recurse=False)) else ''}"
        for name, layer in model.named_modules()
    ]


def _is_random(model: nn.Module) -> bool:
    return any("Dropout" in type(layer).__name__ and getattr(layer, "p", 0) > 0 for layer in model.modules())


def _rmse(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).square().mean().sqrt())


def _difference(expected: Any, actual: Any) -> str:
    """How values differ; empty where they are equal to the last digit."""
    try:
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    except AssertionError as difference:
        return "; ".join(line for line in str(difference).splitlines() if line)
    return ""


def _equal(name: str, difference: str) -> Check:
    return Check(name, not difference, difference or "equal in every step, to the last digit")


def _same_losses(reference: Side, candidate: Side) -> Check:
    return _equal("bitwise the same losses", _difference(reference.losses, candidate.losses))


def _structure(reference: Side, candidate: Side) -> Check:
    layers = itertools.zip_longest(reference.structure, candidate.structure)
    changed = [f"{b}, was {a}" for a, b in layers if a != b]
    return Check("the same model", not changed, (changed or [f"{len(reference.structure)} layers alike"])[0])


def _scaler(candidate: Side, recipe: Recipe) -> Check:
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


def _outputs(candidate: Side, float32: Side, float64: Side, recipe: Recipe, rounding: float) -> Check:
    error = _rmse(candidate.outputs, float64.outputs)
    plain_error = _rmse(float32.outputs, float64.outputs)
    if candidate.random and recipe.amp == "off":
        # Random layers draw other numbers in float64: then float32 is the yardstick.
        error, plain_error = _rmse(candidate.outputs, float32.outputs), 0.0
    allowed = _budget(plain_error, float(float64.outputs.std()), rounding, 0, roundings=15)
    ok = error <= allowed or (candidate.random and recipe.amp != "off")
    evidence = f"RMSE {error:.2g}, float32 has {plain_error:.2g}, allowed {allowed:.2g}"
    return Check("outputs of the first step", ok, evidence)


def _losses(candidate: Side, float32: Side, float64: Side, recipe: Recipe, rounding: float) -> Check:
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
