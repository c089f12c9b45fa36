"""A small training whose step can be made slower by a calibrated busy loop: for `aa_and_power.py`."""

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset


class Slowed:
    """A small conv net on made-up images.

    Args:
        extra_s: busy seconds added to every step.
    """

    def __init__(self, extra_s: float = 0.0) -> None:
        self.extra_s = extra_s

    def dataset(self, recipe: Any) -> Any:
        """256 images of 32×32."""
        generator = torch.Generator().manual_seed(0)
        return TensorDataset(torch.randn(256, 3, 32, 32, generator=generator), torch.arange(256) % 10)

    def model(self) -> nn.Module:
        """Three convolutions."""
        layers: list[nn.Module] = []
        for channels in (3, 32, 32):
            layers += [nn.Conv2d(channels, 32, 3), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))

    def loss(self, outputs: Any, targets: Any) -> Any:
        """Cross entropy, and the busy loop."""
        until = time.perf_counter() + self.extra_s
        while time.perf_counter() < until:
            pass
        return nn.functional.cross_entropy(outputs, targets)

    def optimizer(self, parameters: Any, **implementation: Any) -> Any:
        """Plain SGD."""
        return torch.optim.SGD(parameters, lr=0.01, **implementation)
