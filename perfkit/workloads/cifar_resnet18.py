"""The article's workload: ResNet-18 on a made-up CIFAR-10, images enlarged to 224 × 224.

The set-up is that of the PyTorch profiler tutorial, with random images in place of CIFAR-10.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
import torchvision.transforms as T
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset
from torchvision.models import ResNet18_Weights, resnet18
from torchvision.transforms import v2

IMAGENET = ResNet18_Weights.IMAGENET1K_V1.url


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


class BatchedFakeCIFAR(FakeCIFAR):
    """The same images, a whole batch at a time, without PIL."""

    def __getitems__(self, indices: list[int]) -> Any:
        images = torch.from_numpy(self.images[indices]).permute(0, 3, 1, 2).contiguous()
        return self.transform(images), torch.tensor([self.labels[index] for index in indices])


class CifarResNet18:
    """Data set, model, loss and optimizer of the article.

    Args:
        image_size: side of the images the model sees.
        samples: images in the data set.
        weights: `auto` (ImageNet's if this machine has them already), `imagenet` (downloaded if necessary) or
            `random`. The attribute of this name says in words which they are.

    Raises:
        ValueError: no such weights.
    """

    offers = frozenset({"uint8_copy", "device_resize", "batched_fetch"})
    presets = {
        "smoke": {"image_size": 48, "samples": 256},
        "quick": {"image_size": 64, "samples": 10_000},
        "paper": {"image_size": 224, "samples": 10_000},
    }

    def __init__(self, image_size: int = 224, samples: int = 10_000, weights: str = "auto") -> None:
        if weights not in ("auto", "imagenet", "random"):
            raise ValueError(f"unknown weights '{weights}'. Allowed: auto, imagenet, random")
        self.image_size = image_size
        self.samples = samples
        self.file = os.path.join(torch.hub.get_dir(), "checkpoints", os.path.basename(IMAGENET))
        self.pretrained = weights == "imagenet" or (weights == "auto" and os.path.exists(self.file))
        self.weights = "ImageNet weights" if self.pretrained else "random initialisation"

    def dataset(self, recipe: Any) -> Any:
        """The images, with the transforms that the recipe does on the host."""
        if recipe.batched_fetch:
            return BatchedFakeCIFAR(self.samples, self.batch_transform(recipe))
        steps: list[Any] = []
        if not recipe.device_resize:
            steps.append(T.Resize(self.image_size))
        if recipe.uint8_copy:
            steps.append(T.PILToTensor())
        else:
            steps.append(T.ToTensor())
            steps.append(T.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)))
        return FakeCIFAR(self.samples, T.Compose(steps))

    def batch_transform(self, recipe: Any) -> Any:
        """The same transforms for a whole batch, uint8[N, 3, 32, 32]."""
        steps: list[Any] = [v2.Identity()]
        if not recipe.device_resize:
            steps.append(v2.Resize(self.image_size))
        if not recipe.uint8_copy:
            steps.append(v2.ToDtype(torch.float32, scale=True))
            steps.append(v2.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)))
        return v2.Compose(steps)

    def prepare(self, images: torch.Tensor, recipe: Any) -> torch.Tensor:
        """The transforms that the recipe does on the device."""
        if recipe.uint8_copy:
            images = (images.to(torch.float32) / 255 - 0.5) / 0.5
        if recipe.device_resize:
            images = functional.interpolate(images, size=self.image_size, mode="bilinear")
        return images

    def model(self) -> nn.Module:
        """ResNet-18 with a head for 1,000 classes.

        Raises:
            RuntimeError: the ImageNet weights cannot be downloaded or read.
        """
        model: nn.Module = resnet18(weights=None)
        if self.pretrained:
            try:
                state = torch.hub.load_state_dict_from_url(IMAGENET, progress=False, check_hash=True)
                model.load_state_dict(state)
            except Exception as problem:  # no network, a full disk, a damaged file
                raise RuntimeError(
                    f"ImageNet weights cannot be had from {IMAGENET}: {problem}. Put that file "
                    f"at {self.file}, in place of a damaged one, or set weights to random"
                ) from problem
        return model

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Cross entropy."""
        return functional.cross_entropy(outputs, targets)

    def optimizer(self, parameters: Any, **implementation: Any) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(parameters, lr=0.001, momentum=0.9, **implementation)
