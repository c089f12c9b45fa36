"""Planted faults: each makes a recipe train something else, and each must be caught."""

from typing import Any

import pytest
import torch
from torch import nn

from perfkit.recipe import Recipe
from perfkit.worker import parity
from tests.support.toy import Toy

CPU = torch.device("cpu")
CANDIDATE = Recipe(batch_size=16, channels_last=True)
"""The recipe with the fault; the plain program of the same batch has `channels_last` off."""


class Images(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Small images of two classes, uint8 where the recipe says so."""

    def __init__(self, raw: bool, fault: str) -> None:
        generator = torch.Generator().manual_seed(0)
        self.pixels = torch.randint(0, 256, (64, 3, 8, 8), dtype=torch.uint8, generator=generator)
        self.labels = torch.randint(0, 4, (64,), generator=generator)
        self.raw, self.fault = raw, fault

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        label = self.labels[(index + 1) % 64 if self.fault == "labels shuffled" else index]
        pixels = self.pixels[0 if self.fault == "one sample only" else index]
        if self.fault == "channels swapped":
            pixels = pixels.flip(0)
        return (pixels if self.raw else normal(pixels)), label


def normal(pixels: torch.Tensor) -> torch.Tensor:
    return (pixels.float() / 255 - 0.5) / 0.5


class Net(Toy):
    """A convolution with batch norm and dropout, whose faults show only with the candidate's recipe."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.planted, self.fault, self.losses = fault, "", 0

    def dataset(self, recipe: Any) -> Any:
        # Called first by the program: from here on this side is the faulty one, or is not.
        self.fault = self.planted if recipe.channels_last else ""
        return Images(recipe.uint8_copy, self.fault)

    def prepare(self, inputs: torch.Tensor, recipe: Recipe) -> torch.Tensor:
        if inputs.dtype != torch.uint8:
            return inputs
        return inputs.float() if self.fault == "normalisation left out" else normal(inputs)

    def model(self) -> nn.Module:
        layers = (
            nn.Conv2d(3, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Flatten(),
            nn.Linear(288, 4),
        )
        model = nn.Sequential(*layers)
        if self.fault == "left in evaluation":
            model.train = lambda mode=True: nn.Module.train(model, False)  # type: ignore[method-assign]
        if self.fault == "a layer frozen":
            model[0].requires_grad_(False)
        if self.fault == "other weights":
            nn.init.normal_(layers[5].weight)
        return model

    def loss(self, outputs: Any, targets: Any) -> Any:
        value = nn.functional.cross_entropy(outputs.float(), targets)
        self.losses += 1
        if self.fault == "a loss that is no number" and self.losses == 3:
            value = value * float("nan")
        return value * 1.1 if self.fault == "loss scaled" else value

    def optimizer(self, parameters: Any, **implementation: Any) -> Any:
        rate = 0.2 if self.fault == "other learning rate" else 0.1
        optimizer = torch.optim.SGD(parameters, lr=rate, momentum=0.9, **implementation)
        if self.fault == "gradients kept":
            optimizer.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]
        if self.fault == "no update":
            optimizer.step = lambda closure=None: None  # type: ignore[method-assign, assignment]
        return optimizer


def failed(workload: Any, recipe: Recipe = CANDIDATE, exactness: str = "tolerance") -> list[str]:
    return [check.name for check in parity.check(workload, recipe, CPU, exactness).checks if not check.ok]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"uint8_copy": True},
        {"amp": "bf16"},
        {"optimizer_impl": "foreach", "zero_grad_set_to_none": False},
        {"workers": 2, "accumulation": 2},
    ],
    ids=str,
)
def test_sound_recipes_pass(changes: dict[str, Any]) -> None:
    assert failed(Net(), CANDIDATE.replace(**changes)) == []


@pytest.mark.parametrize(
    ("fault", "caught"),
    [
        ("labels shuffled", "the same targets"),
        ("channels swapped", "the same inputs"),
        ("one sample only", "the same inputs"),
        ("left in evaluation", "outputs of the first step"),
        ("other weights", "outputs of the first step"),
        ("a layer frozen", "losses"),
        ("loss scaled", "losses"),
        ("a loss that is no number", "losses"),
        ("other learning rate", "losses"),
        ("gradients kept", "losses"),
        ("no update", "losses"),
    ],
)
def test_a_planted_fault_is_caught(fault: str, caught: str) -> None:
    assert caught in failed(Net(fault))


def test_normalisation_left_out_is_caught() -> None:
    assert "the same inputs" in failed(Net("normalisation left out"), CANDIDATE.replace(uint8_copy=True))


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
    recipes, cuda = [Recipe(), Recipe(fp32_precision="ieee"), Recipe(amp="bf16")], torch.device("cuda")
    assert [parity._rounding(recipe, cuda) for recipe in recipes] == [2.0**-11, 0, 2.0**-8]
    assert parity._rounding(Recipe(), CPU) == 0
