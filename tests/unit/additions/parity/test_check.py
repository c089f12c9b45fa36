"""Planted faults: each makes a recipe train something else, and each must be caught."""

import gc
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from perfkit.additions.parity import check as parity
from perfkit.recipe import Recipe
from perfkit.workloads.photos import Photos
from tests.support.toy import Toy

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("settings_kept")
CANDIDATE = Recipe(batch_size=16, channels_last=True)
"""The recipe with the fault; the plain program of the same batch has `channels_last` off."""


def images(raw, fault):
    """Small images of four classes, uint8 where the recipe says so."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (64, 3, 8, 8), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 4, (64,), generator=generator)
    if fault == "labels shuffled":
        labels = labels.roll(1)
    if fault == "one sample only":
        pixels = pixels[:1].expand_as(pixels)
    if fault == "channels swapped":
        pixels = pixels.flip(1)
    if fault == "a little noise":  # less than an edit of how inputs are prepared may change
        pixels = pixels ^ 1
    return torch.utils.data.TensorDataset(pixels if raw else normal(pixels), labels)


def normal(pixels):
    return (pixels.float() / 255 - 0.5) / 0.5


class Net(Toy):
    """A convolution with batch norm and dropout, whose faults show only with the candidate's recipe."""

    def __init__(self, fault=""):
        super().__init__()
        self.planted = fault

    def dataset(self, recipe):
        # Called first by the program: from here on this side is the faulty one, or is not.
        self.fault, self.losses = self.planted if recipe.channels_last else "", 0
        return images(recipe.uint8_copy, self.fault)

    def prepare(self, inputs, recipe):
        if inputs.dtype != torch.uint8:
            return inputs
        return inputs.float() if self.fault == "normalisation left out" else normal(inputs)

    def model(self):
        convolution = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
        model = nn.Sequential(*convolution, nn.Dropout(0.3), nn.Flatten(), nn.Linear(288, 4))
        if self.fault == "left in evaluation":
            model.train = lambda mode=True: nn.Module.train(model, False)
        if self.fault == "a layer frozen":
            model[0].requires_grad_(False)
        if self.fault == "other weights":
            nn.init.normal_(model[5].weight)
        return model

    def loss(self, outputs, targets):
        value = nn.functional.cross_entropy(outputs.float(), targets)
        self.losses += 1
        if self.fault == "a loss that is no number" and self.losses == 3:
            value = value * float("nan")
        return value * 1.1 if self.fault == "loss scaled" else value

    def optimizer(self, parameters, **implementation):
        rate = 0.2 if self.fault == "other learning rate" else 0.1
        optimizer = torch.optim.SGD(parameters, lr=rate, momentum=0.9, **implementation)
        if self.fault == "gradients kept":
            optimizer.zero_grad = lambda set_to_none=True: None
        if self.fault == "no update":
            optimizer.step = lambda closure=None: None
        return optimizer


def failed(workload, recipe=CANDIDATE, exactness="tolerance"):
    session = SimpleNamespace(workload=workload, device=CPU, report=str)
    report = parity.check(session, recipe, exactness, seed=0, steps=4)
    return [check.name for check in [*report.checks, *report.mechanisms] if not check.ok]


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
def test_sound_recipes_pass(changes):
    assert failed(Net(), CANDIDATE.replace(**changes)) == []


@pytest.mark.parametrize(
    ("fault", "caught"),
    [
        ("normalisation left out", "the same inputs"),
        ("labels shuffled", "the same targets"),
        ("channels swapped", "the same inputs"),
        ("a little noise", "the same inputs"),
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
def test_a_planted_fault_is_caught(fault, caught):
    assert caught in failed(Net(fault), CANDIDATE.replace(uint8_copy=fault == "normalisation left out"))


@pytest.mark.usefixtures("data_dir")
@pytest.mark.parametrize("size", [preset["image_size"] for preset in Photos.presets.values()])
def test_scaled_photos_are_told_from_shifted_ones(size):
    sides = [Photos(size, count=8).dataset(Recipe(scaled_decode=on)) for on in (False, True)]
    plain, scaled = (torch.stack([side[number][0] for number in range(8)]) for side in sides)
    errors = scaled - plain, plain[..., 1:] - plain[..., :-1]
    differences = [float(error.square().mean().sqrt() / plain.std()) for error in errors]
    assert differences[0] < parity.DATA_TOLERANCE < differences[1]


def test_the_inputs_of_one_side_are_kept_at_a_time():
    """Four steps of a large batch take gigabytes."""
    alive = []

    class Counting(Net):
        def loss(self, outputs, targets):
            gc.collect()
            tensors = (one for one in gc.get_objects() if type(one) is torch.Tensor)
            alive.append(sum(one.shape == (16, 3, 8, 8) for one in tensors))
            return super().loss(outputs, targets)

    gc.collect()
    gc.freeze()  # all of torch, for good: what was there before is neither collected nor counted
    assert failed(Counting()) == []
    assert len(alive) == 4 * 4 and max(alive) - alive[0] <= 4


def test_dropout_of_recurrent_layers_and_attention_is_off_too():
    layers = nn.LSTM(4, 4, 2, dropout=0.5), nn.MultiheadAttention(4, 2, dropout=0.5), nn.Dropout(0.5)
    model = parity.CheckedSide(SimpleNamespace(model=lambda: nn.ModuleList(layers))).model()
    assert [model[0].dropout, model[1].dropout, model[2].p] == [0, 0, 0]


@pytest.mark.parametrize("amp", ["off", "bf16"])
def test_a_head_that_starts_at_zero_gives_outputs_without_spread_or_error(amp):
    class ZeroHead(Net):
        def model(self):
            model = super().model()
            nn.init.zeros_(model[5].weight)
            nn.init.zeros_(model[5].bias)
            return model

    assert failed(ZeroHead(), CANDIDATE.replace(amp=amp)) == []


@pytest.mark.parametrize(
    ("value", "exact", "is_near"),
    [
        ([[0.0], [0.0]], [[0.0], [0.0]], True),
        ([[1e-3], [0.0]], [[0.0], [0.0]], False),
        ([[0.30078125]], [[0.3]], True),  # one element has no deviation; 0.3 in bf16
        ([[0.31]], [[0.3]], True),  # fifteen roundings of a value of this size
        ([[0.33]], [[0.3]], False),
        ([[0.3], [0.3]], [[0.3], [0.3]], True),
        ([[math.nan]], [[0.3]], False),
    ],
)
def test_outputs_are_judged_by_their_size_even_without_spread(value, exact, is_near):
    exact = torch.tensor(exact, dtype=torch.float64)
    sides = [[torch.tensor(value, dtype=torch.float64)], [exact], [exact]]
    check = parity._near("outputs", sides, 2.0**-8, roundings=15)
    assert check.ok == is_near and "allowed nan" not in check.evidence


def test_a_float32_yardstick_without_a_number_is_near_nothing():
    one, none = torch.tensor([0.3]), torch.tensor([math.nan])
    assert not parity._near("outputs", [[one], [none], [one]], 0.0, roundings=15).ok


def test_bitwise_means_to_the_last_digit():
    assert failed(Net(), Recipe(batch_size=16, workers=1), "bitwise") == []
    assert "bitwise the same losses" in failed(Net(), CANDIDATE.replace(amp="bf16"), "bitwise")


def test_losses_that_are_not_bitwise_the_same_differ_by_a_number():
    session = SimpleNamespace(workload=Net(), device=CPU, report=str)
    report = parity.check(session, CANDIDATE.replace(amp="bf16"), "bitwise", seed=0, steps=4)
    (evidence,) = [check.evidence for check in report.checks if check.name == "bitwise the same losses"]
    plain = parity.check(session, Recipe(batch_size=16), "bitwise", seed=0, steps=4)
    pairs = zip(report.losses["candidate"], plain.losses["candidate"], strict=True)
    assert evidence == f"they differ by up to {max(abs(one - other) for one, other in pairs):.2g}"


def test_the_yardstick_is_strict_float32_and_tf32_is_allowed_its_own_rounding():
    used = []

    class Watching(Net):
        def model(self):
            used.append(torch.backends.cudnn.conv.fp32_precision)
            return super().model()

    before = torch.backends.cudnn.conv.fp32_precision
    assert failed(Watching(), Recipe(batch_size=16)) == []
    assert used == [before, before, "ieee", "ieee"]
    recipes, cuda = [Recipe(), Recipe(fp32_precision="ieee"), Recipe(amp="bf16")], torch.device("cuda")
    assert [parity._rounding(recipe, cuda) for recipe in recipes] == [2.0**-11, 0, 2.0**-8]
    assert parity._rounding(Recipe(), CPU) == 0
