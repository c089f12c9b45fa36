"""A folder of JPEG files, decoded and cropped one by one: a workload that waits for its data."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from PIL import Image
from torch import nn
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from perfkit.workloads.files import photo_folder


def scaled_photo(file: str, size: int) -> Image.Image:
    """A photo, decoded at the smallest of a JPEG file's scales whose sides are at least this long."""
    photo = Image.open(file)
    photo.draft("RGB", (size, size))
    return photo.convert("RGB")


SHAPES = [(3, 16, 2), (16, 32, 1), (32, 32, 2), (32, 64, 2), (64, 64, 1), (64, 128, 2)]


def small_net(classes: int) -> nn.Module:
    """Six convolutions, each with batch norm, then one linear layer."""
    layers: list[nn.Module] = []
    for inputs, outputs, stride in SHAPES:
        layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))


@dataclass
class Photos:
    """A small convolutional net on photos: most of a step goes to reading, decoding and resizing.

    Args:
        image_size: side of the images the model sees.
        count: photos in the folder.
        rounds: how often an epoch goes through the folder. Workers start each epoch with an empty queue,
            which would dominate epochs of a few steps; real data sets have thousands.
    """

    image_size: int = 224
    count: int = 512
    rounds: int = 40

    offers = frozenset({"uint8_copy", "scaled_decode"})  # to resize on the device, photos need equal sizes
    presets = {
        "smoke": {"image_size": 48, "count": 48},
        "quick": {"image_size": 96, "count": 256},
        "paper": {"image_size": 224, "count": 512},
    }

    def dataset(self, recipe: Any) -> Any:
        """The folder, with the transforms on the host."""
        crop = [T.Resize(self.image_size), T.CenterCrop(self.image_size)]
        convert = [T.PILToTensor()] if recipe.uint8_copy else [T.ToTensor(), T.Normalize(0.5, 0.5)]
        dataset = ImageFolder(photo_folder(self.count), T.Compose(crop + convert))
        if recipe.scaled_decode:
            dataset.loader = partial(scaled_photo, size=self.image_size)
        dataset.samples *= self.rounds  # longer epochs: workers start each one with an empty queue
        return dataset

    def prepare(self, images: torch.Tensor, recipe: Any) -> torch.Tensor:
        """The conversion on the device."""
        if recipe.uint8_copy:
            images = (images.to(torch.float32) / 255 - 0.5) / 0.5
        return images

    def model(self) -> nn.Module:
        """Six convolutions and a linear layer."""
        return small_net(classes=8)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets)

    def optimizer(self, parameters: Any, **implementation: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, **implementation)
