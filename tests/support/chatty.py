"""A workload with planted waits, for the reader to find first, then for the tools."""

from typing import Any

import torch
from torch import nn

from perfkit.workloads.cifar_resnet18 import CifarResNet18


class Chatty(CifarResNet18):
    """Reads values in every step, so that the host waits for the device.

    Args:
        clean: does the same work without reading them.
    """

    offers, presets = frozenset(), {}

    def __init__(self, clean: bool = False) -> None:
        super().__init__(image_size=32)
        self.clean = clean
        self.history: list[float] = []

    def model(self) -> nn.Module:
        """A small conv net."""
        convolutions = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU()]
        return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 10))

    def prepare(self, images: torch.Tensor, recipe: Any) -> torch.Tensor:
        """Crops to a size that is computed on the device and then read by the host."""
        if self.clean:
            return images[:, :, : images.shape[2] - 4, : images.shape[3] - 4]
        size = torch.tensor(images.shape[2:], device=images.device) - 4
        return images[:, :, : int(size[0]), : int(size[1])]

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Cross entropy over the samples that are not outliers."""
        each = nn.functional.cross_entropy(outputs, targets, reduction="none")
        kept = each < 100
        if self.clean:
            return torch.where(kept, each, 0.0).sum() / kept.sum()
        mean = each[kept].mean()
        self.history.append(mean.item())
        return mean
