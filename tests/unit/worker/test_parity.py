"""Planted faults: each makes a recipe train something else, and each must be caught."""

from typing import Any

import pytest
import torch
from torch import nn

from perfkit.recipe import Recipe
from perfkit.worker import parity
from perfkit.worker.parity import Inputs
from tests.support.toy import Toy

CPU = torch.device("cpu")
CANDIDATE = Recipe(batch_size=16, channels_last=True)
"""The recipe with the fault; the plain program of the same batch has `channels_last` off."""


class Images(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Small images of two classes, uint8 where the recipe says so."""

    def __init__(self, raw: bool = False, fault: str = "") -> None:
        generator = torch.Generator().manual_seed(0)
        self.pixels = torch.randint(0, 256, (64, 3, 8, 8), dtype=torch.uint8, generator=generator)
        self.labels = torch.randint(0, 4, (64,), generator=generator)
        self.raw, self.fault = raw, fault

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        at = 0 if self.fault == "one sample only" else index
        label = self.labels[(index + 1) % 64 if self.fault == "labels shuffled" else index]
        pixels = self.pixels[at]
        if self.fault == "channels swapped":
            pixels = pixels.flip(0)
        return (pixels if self.raw else normal(pixels)), label


def normal(pixels: torch.Tensor) -> torch.Tensor:
    return (pixels.float() / 255 - 0.5) / 0.5


class Net(Toy):
    """A convolution with batch norm and dropout, whose faults show only with the candidate's recipe."""

    def __init__(self, fault: str = "", dropout: float = 0.0) -> None:
        super().__init__()
        self.fault, self.dropout, self.faulty, self.losses = fault, dropout, False, 0

    def dataset(self, recipe: Any) -> Any:
        # Called first by the program: from here on this side is the faulty one, or is not.
        self.faulty = bool(self.fault) and recipe.channels_last
        return Images(recipe.uint8_copy, self.fault if self.faulty else "")

    def prepare(self, inputs: torch.Tensor, recipe: Recipe) -> torch.Tensor:
        if inputs.dtype != torch.uint8:
            return inputs
        if self.faulty and self.fault == "normalisation left out":
            return inputs.float()
        return normal(inputs)

    def model(self) -> nn.Module:
        drop = 0.0 if self.faulty and self.fault == "dropout off" else self.dropout
        made = nn.Sequential(
            nn.Conv2d(3, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Dropout(drop),
            nn.Flatten(),
            nn.Linear(288, 4),
        )
        if self.faulty and self.fault == "left in evaluation":
            made.train = lambda mode=True: nn.Module.train(made, False)  # type: ignore[method-assign]
        if self.faulty and self.fault == "a layer frozen":
            made[0].requires_grad_(False)
        if self.faulty and self.fault == "other weights":
            nn.init.normal_(made[5].weight)
        return made

    def loss(self, outputs: Any, targets: Any) -> Any:
        value = nn.functional.cross_entropy(outputs.float(), targets)
        if self.faulty and self.fault == "a loss that is no number":
            self.losses += 1
            return value * float("nan" if self.losses == 3 else 1)
        return value * 1.1 if self.faulty and self.fault == "loss scaled" else value

    def optimizer(self, parameters: Any, **implementation: Any) -> Any:
        rate = 0.2 if self.faulty and self.fault == "other learning rate" else 0.1
        optimizer = torch.optim.SGD(parameters, lr=rate, momentum=0.9, **implementation)
        if self.faulty and self.fault == "gradients kept":
            optimizer.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]
        if self.faulty and self.fault == "no update":
            optimizer.step = lambda closure=None: None  # type: ignore[method-assign, assignment]
        return optimizer


def failed(workload: Any, recipe: Recipe = CANDIDATE, exact: str = "tolerance") -> list[str]:
    value = parity.check(workload, recipe, CPU, exact)
    return [check.name for check in value.checks if not check.ok]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(
    "changes",
    [
        {}, {"uint8_copy": True}, {"amp": "bf16"}, {"optimizer_impl": "foreach"},
        {"zero_grad_set_to_none": False}, {"workers": 2}, {"accumulation": 2},
    ],
    ids=str,
)  # fmt: skip
def test_sound_recipes_pass(changes: dict[str, Any], dropout: float) -> None:
    assert failed(Net(dropout=dropout), CANDIDATE.replace(**changes)) == []


@pytest.mark.parametrize(
    ("fault", "caught"),
    [
        ("labels shuffled", "the same targets"),
        ("channels swapped", "the same inputs"),
        ("one sample only", "the same inputs"),
        ("a layer frozen", "the same model"),
        ("dropout off", "the same model"),
        ("other weights", "outputs of the first step"),
        ("loss scaled", "losses"),
        ("a loss that is no number", "losses"),
        ("other learning rate", "losses"),
    ],
)
def test_a_planted_fault_is_caught(fault: str, caught: str) -> None:
    assert caught in failed(Net(fault, dropout=0.3 if fault == "dropout off" else 0.0))


def test_normalisation_left_out_is_caught() -> None:
    recipe = CANDIDATE.replace(uint8_copy=True)
    assert "the same inputs" in failed(Net("normalisation left out"), recipe)


@pytest.mark.parametrize("fault", ["gradients kept", "no update"])
def test_a_fault_of_the_update_is_caught(fault: str) -> None:
    assert failed(Net(fault)) == ["losses"]


def test_a_model_left_in_evaluation_is_caught() -> None:
    assert "the same model" in failed(Net("left in evaluation"))


def test_fp16_without_a_scaler_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.amp.GradScaler
    monkeypatch.setattr(torch.amp, "GradScaler", lambda device, enabled: plain(device, enabled=False))
    assert "gradient scaling" in failed(Net(), CANDIDATE.replace(amp="fp16"))


def test_only_the_candidates_inputs_are_kept_as_they_are() -> None:
    """Four steps of 1,024 images would take 20 GB if every side kept them in float64."""
    kept: list[list[torch.Tensor]] = []

    class Watching(Inputs):
        def checks(self) -> Any:
            kept.append([inputs for inputs, _ in self.candidate])
            return super().checks()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parity, "Inputs", Watching)
        sides: list[parity.Side] = []
        plain = parity._train

        def train(*arguments: Any) -> parity.Side:
            sides.append(plain(*arguments))
            return sides[-1]

        patch.setattr(parity, "_train", train)
        assert failed(Net()) == []
    assert [inputs.dtype for inputs in kept[0]] == [torch.float32] * 4
    assert [len(side.batches) for side in sides] == [4, 0, 0, 0]


def test_bitwise_means_to_the_last_digit() -> None:
    assert failed(Net(), Recipe(batch_size=16, workers=1), "bitwise") == []
    assert "bitwise the same losses" in failed(Net(), CANDIDATE.replace(amp="bf16"), "bitwise")


def test_the_yardstick_is_strict_float32_and_tf32_is_allowed_its_own_rounding() -> None:
    used: list[str] = []

    class Watching(Net):
        def model(self) -> nn.Module:
            used.append(torch.backends.cudnn.conv.fp32_precision)
            return super().model()

    before = torch.backends.cudnn.conv.fp32_precision
    assert failed(Watching(), Recipe(batch_size=16)) == []
    assert used == [before, before, "ieee", "ieee"]
    assert torch.backends.cudnn.conv.fp32_precision == before
    cuda, tf32 = torch.device("cuda"), 2.0**-11
    assert [parity._rounding(Recipe(), device) for device in (CPU, cuda)] == [0, tf32]
    assert parity._rounding(Recipe(fp32_precision="ieee"), cuda) == 0
    assert parity._rounding(Recipe(amp="bf16"), cuda) == parity.ROUNDING["bf16"]
