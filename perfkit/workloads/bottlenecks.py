"""Workloads with one planted bottleneck each, for the reader to find first, then for the tools."""

from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset


class Images(Dataset[Any]):
    """Random images, `float32[3, size, size]`."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, self.size, self.size, generator=generator), index % 10


class DeviceBound:
    """Wide convolutions on large images: the device computes all the time.

    Args:
        size: of the images.
    """

    presets = {"smoke": {"size": 24}, "quick": {"size": 64}, "paper": {"size": 224}}

    def __init__(self, size: int = 64) -> None:
        self.size = size

    def dataset(self, recipe: Any) -> Any:
        """Images that cost little to make."""
        return Images(self.size)

    def model(self) -> nn.Module:
        """Three wide convolutions."""
        convolutions = [nn.Conv2d(channels, 128, 3) for channels in (3, 128, 128)]
        layers = [layer for convolution in convolutions for layer in (convolution, nn.ReLU())]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))

    def loss(self, outputs: Any, targets: Any) -> Any:
        """Cross entropy."""
        return nn.functional.cross_entropy(outputs, targets)

    def optimizer(self, parameters: Any, **implementation: Any) -> Any:
        """SGD with momentum."""
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, **implementation)


class Chatty(DeviceBound):
    """Reads values in every step, so that the host waits for the device.

    Args:
        clean: does the same work without reading them.
    """

    presets = {}

    def __init__(self, clean: bool = False) -> None:
        super().__init__(32)
        self.clean = clean
        self.history: list[float] = []

    def model(self) -> nn.Module:
        """A small conv net."""
        convolutions = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU()]
        return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 10))

    def prepare(self, inputs: torch.Tensor, recipe: Any) -> torch.Tensor:
        """Crops to a size that is computed on the device and then read by the host."""
        if self.clean:
            return inputs[:, :, : inputs.shape[2] - 4, : inputs.shape[3] - 4]
        size = torch.tensor(inputs.shape[2:], device=inputs.device) - 4
        return inputs[:, :, : int(size[0]), : int(size[1])]

    def loss(self, outputs: Any, targets: Any) -> Any:
        """Cross entropy over the samples that are not outliers."""
        each = nn.functional.cross_entropy(outputs, targets, reduction="none")
        kept = each < 100
        if self.clean:
            return torch.where(kept, each, 0.0).sum() / kept.sum()
        mean = each[kept].mean()
        self.history.append(mean.item())
        return mean
