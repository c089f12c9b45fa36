"""Checks in the child whether a recipe trains the same: both sides on the same batches, against float64.

There are two separate questions: is the data right, and does the model compute correctly on it? For the
second, the plain program in float32 and in float64 gets exactly the tensors that the candidate's model got,
so that a legitimate difference in the data path (such as a resize on the device) is not mistaken for a
difference in computation. Dropout of torch's layers is off on all sides, because random numbers differ in
float64; where a model calls `F.dropout` itself, only the tolerance is wider.

The float32 of that comparison is strict (`fp32_precision="ieee"`). On a GPU a recipe may compute products in
TF32, as torch's default does in convolutions. Like 16 bits, that format has roundings, which are allowed.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from perfkit.additions.parity.study import ParityReport
from perfkit.recipe import Recipe, switches
from perfkit.results import Check, Mechanism
from perfkit.worker.checks import first_tensor, verify
from perfkit.worker.session import WorkerSession
from perfkit.worker.training import Training, loss_values

ROUNDING = {"bf16": 2.0**-8, "fp16": 2.0**-11, "tf32": 2.0**-11}
"""The relative rounding of formats with fewer bits than float32 that the inputs of products may have."""
MOST_SAMPLES = 32
"""The most samples in a batch. In float64, a large GPU's batch would need twice the memory, and minutes."""
DATA_TOLERANCE = 0.18
"""Allowed RMSE of inputs / their standard deviation: scaled photos have up to 0.17, shifted ones 0.21."""
BY_INDEX = ". A data set that augments at random must draw from the sample's index, not the order"

Pair = tuple[torch.Tensor, torch.Tensor]  # inputs and targets that a model got, on the host


class CheckedSide:
    """A workload that records what its model gets and returns; with a `dtype` it computes in this type."""

    def __init__(
        self, workload: Any, note: Callable[[Pair], None] = lambda _: None, dtype: torch.dtype | None = None
    ) -> None:
        self._workload = workload
        self._note = note
        self._dtype = dtype
        self._inputs: Any = None
        self.outputs: list[torch.Tensor] = []
        """The outputs of the first batch, before any update, so that no difference has grown yet."""
        self.losses: list[float] = []
        self.mechanisms: list[Mechanism] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)

    def model(self) -> nn.Module:
        model: nn.Module = self._workload.model()
        for layer in model.modules():
            if isinstance(layer, nn.modules.dropout._DropoutNd):
                layer.p = 0.0
            elif isinstance(layer, nn.RNNBase | nn.MultiheadAttention):
                layer.dropout = 0.0
        return model.to(self._dtype)

    def prepare(self, inputs: Any, recipe: Recipe) -> Any:
        torch.manual_seed(0)  # the workload draws the same random numbers on each side
        if self._dtype is None and hasattr(self._workload, "prepare"):
            inputs = self._workload.prepare(inputs, recipe)
        if self._dtype and inputs.is_floating_point():
            inputs = inputs.to(self._dtype)
        self._inputs = inputs
        return inputs

    def loss(self, outputs: Any, targets: Any) -> Any:
        if not self.outputs:
            self.outputs.append(first_tensor(outputs).detach().double().cpu())
        self._note((self._inputs.detach().cpu(), targets.detach().cpu()))
        self._inputs = None
        return self._workload.loss(outputs, targets)


class BatchComparison:
    """Compares the batches of a side with those of the reference, which it takes from their queue.

    So only one side's batches are kept, in their own type: four steps of a large batch take gigabytes.
    """

    def __init__(self, reference: deque[Pair]) -> None:
        self._reference = reference
        self.batches = list[Pair]()
        self.differences = list[list[float]]()  # of inputs and of targets, by batch

    def add(self, pair: Pair) -> None:
        self.differences.append([*map(_difference, pair, self._reference.popleft())])
        self.batches.append(pair)


@dataclass(frozen=True)
class Trainer:
    """Trains sides alike."""

    device: torch.device
    seed: int  # of weights, order and augmentation
    steps: int

    def trained(self, side: CheckedSide, recipe: Recipe, batches: list[Pair] | None = None) -> CheckedSide:
        """A side after its training; if that was on its own batches, its switches are proven, too."""
        training = Training(recipe, side, self.device, self.seed, batches)
        middle = [training.step() for _ in range(self.steps - 2)]
        last, view = training.observed_step()
        side.losses = loss_values([training.first, *middle, last])
        side.mechanisms = verify(view, recipe.to_dict()) if batches is None else []
        training.stop()
        return side


def check(session: WorkerSession, recipe: Recipe, exactness: str, seed: int, steps: int) -> ParityReport:
    """Compares some steps of a recipe with the plain program at the same batch size (`MOST_SAMPLES` at most).

    `exactness` is `bitwise`, or anything else for a tolerance; for `seed` and `steps` see `Trainer`.
    The plain program must run first in its process, and the recipe second, because a recipe with torch's
    defaults leaves the settings of the process unchanged.
    """
    session.report("comparing losses and outputs")
    workload, device = session.workload, session.device
    recipe = recipe.replace(batch_size=min(recipe.batch_size, MOST_SAMPLES))
    plain = Recipe(batch_size=recipe.batch_size, accumulation=recipe.accumulation)
    strict = plain.replace(fp32_precision="ieee")
    trainer = Trainer(device, seed, steps)
    reference_batches = deque[Pair]()
    reference = trainer.trained(CheckedSide(workload, reference_batches.append), plain)
    data = BatchComparison(reference_batches)
    candidate = trainer.trained(CheckedSide(workload, data.add), recipe)
    float32 = trainer.trained(CheckedSide(workload, dtype=torch.float32), strict, data.batches)
    float64 = trainer.trained(CheckedSide(workload, dtype=torch.float64), strict, data.batches)
    sides = (candidate, float32, float64)
    rounding = _rounding(recipe, device)
    checks = _same_data(data.differences, recipe, plain)
    if exactness == "bitwise":
        apart = [abs(one - other) for one, other in zip(candidate.losses, reference.losses, strict=True)]
        checks.append(_same("bitwise the same losses", apart, words="they differ by up to {:.2g}"))
    outputs = [side.outputs for side in sides]
    losses = [[*map(torch.tensor, side.losses)] for side in sides]
    checks.append(_near("outputs of the first step", outputs, rounding, roundings=15))
    checks.append(_near("losses", losses, rounding, roundings=4))
    found = {"candidate": candidate.losses, "float32": float32.losses, "float64": float64.losses}
    return ParityReport(checks, found, candidate.mechanisms)


def _same_data(differences: list[list[float]], recipe: Recipe, plain: Recipe) -> list[Check]:
    """Whether inputs and targets are the same; inputs that are prepared differently may differ a little."""
    are_prepared_otherwise = any(switches()[name].needs == "workload" for name in recipe.diff(plain))
    allowed = DATA_TOLERANCE if are_prepared_otherwise else 0.0
    inputs, targets = zip(*differences, strict=True)
    return [_same("the same inputs", inputs, allowed, BY_INDEX), _same("the same targets", targets)]


def _rounding(recipe: Recipe, device: torch.device) -> float:
    """The relative rounding of the format in which the recipe computes products; 0 for float32 itself."""
    if recipe.amp != "off":
        return ROUNDING[recipe.amp]
    return ROUNDING["tf32"] if device.type == "cuda" and recipe.fp32_precision != "ieee" else 0.0


def _rmse(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).square().mean().sqrt())


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """RMSE of values / their standard deviation; 0 if they are equal to the last digit."""
    if one.shape != other.shape:
        return math.inf
    error = _rmse(one, other)
    return error if error == 0 else error / max(float(other.double().std(correction=0)), 1e-12)


def _same(
    name: str,
    differences: Sequence[float],
    allowed: float = 0.0,
    remedy: str = "",
    words: str = "RMSE {:.2g} of their standard deviation",
) -> Check:
    """Whether values differ by no more than is allowed in any step."""
    worst = float(torch.tensor(differences, dtype=torch.float64).max())  # NaN if any is NaN
    if worst == 0:
        return Check(name, True, "equal in every step, to the last digit")
    is_same = worst <= allowed
    return Check(name, is_same, words.format(worst) + ("" if is_same else remedy))


def _near(name: str, sides: Iterable[Sequence[torch.Tensor]], rounding: float, roundings: int) -> Check:
    """Whether the candidate's values are about as close to those in float64 as those in float32 are.

    Twice the error of the float32 program is allowed, plus some roundings of a shorter format if the recipe
    computes in one. A floor of float32's rounding keeps a lucky baseline from refusing everything. Later
    steps have been through more updates, each with its own rounding.
    """
    found = list[tuple[float, str]]()
    for step, (value, plain, exact) in enumerate(zip(*sides, strict=True)):
        size = _rmse(exact, torch.zeros_like(exact))  # roundings are relative to the values
        scale = size if exact.dim() else max(1.0, size)
        error, plain_error = _rmse(value, exact), _rmse(plain, exact)
        allowed = (2 * plain_error + scale * (2.0**-18 + roundings * rounding)) * (1 + step)
        evidence = f"step {step}: RMSE {error:.2g}, float32 has {plain_error:.2g}, allowed {allowed:.2g}"
        share = error / max(allowed, 1e-300)  # nothing is allowed where all values are 0
        found.append((math.inf if math.isnan(share) else share, evidence))
    worst, evidence = max(found, key=lambda each: each[0])
    return Check(name, worst <= 1, evidence)
