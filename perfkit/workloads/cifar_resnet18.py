"""The article's workload: ResNet-18 on random images of CIFAR-10's size, enlarged to 224 × 224."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms as T
from torchvision.models import resnet18


class FakeCIFAR(Dataset[Any]):
    """Random images, uint8[samples, 32, 32, 3], with labels 0 to 9; one sample at a time, through PIL."""

    def __init__(self, samples: int, transform: Any) -> None:
        random = np.random.default_rng(0)
        self.images = random.integers(0, 256, (samples, 32, 32, 3), dtype=np.uint8)
        self.labels = random.integers(0, 10, samples).tolist()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.fromarray(self.images[index])), self.labels[index]


@dataclass
class CifarResNet18:
    """Data set, model, loss and optimizer of the article.

    Args:
        image_size: side of the images the model sees.
        samples: images in the data set.
    """

    image_size: int = 224
    samples: int = 10_000

    offers = frozenset({"uint8_copy", "device_resize"})
    presets = {
        "smoke": {"image_size": 48, "samples": 256},
        "quick": {"image_size": 64, "samples": 10_000},
        "paper": {"image_size": 224, "samples": 10_000},
    }

    def dataset(self, recipe: Any) -> Any:
        """The images, with the transforms that the recipe does on the host."""
        resize = [] if recipe.device_resize else [T.Resize(self.image_size)]
        convert = [T.PILToTensor()] if recipe.uint8_copy else [T.ToTensor(), T.Normalize(0.5, 0.5)]
        return FakeCIFAR(self.samples, T.Compose(resize + convert))

    def prepare(self, images: torch.Tensor, recipe: Any) -> torch.Tensor:
        """The transforms that the recipe does on the device."""
        if recipe.uint8_copy:
            images = (images.to(torch.float32) / 255 - 0.5) / 0.5
        if recipe.device_resize:
            images = torch.nn.functional.interpolate(images, size=self.image_size, mode="bilinear")
        return images

    def model(self) -> Any:
        """ResNet-18 with a head for 1,000 classes."""
        return resnet18()

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs, targets)

    def optimizer(self, parameters: Any, **implementation: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.001, momentum=0.9, **implementation)
